// The view of one cell: what it is, what came of it, and how to have it again.

/** The view, with links to the cells before and after it in the table. */
function viewCell(cell, before, after) {
  const latest = cell.attempts[0];
  const on = surroundings(cell);
  return [
    el(
      "nav", { "aria-label": "Cells" },
      el("a", { href: "#", id: "back" }, "\u2190 All cells"),
      before && el("a", { href: addressOf(before.id), title: before.id }, "Previous"),
      after && el("a", { href: addressOf(after.id), title: after.id }, "Next"),
    ),
    el("h2", { id: "cell-title", tabindex: "-1" }, cell.id),
    el(
      "p", { class: "state" },
      badge(cell.status),
      cell.launches && ` ${cell.launches} launches`,
      cell.attempt && `, attempt ${cell.attempt}`,
      " ",
      showMarks(cell.marks),
    ),
    cell.reason && el("p", { class: "notice" }, cell.reason),
    viewNumbers(cell),
    part("Where the time of a step goes", viewPhases(cell)),
    cell.rerun && part("Measure it again", code(cell.rerun)),
    viewAttempts(cell),
    latest && part("Command", latest.command && code(latest.command)),
    latest && folded("Environment", list(Object.entries(DATA.facts[latest.environment] ?? {}), "notes")),
    part("Hosts", ...on.hosts.map((host) => list(Object.entries(host).map(told)))),
    part("Software", on.software && list(Object.entries(on.software).map(told))),
    part("Code, image and transport", viewOthers(on)),
    ...viewProfile(cell),
    ...viewSections(cell),
    part("Definition", list(Object.entries(cell.definition).map(told))),
  ].filter((one) => one);
}

/** A heading with what stands below it; nothing where that is empty. */
function part(title, ...children) {
  const known = children.filter((child) => child);
  return known.length ? el("section", {}, el("h3", {}, title), ...known) : undefined;
}

function folded(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

/** A member of a record as term and text. */
function told([name, value]) {
  if (value === null) return [name, ""];
  return [name, typeof value === "object" ? tellParts(value) : String(value)];
}

function tellParts(value) {
  if (Array.isArray(value)) return value.map((one) => tell(one)).join(", ");
  return Object.entries(value).map(([k, v]) => `${k} ${tell(v)}`).join(", ");
}

function tell(value) {
  return value !== null && typeof value === "object" ? `(${tellParts(value)})` : String(value);
}

function viewNumbers(cell) {
  const tiles = Object.entries(VALUES).flatMap(([name, { title }]) => {
    const numbers = cell.numbers[name];
    if (!numbers) return [];
    const value = el("dd", {}, el("b", {}, show(numbers[0])), ` ${unitOf(cell, name)}`);
    const interval = showInterval(numbers);
    if (interval) value.append(el("span", { class: "interval" }, interval));
    return [el("div", {}, el("dt", {}, title), value)];
  });
  if (!tiles.length) return undefined;
  const bases = cell.bases ? `Compared with ${cell.bases.join("; ")}` : "";
  return el("div", {}, el("dl", { class: "tiles" }, ...tiles), el("p", { class: "sub" }, bases));
}

function viewPhases(cell) {
  const phases = Object.entries(cell.phases ?? {});
  if (!phases.length) return undefined;
  const whole = phases.reduce((sum, [, ms]) => sum + ms, 0);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  for (const [name, ms] of phases) {
    const piece = el("span");
    piece.style.cssText = `flex-grow: ${ms}; background: ${DATA.phases[name]}`;
    bar.append(piece);
  }
  const rows = phases.map(([name, ms]) => [
    phaseEntry(name),
    show(ms),
    showShare(ms, whole),
  ]);
  const table = grid(["phase", "ms per step", "share"], rows, { numbers: [1, 2], label: "Phases" });
  return el("div", {}, bar, table);
}

function viewAttempts(cell) {
  const attempts = cell.attempts.flatMap((one) => viewAttempt(cell, one));
  if (!attempts.length) return undefined;
  const place = el("p", { class: "sub" }, "Their records lie in ", fileLink("results.tar.zst"), " below ");
  place.append(el("code", {}, `records/${cell.id}/`), ".");
  return part("Attempts and launches", place, ...attempts);
}

function viewAttempt(cell, attempt) {
  const launches = attempt.launches.map((launch) => [
    `${launch.purpose ?? ""} ${launch.launch}`.trim(),
    badge(launch.status),
    launch.started ? showTime(launch.started) : "",
    show(launch.seconds),
    show(launch.throughput),
    show(launch.step_ms),
    show(launch.memory_mib),
    show(launch.accuracy),
    DATA.facts[launch.on].hosts.map((host) => DATA.facts[host].host).join(", "),
    viewFiles(cell, attempt, launch),
  ]);
  const columns = [
    "launch", "status", "started", "took (s)", cell.unit, "step (ms)", "memory (MiB)",
    "accuracy", "hosts", "record and logs",
  ];
  const label = `Launches of attempt ${attempt.attempt}`;
  return [
    el("h4", {}, `Attempt ${attempt.attempt} `, badge(attempt.status)),
    attempt.reason && el("p", { class: "sub" }, attempt.reason),
    grid(columns, launches, { numbers: [3, 4, 5, 6, 7], label }),
  ];
}

/** The record by its name in the bundle, and links to logs that lie beside the page. */
function viewFiles(cell, attempt, launch) {
  const parts = [attempt.attempt, launch.purpose, launch.launch];
  const folder = parts.filter((part) => part !== undefined).join("/");
  const place = `records/${cell.id}/${folder}`;
  const logs = (launch.logs ?? []).map((name) => fileLink(`${place}/${name}`, name));
  const record = el("code", {}, `${folder}/record.json`);
  const why = launch.reason && el("span", { class: "reason" }, launch.reason);
  return el("div", { class: "files" }, record, ...logs, why);
}

/** Hosts, software, code, image and transport of the latest launch that knows them. */
function surroundings(cell) {
  for (const attempt of cell.attempts) {
    const launch = attempt.launches.findLast((one) => "software" in DATA.facts[one.on]);
    if (!launch) continue;
    const { hosts, ...others } = DATA.facts[launch.on];
    const members = Object.entries(others).map(([name, place]) => [name, DATA.facts[place]]);
    return { hosts: hosts.map((place) => DATA.facts[place]), ...Object.fromEntries(members) };
  }
  return { hosts: [] };
}

function viewOthers({ code: source, image, transport }) {
  if (!source) return undefined;
  const pairs = Object.entries({ ...source, image: image ?? "none: native", transport });
  return list(pairs.filter(([, value]) => value !== undefined).map(told));
}

function viewProfile({ profile, log }) {
  const run = log && part("Log of its runs", el("p", {}, fileLink(log)));
  if (!profile) return [run];
  const plot = `plots/${encodeURIComponent(profile.plot)}.svg`;
  const picture = el("img", { src: plot, loading: "lazy", alt: "Timeline of the profiled steps, by rank" });
  const ranks = profile.ranks.map(({ rank, trace, operators }) =>
    folded(
      `Operators of rank ${rank}`,
      grid(
        ["operator", "calls/step", "CPU ms/step", "share"],
        operators.map(([name, calls, ms, share]) => [
          name, show(calls), show(ms), share === null ? "" : showShare(share, 1),
        ]),
        { numbers: [1, 2, 3], label: `Operators of rank ${rank}` },
      ),
      el("p", { class: "sub" }, "Its trace, for Perfetto: ", el("code", {}, trace)),
    ),
  );
  return [run, part("Profile", el("a", { href: plot }, picture), ...ranks)];
}

/** The rows of the cell in the sections of the page; they come when they are unpacked. */
function viewSections(cell) {
  const place = el("div");
  const fill = async () => {
    for (const [name, title] of DATA.sections) {
      const rows = (await readSection(name)).querySelectorAll("tr[data-cell]");
      const own = [...rows].filter((row) => row.dataset.cell === cell.id);
      place.append(...own.map((row) => viewRow(row, title)));
    }
  };
  fill();
  return [place];
}

/** A row as terms and texts, below the heading of its table. */
function viewRow(row, title) {
  const table = row.closest("table");
  const heading = table.parentElement.previousElementSibling;
  const subtitle = heading?.tagName === "H3" ? heading.textContent : title;
  const columns = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const fields = [...row.cells].map((field) => field.textContent);
  return part(subtitle, list(columns.slice(1).map((column, i) => [column, fields[i + 1]])));
}
