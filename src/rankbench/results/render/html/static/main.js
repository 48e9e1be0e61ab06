// What belongs together: address, filters, table, figures, and the rest of the page.

// The filters that hold, as the form shows them.
let filters = Object.fromEntries(FILTERS.map((name) => [name, ""]));

// How far down the table was left for a cell.
let scrolled = 0;

function fillFilters() {
  for (const name of FILTERS.slice(1)) {
    const options = valuesOf(name).map((value) => el("option", { value }, value));
    const first = [el("option", { value: "" }, "all")];
    if (name === "status" && ANY_OK) {
      first[0].textContent = "with numbers";
      first.push(el("option", { value: ALL }, "all"));
    }
    $("filters").elements[name].replaceChildren(...first, ...options);
  }
}

function fillSummary() {
  const counts = Map.groupBy(DATA.cells, (cell) => cell.status);
  const told = [...counts].map(([status, cells]) => `${cells.length} ${status}`).join(", ");
  const [first, last] = DATA.measured.map((time) => time.slice(0, 10));
  const days = first === last ? (first ?? "") : `${first} to ${last}`;
  const of = Object.fromEntries(DATA.notes);
  $("summary").append(
    list([
      ["cells", `${DATA.cells.length}: ${told}`],
      ["measured", days],
      ["machine", of.machine ?? ""],
      ["software", of.software ?? ""],
      ["by", `rankbench ${DATA.rankbench}`],
    ], "summary"),
  );
}

function fillDetails() {
  for (const [name, title] of DATA.sections) {
    const place = folded(title);
    // A section of many rows is made when somebody looks.
    const fill = async () => place.append(...(await readSection(name)).cloneNode(true).children);
    place.addEventListener("toggle", fill, { once: true });
    $("details").append(place);
  }
  if (!DATA.sections.length) $("details").hidden = true;
}

function fillEnd() {
  $("notes").append(list(DATA.notes, "notes"));
  const files = DATA.downloads.map(([name, bytes]) =>
    el("li", {}, fileLink(name), ` ${showBytes(bytes)}`),
  );
  $("downloads").append(
    el("p", {}, "The bundle has all records, tables and plots; `rankbench verify` checks it."),
    el("ul", { class: "files" }, ...files),
  );
  $("citation").append(
    el("p", {}, "Please name the experiment, the version and the date of what you cite:"),
    code(DATA.citation),
  );
}

function setFilters(wanted) {
  filters = wanted;
  for (const name of FILTERS) $("filters").elements[name].value = wanted[name];
}

/** The address of the table as it is filtered. */
function addressOfTable() {
  const set = FILTERS.filter((name) => filters[name]).map((name) => [name, filters[name]]);
  return `#${new URLSearchParams(set)}`;
}

function openTable() {
  if ($("cell").hidden && !$("overview").hidden) return;
  $("cell").hidden = true;
  $("overview").hidden = false;
  document.title = `${DATA.name} - rankbench`;
  scrollTo(0, scrolled);
}

function openCell(id, cells) {
  if (!$("overview").hidden) scrolled = scrollY;
  const cell = BY_ID.get(id);
  const place = cells.indexOf(cell);
  const view = cell
    ? viewCell(cell, cells[place - 1], place < 0 ? undefined : cells[place + 1])
    : [el("h2", { id: "cell-title", tabindex: "-1" }, `No cell ${id} in ${DATA.name}`)];
  $("cell").replaceChildren(...view);
  $("back")?.setAttribute("href", addressOfTable());
  $("overview").hidden = true;
  $("cell").hidden = false;
  document.title = `${id} - ${DATA.name} - rankbench`;
  scrollTo(0, 0);
  $("cell-title").focus();
}

async function start() {
  fillSummary();
  fillFilters();
  const table = await makeTable((cell) => passes(cell, filters));
  const fillFigures = makeFigures(table.cells);
  const redraw = () => {
    table.draw();
    const count = table.cells().length;
    $("count").textContent = `${count} of ${DATA.cells.length} cells`;
    fillFigures();
  };
  const route = () => {
    const asked = readAddress();
    if (asked?.cell) return openCell(asked.cell, table.cells());
    openTable();
    if (asked) {
      setFilters(asked.filters);
      redraw();
    }
  };
  const form = $("filters");
  form.addEventListener("input", () => {
    setFilters(Object.fromEntries(FILTERS.map((name) => [name, form.elements[name].value])));
    history.replaceState(null, "", addressOfTable());
    redraw();
  });
  form.addEventListener("reset", () => setTimeout(() => form.dispatchEvent(new Event("input"))));
  form.addEventListener("submit", (event) => event.preventDefault());
  table.onOrder(fillFigures);
  addEventListener("hashchange", route);
  route();
  performance.mark("shown");
  fillDetails();
  fillEnd();
}

start();
