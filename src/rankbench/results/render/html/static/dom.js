// Elements and text. Whatever a record says becomes a text node, never markup.

const $ = (id) => document.getElementById(id);

/** An element; attributes that are false or missing are left out. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** A number as the table's other formats write it: never 1e5. */
function show(value) {
  if (value === undefined || value === null) return "";
  return value.toLocaleString("en", { useGrouping: false, maximumSignificantDigits: 4 });
}

/** "[801, 820.5] n.s.", or nothing where there is no interval. */
function showInterval([, low, high, verdict = ""] = []) {
  if (high === undefined) return "";
  return low === high ? verdict : `[${show(low)}, ${show(high)}] ${verdict}`.trim();
}

function showShare(part, whole) {
  return `${((100 * part) / whole).toFixed(1)} %`;
}

function showBytes(bytes) {
  const kib = bytes / 1024;
  return kib < 1024 ? `${Math.ceil(kib)} KiB` : `${show(kib / 1024)} MiB`;
}

/** "2026-11-21 19:53:15 UTC" of an ISO time. */
function showTime(time) {
  return time.replace("T", " ").replace(/(\+00:00|Z)$/, " UTC");
}

/** Terms and what they are: values are strings or elements; empty ones are left out. */
function list(pairs, kind = "facts") {
  const known = pairs.filter(([, value]) => value !== "" && value !== undefined);
  const entries = known.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)));
  return el("dl", { class: kind }, ...entries);
}

/** A table whose fields are strings or elements. */
function grid(columns, rows, { numbers = [], label } = {}) {
  const kind = (i) => (numbers.includes(i) ? "number" : undefined);
  const head = columns.map((c, i) => el("th", { scope: "col", class: kind(i) }, c));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((field, i) => el("td", { class: kind(i) }, field))),
  );
  const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...head)));
  table.append(el("tbody", {}, ...body));
  // Focusable, so that the keyboard can scroll it.
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, table);
}

/** A line of code with a button that copies it, where the browser lets us. */
function code(text) {
  const line = el("pre", { tabindex: "0" }, el("code", {}, text));
  if (!navigator.clipboard) return line;
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return el("div", { class: "code" }, line, button);
}

function badge(status) {
  return el("span", { class: "status", "data-status": status }, status);
}

function showMarks(marks) {
  return el("span", { class: "marks" }, ...marks.map((mark) => el("span", {}, mark)));
}

/** A link to a file of the site; its path may have any characters. */
function fileLink(path, text = path) {
  return el("a", { href: path.split("/").map(encodeURIComponent).join("/") }, text);
}

/** The text of a block of the page: base64 of what gzip has compressed. */
async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const sections = new Map();

/** A section of the page, as the template made it; unpacked once. */
async function readSection(name) {
  if (!sections.has(name)) {
    const page = new DOMParser().parseFromString(await unpack(`section-${name}`), "text/html");
    sections.set(name, page.body);
  }
  return sections.get(name);
}

// Before a library is started it costs no time.

/** Start a library that is a module; returns what it exports. */
async function importLibrary(id) {
  const url = await urlOf(id);
  const library = await import(url);
  URL.revokeObjectURL(url);
  return library;
}

/** Start a library that is a plain script. */
async function runLibrary(id) {
  const script = el("script", { src: await urlOf(id) });
  const started = new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
  });
  document.head.append(script);
  await started;
  URL.revokeObjectURL(script.src);
}

async function urlOf(id) {
  return URL.createObjectURL(new Blob([await unpack(id)], { type: "text/javascript" }));
}
