// Tables sort and search by DataTables. Links into folded parts open them.

/** The address of a block of the page: base64 of a file that gzip has compressed. */
async function addressOf(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  return URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
  }
  target?.scrollIntoView();
}

const FEW_ROWS = 8; // are read at a glance

const { default: DataTable } = await import(await addressOf("datatables"));
for (const table of document.querySelectorAll("table")) {
  const rows = table.tBodies[0].rows.length;
  new DataTable(table, {
    autoWidth: false,
    order: [],
    paging: rows > 50,
    pageLength: 50,
    info: rows > 50,
    searching: rows > FEW_ROWS,
    // The first click on a number sorts the largest first.
    columnDefs: [{ targets: ".number", orderSequence: ["desc", "asc", ""] }],
  });
}
addEventListener("hashchange", openTarget);
openTarget();
document.body.dataset.ready = "";
performance.mark("shown");
