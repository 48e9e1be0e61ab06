// The table: DataTables sorts it and cuts it into pages, the filters are ours.

const PAGE = 50;

const COLUMNS = [
  { title: "Cell", value: (cell) => cell.id, show: showCell, kind: "cell" },
  { title: "Status", value: (cell) => cell.status, show: showStatus, kind: "some" },
  {
    title: "Topology", value: (cell) => cell.devices, kind: "some number",
    show: (cell) => cell.definition.topology,
  },
  ...Object.entries(VALUES).map(([name, { title, unit = RATE }]) => ({
    title: unit ? `${title} <span class="unit">${unit}</span>` : title,
    label: title,
    value: (cell) => cell.numbers[name]?.[0] ?? null,
    show: (cell) => showEstimate(cell.numbers[name], unit ? "" : unitOf(cell, name)),
    kind: `number ${{ throughput: "", speedup: "", step_ms: "some", efficiency: "some" }[name] ?? "most"}`,
  })),
];

/** Draw the table; returns what shows the cells that pass, in its order. */
async function makeTable(passesNow) {
  const { default: DataTable } = await importLibrary("datatables");
  // Cells without a number come last, whichever way it is sorted.
  const order = (sign) => (a, b) =>
    a === null || b === null ? (a === null) - (b === null) : sign * (a - b);
  DataTable.type("measure", { order: { asc: order(1), desc: order(-1) } });
  const table = new DataTable("#table", {
    data: DATA.cells,
    columns: COLUMNS.map(({ title, label, value, show, kind }) => ({
      title,
      ariaTitle: label ?? title,
      data: null,
      className: kind,
      type: kind?.includes("number") ? "measure" : "string",
      searchable: false,
      render: (_, use, cell) => (use === "display" ? show(cell) : value(cell)),
    })),
    createdRow: (row, cell) => {
      row.dataset.status = cell.status;
      row.addEventListener("click", (event) => {
        const chosen = getSelection().toString() !== "" || event.target.closest("a");
        if (!chosen) location.hash = addressOf(cell.id);
      });
    },
    order: [],
    autoWidth: false,
    deferRender: true,
    pageLength: PAGE,
    lengthMenu: [PAGE, 200, { label: "all", value: -1 }],
    language: { lengthMenu: "_MENU_ on a page", info: "_START_ to _END_ of _TOTAL_" },
    layout: {
      topStart: null,
      topEnd: null,
      bottomStart: ["info", "pageLength"],
      bottomEnd: "paging",
    },
  });
  // The rows hold whole cells, so that nothing of them is read as markup.
  table.search.fixed("filters", (_, cell) => passesNow(cell));
  return {
    draw: () => table.draw(),
    cells: () => table.rows({ search: "applied", order: "applied" }).data().toArray(),
    onOrder: (call) => table.on("order", call),
  };
}

function showCell(cell) {
  const field = el("div", {}, cellLink(cell.id), showMarks(cell.marks));
  // Where the window is too narrow for a column of its own.
  field.append(el("div", { class: "narrow" }, showStatus(cell)));
  if (cell.reason) field.append(el("span", { class: "reason" }, cell.reason));
  return field;
}

function showStatus(cell) {
  return el("div", {}, badge(cell.status), el("span", { class: "interval" }, cell.launches));
}

function showEstimate(numbers, unit) {
  const field = el("div", {}, numbers ? `${show(numbers[0])} ${unit}`.trim() : "");
  const interval = showInterval(numbers);
  if (interval) field.append(el("span", { class: "interval" }, interval));
  return field;
}
