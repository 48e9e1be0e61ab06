// The plot of the chosen cell. Its data are unpacked when it is chosen.

const DATA = JSON.parse(await unpack("data"));
const MILLI = 1000;
const DAY = 86_400_000;
const select = $("chosen").elements.line;
const names = DATA.lines.map(([id]) => id);

function nameOf([id, hash]) {
  const twice = names.indexOf(id) !== names.lastIndexOf(id);
  return twice ? `${id} (definition ${hash})` : id;
}

function fillSelect() {
  const option = (line, i) => el("option", { value: i }, nameOf(line));
  const all = DATA.lines.map((line, i) => [line, option(line, i)]);
  const changed = all.filter(([line]) => line[2]).map(([, one]) => one);
  const rest = all.filter(([line]) => !line[2]).map(([, one]) => one);
  for (const [label, options] of [["changed", changed], ["no change found", rest]])
    if (options.length) select.append(el("optgroup", { label }, ...options));
}

/** A source, or the plot itself, by its name. */
function modelOf(name) {
  return Bokeh.documents.map((doc) => doc.get_model_by_name(name)).find((one) => one);
}

function fillFigure(line) {
  const at = line.seconds.map((one) => one * MILLI);
  const level = (i) => line.levels[i][0];
  const ends = [0, ...line.breaks, at.length];
  const pairs = line.levels.map((_, i) => [ends[i], ends[i + 1] - 1]);
  modelOf("points").data = {
    x: at,
    y: line.value,
    low: line.low.map((one, i) => one ?? line.value[i]),
    high: line.high.map((one, i) => one ?? line.value[i]),
    time: line.seconds.map(timeOf),
    value: line.value.map((one) => `${show(one)} ${line.unit}`),
    interval: line.low.map((low, i) =>
      low === null ? "none: too few launches" : `[${show(low)}, ${show(line.high[i])}]`,
    ),
    launches: line.launches.map(String),
    run: line.run,
  };
  modelOf("levels").data = {
    xs: pairs.map(([a, b]) => [at[a], at[b]]),
    ys: pairs.map((_, i) => [level(i), level(i)]),
  };
  const plot = modelOf("line");
  const { low, high } = modelOf("points").data;
  plot.left[0].axis_label = line.unit;
  setRange(plot.x_range, at, 0.02, DAY);
  setRange(plot.y_range, [...low, ...high], 0.1, 0.05 * line.value[0]);
  // Between two runs: a line through a point would hide it.
  const before = (i) => (at[i - 1] + at[i]) / 2;
  modelOf("changes").data = { x: line.breaks.map(before) };
  modelOf("environment").data = { x: line.environment.map(([i]) => before(i)) };
}

/** All values with a share of room, `least` if they are equal; also after a reset. */
function setRange(range, values, room, least) {
  const [low, high] = values.reduce(
    ([a, b], one) => [Math.min(a, one), Math.max(b, one)],
    [Infinity, -Infinity],
  );
  const beyond = room * (high - low) || least;
  const ends = { start: low - beyond, end: high + beyond };
  range.setv({ ...ends, reset_start: ends.start, reset_end: ends.end });
}

/** "2026-11-24 02:00" of seconds since 1970. */
function timeOf(seconds) {
  return new Date(seconds * MILLI).toISOString().slice(0, 16).replace("T", " ");
}

function fillText(line) {
  const runs = line.seconds.length;
  const test = line.p === null ? "too few runs for a test" : `p = ${line.p}`;
  $("line-caption").textContent =
    `${runs} runs, ${test}. The vertical axis need not begin at 0.`;
  const ends = [0, ...line.breaks, runs];
  const rows = line.levels.map(([, level, count], i) => [
    timeOf(line.seconds[ends[i]]),
    timeOf(line.seconds[ends[i + 1] - 1]),
    String(count),
    level,
  ]);
  const levels = grid(["first run", "last run", "runs", `${line.unit}: median of runs`], rows, {
    numbers: [2, 3],
    label: "Levels",
  });
  $("line-levels").replaceChildren(el("h3", {}, "Levels"), levels);
  const changed = line.environment.map(([i, text]) => [timeOf(line.seconds[i]), DATA.texts[text]]);
  $("line-environment").replaceChildren(
    ...(changed.length
      ? [
          el("h3", {}, "Changes of the environment"),
          grid(["since", "what differs from the run before"], changed.reverse(), {
            label: "Changes of the environment",
          }),
        ]
      : []),
  );
}

async function view(place) {
  select.value = place;
  const line = JSON.parse(await unpack(`line-${place}`));
  fillText(line);
  fillFigure(line);
}

/** The line that the address asks for, or that of the latest change. */
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const found = DATA.lines.findIndex(
    ([id, hash]) =>
      id === asked.get("cell") && [null, hash].includes(asked.get("definition")),
  );
  return found < 0 ? DATA.latest : found;
}

fillSelect();
$("line").hidden = false;
await runLibrary("bokeh");
await Bokeh.embed.embed_item(JSON.parse(await unpack("figure")));
await view(readAddress());
performance.mark("shown");
select.addEventListener("change", () => {
  const [cell, definition] = DATA.lines[select.value];
  history.replaceState(null, "", `#${new URLSearchParams({ cell, definition })}`);
  view(Number(select.value));
});
addEventListener("hashchange", async () => {
  await view(readAddress());
  $("line").scrollIntoView();
});
