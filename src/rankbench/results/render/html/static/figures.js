// The figures: Bokeh draws them, from the cells that the filters leave.

const SHAPES = Object.keys(MARKERS);
const HATCHES = [" ", "/", "\\", "x", ".", "-", "|", "+"];

// More bars than this nobody reads; the table has all of them.
const MOST_BARS = 40;

// How far apart series stand that have equally many devices, and all of them at most.
const APART = 0.05;
const WIDEST = 0.4;

/** Draw the figures once they come into view; returns what fills them again. */
function makeFigures(shownCells) {
  const chosen = $("chosen").elements;
  chosen.panel.append(...DATA.panels.map(({ title }, i) => el("option", { value: i }, title)));
  const known = Object.entries(VALUES).filter(([name]) =>
    DATA.cells.some((cell) => cell.numbers[name]),
  );
  chosen.value.append(...known.map(([name, { title }]) => el("option", { value: name }, title)));
  if (!DATA.panels.length) {
    $("plots").replaceChildren($("plots-title"), el("p", {}, "No cell is ok: there is nothing to plot."));
    return () => {};
  }
  let find;
  const fill = () => {
    const panel = DATA.panels[chosen.panel.value];
    const shown = new Set(shownCells().map((cell) => cell.id));
    const series = panel.series
      .map((one) => ({ ...one, cells: one.cells.filter((id) => shown.has(id)) }))
      .filter((one) => one.cells.length);
    fillScaling(find, panel, series, chosen.value.value);
    fillPhases(find, series);
  };
  const start = async () => {
    await runLibrary("bokeh");
    const figures = JSON.parse(await unpack("figures"));
    for (const figure of Object.values(figures)) await Bokeh.embed.embed_item(figure);
    find = (name) => Bokeh.documents.map((doc) => doc.get_model_by_name(name)).find((one) => one);
    for (const name of ["medians", "bars"]) openOnTap(find(name));
    $("chosen").addEventListener("change", fill);
    fill();
  };
  const watch = new IntersectionObserver(([place]) => {
    if (!place.isIntersecting) return;
    watch.disconnect();
    start();
  }, { rootMargin: "200px" });
  watch.observe($("plots"));
  return () => find && fill();
}

function openOnTap(source) {
  const { selected } = source;
  selected.connect(selected.properties.indices.change, () => {
    if (!selected.indices.length) return;
    const [index] = selected.indices;
    selected.indices = [];
    location.hash = addressOf(source.get_column("cell")[index]);
  });
}

/** Rows of equal members as the columns of a source. */
function columnsOf(rows, names) {
  return Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name])]));
}

function fillSource(find, name, rows) {
  const source = find(name);
  source.data = columnsOf(rows, [...source.columns()]);
}

function fillScaling(find, panel, series, name) {
  const { title } = VALUES[name];
  const unit = unitOf(BY_ID.get(series[0].cells[0]), name);
  const step = Math.min(APART, WIDEST / series.length);
  const medians = [];
  const launches = [];
  const lines = [];
  for (const [place, one] of series.entries()) {
    const apart = 1 + step * (place - (series.length - 1) / 2);
    const points = new Map();
    for (const cell of one.cells.map((id) => BY_ID.get(id))) {
      if (!cell.numbers[name]) continue;
      const point = describePoint(cell, name, one.name, cell.devices * apart);
      points.set(cell.id, point);
      medians.push(point);
      launches.push(...describeLaunches(cell, name, point));
    }
    for (const line of one.lines) {
      const joined = line.map((id) => points.get(id)).filter((point) => point);
      // Two points would suggest a trend.
      if (joined.length > 2) lines.push({ ...join(joined), color: DATA.series[one.name] });
    }
  }
  const devices = [...new Set(medians.map((p) => BY_ID.get(p.cell).devices))].sort((a, b) => a - b);
  fillSource(find, "medians", medians);
  fillSource(find, "launches", launches);
  fillSource(find, "lines", lines);
  fillSource(find, "ideal", describeIdeal(panel, name, devices));
  const plot = find("scaling");
  plot.below[0].ticker.ticks = devices;
  plot.x_range.setv({ start: 0.7 * (devices[0] ?? 1), end: 1.4 * (devices.at(-1) ?? 1) });
  plot.left[0].axis_label = unit ? `${title.toLowerCase()} (${unit})` : title.toLowerCase();
  const drawn = series.filter((one) => medians.some((point) => point.series === one.name));
  $("legend").replaceChildren(...drawn.map(({ name: text }) => el("li", {}, legendEntry(text))));
  const rate = (id, value) => `${show(value)} ${BY_ID.get(id).unit}`;
  const ideal = panel.bases.map(([id, value]) => `${DATA.names[id]} = ${rate(id, value)}`).join(", ");
  $("scaling-caption").textContent =
    `${title} over devices: ${medians.length} cells. Large marks are medians, bars their ` +
    "95 % intervals, small marks single launches; hollow: ranks share a core or a GPU." +
    (ideal ? ` Dashed: the ideal, from ${ideal}.` : "");
}

function describePoint(cell, name, series, x) {
  const [y, low, high] = cell.numbers[name];
  const unit = unitOf(cell, name);
  return {
    x, y, low: low ?? y, high: high ?? y,
    color: DATA.series[series],
    fill: cell.marks.includes("oversubscribed") ? "#ffffff" : DATA.series[series],
    marker: shapeOf(series),
    cell: cell.id,
    series,
    topology: cell.definition.topology,
    value: `${show(y)} ${unit}`.trim(),
    interval: showInterval(cell.numbers[name]) || "none: too few launches, or a base",
    launches: cell.launches,
    marks: cell.marks.join(", ") || "none",
  };
}

/** The launches of the latest attempt, in the column of their median. */
function describeLaunches(cell, name, point) {
  const latest = cell.attempts.find(({ attempt }) => attempt === cell.attempt);
  return (latest?.launches ?? [])
    .filter((one) => !one.purpose && one[name] !== undefined)
    .map((one) => ({
      x: point.x,
      y: one[name],
      color: point.color,
      fill: point.fill,
      cell: cell.id,
      value: `${show(one[name])} ${unitOf(cell, name)}`.trim(),
      launch: String(one.launch),
    }));
}

/** The ideal for each base, over all numbers of devices that are shown. */
function describeIdeal(panel, name, devices) {
  const ideals = {
    throughput: panel.bases.map(([, value]) => (n) => n * value),
    speedup: [(n) => n],
    efficiency: [() => 1],
  };
  const ends = [...new Set([devices[0], devices.at(-1)])];
  return (ideals[name] ?? []).map((ideal) => join(ends.map((x) => ({ x, y: ideal(x) }))));
}

/** Straight lines from point to point, as they are where devices stand by logarithm. */
function join(points) {
  const path = points.slice(1).flatMap((to, i) => {
    const from = points[i];
    const shares = Array.from({ length: 25 }, (_, k) => k / 24);
    return shares.map((share) => {
      const x = from.x * (to.x / from.x) ** share;
      return { x, y: from.y + ((to.y - from.y) * (x - from.x)) / (to.x - from.x) };
    });
  });
  return { xs: path.map(({ x }) => x), ys: path.map(({ y }) => y) };
}

function shapeOf(series) {
  return SHAPES[Object.keys(DATA.series).indexOf(series) % SHAPES.length];
}

function legendEntry(series) {
  const mark = el("span", { class: "mark", "aria-hidden": "true" }, MARKERS[shapeOf(series)]);
  mark.style.color = DATA.series[series];
  return el("span", {}, mark, series);
}

function fillPhases(find, series) {
  const cells = series.flatMap((one) =>
    one.cells.map((id) => ({ ...BY_ID.get(id), series: one.name })),
  );
  const bars = cells.slice(0, MOST_BARS);
  const names = bars.map((cell) => `${cell.series} ${cell.definition.topology}`);
  const rows = bars.flatMap((cell, i) => {
    const twice = names.indexOf(names[i]) !== names.lastIndexOf(names[i]);
    return describePhases(cell, twice ? cell.id : names[i]);
  });
  fillSource(find, "bars", rows);
  const plot = find("phases");
  plot.y_range.factors = [...new Set(rows.map((row) => row.label))].reverse();
  plot.height = 26 * bars.length + 90;
  const found = new Set(rows.map((row) => row.phase));
  $("phases-legend").replaceChildren(
    ...Object.keys(DATA.phases).filter((name) => found.has(name))
      .map((name) => el("li", {}, phaseEntry(name))),
  );
  const left = cells.length - bars.length;
  $("phases-caption").textContent =
    "Where the time of a step goes, by phase: mean over ranks, steps and launches." +
    (left > 0 ? ` The first ${bars.length} of ${cells.length} cells: filter for others.` : "");
}

function describePhases(cell, label) {
  const whole = Object.values(cell.phases).reduce((sum, ms) => sum + ms, 0);
  let left = 0;
  return Object.entries(cell.phases).map(([phase, ms]) => {
    const bar = { left, right: left + ms, label, cell: cell.id, phase };
    left += ms;
    return {
      ...bar,
      color: DATA.phases[phase],
      hatch: hatchOf(phase),
      ms: show(ms),
      share: showShare(ms, whole),
    };
  });
}

function hatchOf(phase) {
  return HATCHES[Object.keys(DATA.phases).indexOf(phase) % HATCHES.length];
}

function phaseEntry(phase) {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.backgroundColor = DATA.phases[phase];
  swatch.dataset.hatch = hatchOf(phase);
  return el("span", {}, swatch, phase);
}
