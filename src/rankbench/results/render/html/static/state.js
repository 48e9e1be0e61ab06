// What the page is about: its data, the filters, and the address that names both.

const DATA = JSON.parse(await unpack("data"));
const FILTERS = ["q", "status", "strategy", "backend", "topology"];
const MARKERS = {
  circle: "\u25cf", square: "\u25a0", triangle: "\u25b2", diamond: "\u25c6",
  inverted_triangle: "\u25bc", hex: "\u2b22", star: "\u2605", plus: "\u271a",
};

const VALUES = {
  throughput: { title: "Throughput" }, // its unit is that of the cell
  step_ms: { title: "Step", unit: "ms" },
  speedup: { title: "Speedup", unit: "" },
  efficiency: { title: "Efficiency", unit: "" },
  memory_mib: { title: "Memory", unit: "MiB" },
  accuracy: { title: "Accuracy", unit: "" },
};

for (const cell of DATA.cells) {
  cell.definition = { ...DATA.common, ...cell.own };
  cell.unit = cell.definition.context == null ? "samples/s" : "tokens/s";
  cell.numbers ??= {};
  cell.marks ??= [];
  cell.attempts ??= [];
  cell.launches = cell.wanted ? `${cell.ok}/${cell.wanted}` : "";
  const words = [cell.id, cell.status, cell.reason ?? "", ...cell.marks];
  cell.words = words.join(" ").toLowerCase();
}

/** The unit of a number of a cell: throughput of a language model is in tokens/s. */
function unitOf(cell, name) {
  return VALUES[name].unit ?? cell.unit;
}

/** The unit of all throughputs; empty where they have several. */
const RATES = new Set(
  DATA.cells.filter((cell) => cell.numbers.throughput).map((cell) => cell.unit),
);
const RATE = RATES.size > 1 ? "" : [...RATES].join();

const ANY_OK = DATA.cells.some((cell) => cell.status === "ok");
const ALL = "any";
const BY_ID = new Map(DATA.cells.map((cell) => [cell.id, cell]));
const SERIES = new Map(
  DATA.panels.flatMap((panel) =>
    panel.series.flatMap(({ name, cells }) => cells.map((id) => [id, name])),
  ),
);

/** The value of a filter's field. */
function fieldOf(cell, name) {
  return name === "status" ? cell.status : cell.definition[name];
}

/** All values of a field, most devices last where they are topologies. */
function valuesOf(name) {
  return [...new Set(DATA.cells.map((cell) => fieldOf(cell, name)))].sort((a, b) =>
    a.localeCompare(b, "en", { numeric: true }),
  );
}

/** Without any choice only cells with numbers pass, if there are any. */
function hasStatus(cell, filters) {
  if (filters.status) return [ALL, cell.status].includes(filters.status);
  return !ANY_OK || cell.status === "ok" || FILTERS.some((name) => filters[name]);
}

/** Whether all filters let a cell pass; every word of the search must occur. */
function passes(cell, filters) {
  const words = filters.q.toLowerCase().split(/\s+/);
  return (
    words.every((word) => cell.words.includes(word)) &&
    FILTERS.slice(2).every((name) => !filters[name] || fieldOf(cell, name) === filters[name]) &&
    hasStatus(cell, filters)
  );
}

/** What the address asks for: a cell, or filters; undefined for a place on the page. */
function readAddress() {
  const hash = location.hash.slice(1);
  if (hash && !hash.includes("=")) return undefined;
  const asked = new URLSearchParams(hash);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, asked.get(name) ?? ""]));
  return { cell: asked.get("cell"), filters };
}

function addressOf(id) {
  return `#${new URLSearchParams({ cell: id })}`;
}

/** A link to a cell by its short name, which breaks at its dots where it must. */
function cellLink(id) {
  const parts = DATA.names[id].split(/(?<=\.)/).flatMap((part) => [part, el("wbr")]);
  return el("a", { href: addressOf(id), class: "id", title: id }, ...parts);
}
