// ---- attention: the chosen head of the reference, and its difference in every implementation
const maps = document.getElementById("maps"), squares = all(".overview button");
let place = { map: 0, layer: 0, head: 0 }, cell = { query: 0, key: 0 };

// the bytes of a map, unpacked when one of its heads is first shown
const unpacked = (map) => (map.ready ??= unpack(map));
async function unpack(map) {
  map.titles = Object.fromEntries(map.titles);
  const bytes = await inflated(map.weights), count = bytes.length / 2;
  map.values = Float64Array.from({ length: count }, (_, i) => (256 * bytes[i] + bytes[count + i]) / data.levels);
  map.away = {};
  for (const name of Object.keys(map.titles)) map.away[name] = new Int8Array((await inflated(map.differences[name])).buffer);
  return map;
}

// a head: the reference's weights, and by implementation its differences
function headOf(map, { layer, head }) {
  const size = map.queries.length * map.keys.length, from = (layer * map.heads + head) * size;
  const away = Object.fromEntries(Object.entries(map.away).map(([name, levels]) => {
    const scale = map.scales[name][layer][head] / data.finest;
    return [name, Float64Array.from(levels.subarray(from, from + size), (level) => level * scale)];
  }));
  const weights = map.values.subarray(from, from + size);
  return { weights, range: [weights.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), 1), Math.max(...weights)], away, noise: map.noise[layer], even: map.even[layer][head] };
}

const short = (value) => number(value);
const spoken = (value) => Math.max(0, value).toFixed(5); // as exact as the weights are stored
const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function rgb(name) {
  const probe = element("i", { style: `color: var(${name})` });
  document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parts;
}
const mixed = (from, to, share) => from.map((value, i) => value + (to[i] - value) * share);

function palette() {
  const ground = rgb("--sunken"), full = rgb("--accent"), warm = rgb("--warm"), cool = rgb("--cool");
  return { weight: (share) => (share < 0 ? ground : mixed(ground, full, 0.12 + 0.88 * share)), difference: (share) => mixed(ground, share > 0 ? warm : cool, Math.abs(share)) };
}

// the color of a weight, from the smallest to the largest of its head; a key that is not attended to has the ground's
const between = ([low, high], value) => (value <= 0 ? -1 : high > low ? (value - low) / (high - low) : 0.5);

// a map as pixels, its tokens beside it where they have room, and the chosen cell
function picture(canvas, colours, map) {
  const rows = map.queries.length, columns = map.keys.length, ratio = Math.min(devicePixelRatio, 2), width = canvas.clientWidth;
  const roomy = (width - 64) / columns >= 10 && canvas.dataset.labels !== undefined;
  const left = roomy ? 64 : 0, bottom = roomy ? 56 : 0, side = (width - left) / columns, height = side * rows + bottom;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d"), image = new ImageData(columns, rows);
  colours.forEach((colour, i) => image.data.set([...colour, 255], 4 * i));
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, 0, side * columns, side * rows);
  if (roomy) label(context, map, left, side, rows);
  context.strokeStyle = `rgb(${rgb("--ink")})`;
  context.lineWidth = 1.5;
  context.strokeRect(left + cell.key * side, cell.query * side, side, side);
  canvas.dataset.left = left;
  canvas.dataset.side = side;
}

function label(context, map, left, side, rows) {
  context.fillStyle = `rgb(${rgb("--muted")})`;
  context.font = `${Math.min(11, side * 0.95)}px ${shade("--mono")}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const cut = (word) => (word.length > 9 ? `${word.slice(0, 8)}…` : word);
  map.queries.forEach((word, i) => context.fillText(cut(word), left - 4, (i + 0.5) * side));
  map.keys.forEach((word, i) => {
    context.save();
    context.translate(left + (i + 0.5) * side, rows * side + 4);
    context.rotate(-Math.PI / 2);
    context.fillText(cut(word), 0, 0);
    context.restore();
  });
}

function panels(map) {
  const names = Object.keys(map.titles), wanted = names.join();
  if (maps.dataset.names === wanted) return;
  maps.dataset.names = wanted;
  const figure = (kind, name) => element("figure", { class: kind }, element("figcaption", {}), element("canvas", { role: "img", "data-kind": kind, "data-name": name, ...(kind === "weight" ? { "data-labels": "" } : {}) }));
  maps.replaceChildren(figure("weight", "reference"), ...names.map((name) => figure("difference", name)));
}

async function draw() {
  const map = await unpacked(data.attention[place.map]), { weights, range, away, noise, even } = headOf(map, place), { weight, difference } = palette();
  panels(map);
  const largest = (part) => part.reduce((a, b) => Math.max(a, Math.abs(b)), 0), widest = Math.max(0, ...Object.values(away).map(largest));
  document.getElementById("head-title").textContent = `${map.name} · layer ${place.layer} · head ${place.head}`;
  for (const node of all("canvas", maps)) {
    const { kind, name } = node.dataset, own = kind === "weight", title = own ? "reference" : `${map.titles[name]} − reference`;
    const text = own ? `${spoken(range[0])} to ${spoken(range[1])}${even ? ", even" : ""}` : `at most ${short(largest(away[name]))} = ${(largest(away[name]) / noise).toFixed(2)} × noise`;
    const colours = own ? Array.from(weights, (value) => weight(between(range, value))) : Array.from(away[name], (value) => difference(widest ? value / widest : 0));
    node.previousSibling.replaceChildren(element("b", {}, title), element("span", {}, text));
    node.setAttribute("aria-label", `${title}, layer ${place.layer}, head ${place.head}: ${own ? "weights, " : ""}${text}`);
    picture(node, colours, map);
  }
  scales(range, widest, weight, difference);
  document.getElementById("evenness").textContent = even ? "Even head: every query attends evenly to all keys that the mask allows." : "";
  read(map, weights, away, noise);
}

function scales(range, widest, weight, difference) {
  for (const [id, ends, colour, low] of [["weight-scale", [`weight ${spoken(range[0])}`, spoken(range[1])], weight, 0], ["difference-scale", [`difference −${short(widest)}`, `+${short(widest)}`], difference, -1]]) {
    const bar = element("canvas", { width: 128, height: 1, "aria-hidden": "true" }), image = new ImageData(128, 1);
    for (let i = 0; i < 128; i++) image.data.set([...colour(low + (1 - low) * (i / 127)), 255], 4 * i);
    bar.getContext("2d").putImageData(image, 0, 0);
    document.getElementById(id).replaceChildren(ends[0], bar, ends[1]);
  }
}

function read(map, weights, away, noise) {
  const at = cell.query * map.keys.length + cell.key, line = (head, ...cells) => element("tr", {}, element("th", { scope: "row" }, head), ...cells.map((text) => element("td", { class: "number" }, text)));
  const rows = Object.entries(away).map(([name, part]) => line(map.titles[name], spoken(weights[at] + part[at]), `${part[at] < 0 ? "−" : "+"}${short(Math.abs(part[at]))}`, `${(Math.abs(part[at]) / noise).toFixed(2)} × noise`));
  document.getElementById("reading").replaceChildren(
    element("caption", {}, `query ${cell.query} “${map.queries[cell.query]}” → key ${cell.key} “${map.keys[cell.key]}”`),
    element("tbody", {}, line("reference", spoken(weights[at]), "", ""), ...rows));
}

function choose(node, focus = true) {
  for (const other of squares) {
    other.tabIndex = other === node ? 0 : -1;
    other.setAttribute("aria-pressed", String(other === node));
  }
  if (focus) node.focus();
  const before = data.attention[place.map];
  place = Object.fromEntries(["map", "layer", "head"].map((name) => [name, Number(node.dataset[name])]));
  if (before !== data.attention[place.map]) cell = { query: 0, key: 0 };
  return draw();
}

const arrows = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
const square = (map, layer, head) => squares.find((node) => Number(node.dataset.map) === map && Number(node.dataset.layer) === layer && Number(node.dataset.head) === head);
function neighbour(key) {
  const [down, right] = arrows[key];
  if (right) return squares[squares.indexOf(square(place.map, place.layer, place.head)) + right];
  const map = data.attention[place.map], beside = square(place.map, place.layer + down, place.head);
  if (beside || !data.attention[place.map + down]) return beside;
  return square(place.map + down, down > 0 ? 0 : data.attention[place.map + down].layers - 1, place.head) ?? beside;
}
for (const node of squares) {
  node.addEventListener("click", () => choose(node));
  node.addEventListener("keydown", (event) => {
    if (!arrows[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = neighbour(event.key);
    if (next) choose(next);
  });
}
all("[data-step]").forEach((button) => button.addEventListener("click", () => {
  const next = neighbour(button.dataset.step);
  if (next) choose(next, false);
}));

if (data.attention.length) {
  maps.addEventListener("keydown", (event) => {
    if (!arrows[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const map = data.attention[place.map], [down, right] = arrows[event.key], within = (value, count) => Math.max(0, Math.min(count - 1, value));
    cell = { query: within(cell.query + down, map.queries.length), key: within(cell.key + right, map.keys.length) };
    draw();
  });
  for (const kind of ["pointermove", "click"]) maps.addEventListener(kind, (event) => {
    const canvas = event.target.closest("canvas"), map = data.attention[place.map];
    if (!canvas) return;
    const { left, side } = canvas.dataset, key = Math.floor((event.offsetX - left) / side), query = Math.floor(event.offsetY / side);
    if (key < 0 || key >= map.keys.length || query < 0 || query >= map.queries.length || (key === cell.key && query === cell.query)) return;
    cell = { query, key };
    draw();
  });
  const redraw = () => draw();
  draw();
  addEventListener("resize", redraw);
  addEventListener("beforeprint", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", redraw);
}
