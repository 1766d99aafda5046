const accepted = ["deviation"];
const failing = (row) => data.failures.includes(row.status);
const kind = (row) => (failing(row) ? "fail" : accepted.includes(row.status) ? "accepted" : row.status === "pass" ? "pass" : "other");
function number(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

// ---- heat maps: |error| / allowed, positions down, features across
// five levels that pass, five that fail, evenly spaced in the logarithm up to the largest error; x: NaN, infinite or a wrong integer
function scale(heat) {
  const largest = Math.max(10, ...heat.flat().filter((value) => value < data.highest));
  const edges = [0.01, 0.1, 0.3, 0.6, 1, ...[1, 2, 3, 4, 5].map((step) => largest ** (step / 5))];
  return { edges, level: (value) => (value >= data.highest ? "x" : Math.min(edges.filter((edge) => value > edge).length, 9)) };
}

function heatMap(heat) {
  const size = 12, left = 26, top = 16, rows = heat.length, columns = heat[0].length;
  const { edges, level } = scale(heat);
  const width = left + columns * size + 4, height = top + rows * size + 4;
  const draw = (tag, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    return node;
  };
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width: width * 1.5, role: "img",
    "aria-label": `heat map of the error, ${rows} positions by ${columns} features` });
  const readout = element("output", {}, "point at a cell to read its value");
  heat.forEach((row, y) => row.forEach((value, x) => {
    const cell = draw("rect", { x: left + x * size, y: top + y * size, width: size - 0.7, height: size - 0.7, rx: 1.5, fill: `var(--h${level(value)})` });
    cell.addEventListener("pointerenter", () => {
      readout.textContent = `position ${y}, feature ${x}: ${value >= data.highest ? "NaN or infinite unlike the reference, or a wrong integer" : `${number(value)} × allowed`}`;
    });
    svg.append(cell);
  }));
  for (const y of new Set([0, rows - 1])) svg.append(draw("text", { x: left - 4, y: top + y * size + 9, "text-anchor": "end" }, y));
  for (const x of new Set([0, columns - 1])) svg.append(draw("text", { x: left + x * size + 5, y: top - 4, "text-anchor": "middle" }, x));
  const legend = element("figcaption", {}, "error / allowed, positions down, features across:");
  for (const key of [...edges.keys(), "x"]) legend.append(
    element("span", {}, element("i", { style: `background: var(--h${key})` }), key === "x" ? "NaN or infinite" : `≤ ${number(Number(edges[key].toPrecision(2)))}`));
  return element("figure", {}, svg, readout, legend);
}

// ---- the cases of a cell, or of a case id
function facts(row) {
  const list = element("dl", { class: "facts" });
  const add = (name, value, over = false) =>
    list.append(element("div", {}, element("dt", {}, name), element("dd", over ? { class: "over" } : {}, value)));
  add("error", number(row.error), row.allowed !== null && row.error > row.allowed);
  add("allowed", number(row.allowed));
  add("noise (rounding error of NumPy)", number(row.noise));
  add("error / noise", number(row.ratio));
  add("error in ulps", number(row.ulps));
  add("seconds", number(row.seconds));
  if (row.worst.length) add("worst element", `${row.output}[${row.worst.join(", ")}]`);
  return list;
}

function caseCard(row, known) {
  const where = ["port", "dtype", "mode", "device"].filter((key) => !known.has(key)).map((key) => row[key]).join(" · ");
  const body = element("div", { class: "body" });
  if (row.message) body.append(element("p", { class: "what" }, row.message));
  if (row.error !== null || row.allowed !== null) body.append(facts(row));
  if (row.heat) body.append(element("h4", {}, "Where it differs"), heatMap(row.heat));
  if (failing(row)) for (const finding of data.findings)
    if (finding.port === row.port && finding.component === row.component)
      body.append(element("h4", {}, "Diagnosis"), element("div", { class: "finding" }, element("pre", {}, finding.text)));
  const query = new URLSearchParams({ port: row.port, dtype: row.dtype, mode: row.mode, device: row.device });
  body.append(element("p", { class: "note" },
    element("a", { href: `#${encodeURI(row.case)}?${query}` }, "link to this case")));
  const summary = element("summary", {}, element("span", { class: `chip ${kind(row)}` }, row.status),
    element("span", { class: "name" }, row.case), element("span", { class: "where" }, where),
    element("span", { class: "number" }, row.ratio === null ? "" : `${number(row.ratio)} × noise`));
  return element("details", failing(row) ? { open: "" } : {}, summary, body);
}

const dialog = document.getElementById("cases");
function open() {
  const [path, query] = location.hash.slice(1).split("?");
  const name = decodeURIComponent(path), wanted = [...new URLSearchParams(query)];
  const field = name.includes("/") ? "case" : "component";
  const rows = data.results.filter((row) => name && row[field] === name && wanted.every(([key, value]) => row[key] === value));
  if (!rows.length) return dialog.close();
  rows.sort((one, other) => failing(other) - failing(one));
  const cards = rows.map((row) => caseCard(row, new Map(wanted)));
  if (cards.length === 1) cards[0].open = true;
  document.getElementById("cases-title").textContent = name;
  document.getElementById("cases-note").textContent =
    [...wanted.map(([, value]) => value), `${rows.filter(failing).length} of ${rows.length} fail`].filter(Boolean).join(" · ");
  document.getElementById("cases-list").replaceChildren(...cards);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
addEventListener("hashchange", open);
dialog.addEventListener("close", () => { if (location.hash) history.pushState(null, "", location.pathname + location.search); });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
document.getElementById("close").addEventListener("click", () => dialog.close());

// ---- filters
const form = document.getElementById("filters");
function filter() {
  const want = Object.fromEntries(new FormData(form));
  const fits = (node) => (!want.port || !node.dataset.port || node.dataset.port === want.port) && (!want.dtype || !node.dataset.dtype || node.dataset.dtype === want.dtype);
  const named = (node) => node.dataset.component.includes(want.component.trim().toLowerCase());
  const cells = all(".matrix [data-dtype]");
  cells.forEach((cell) => { cell.hidden = !fits(cell); });
  all(".matrix .whose").forEach((cell) => { cell.hidden = Boolean(want.port) && cell.dataset.port !== want.port; });
  const dtypes = new Set(all(".matrix thead [data-dtype]").filter((cell) => !cell.hidden).map((cell) => cell.dataset.dtype)).size;
  all(".matrix .group").forEach((head) => { head.hidden = !fits(head); head.colSpan = dtypes || 1; });
  const rows = all(".matrix tbody tr");
  rows.forEach((row) => {
    const shown = all("td[data-dtype]", row).filter((cell) => !cell.hidden);
    shown.forEach((cell) => cell.classList.toggle("dim", Boolean(want.status) && !cell.dataset.statuses.split("|").includes(want.status)));
    row.hidden = !named(row) || !shown.some((cell) => cell.dataset.statuses && !cell.classList.contains("dim"));
  });
  all(".list tbody tr").forEach((row) => { row.hidden = !(fits(row) && named(row) && (!want.status || row.dataset.status === want.status)); });
  all(".finding[data-port]").forEach((node) => { node.hidden = !(fits(node) && named(node)); });
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} components`;
}
if (form) {
  for (const event of ["input", "change"]) form.addEventListener(event, filter);
  document.getElementById("all").addEventListener("click", () => { form.reset(); filter(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}

// ---- arrow keys move through the results table
document.querySelector(".matrix")?.addEventListener("keydown", (event) => {
  const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
  const cell = event.target.closest("td");
  if (!cell || !(down || right)) return;
  event.preventDefault();
  const lines = all(".matrix tbody tr").filter((row) => !row.hidden).map((row) => all("td[data-dtype]", row).filter((one) => !one.hidden));
  const y = lines.findIndex((line) => line.includes(cell)), x = lines[y].indexOf(cell);
  lines[y + down]?.[x + right]?.querySelector("a")?.focus();
});

all("[data-heat]").forEach((node) => node.append(heatMap(JSON.parse(node.dataset.heat))));
open();
