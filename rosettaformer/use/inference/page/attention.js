// ---- weights: multiples of 1 / levels, all high bytes, then all low bytes, compressed by zlib
async function unpack(map) {
  const bytes = await inflated(map.weights), count = bytes.length / 2;
  return Float32Array.from({ length: count }, (_, i) => (256 * bytes[i] + bytes[count + i]) / data.levels);
}

const title = (place) => `layer ${place.layer} · head${place.heads.length > 1 ? "s" : ""} ${place.heads.join(", ")}`;

// the heads of a layer in a link, by their numbers in the model
function read(text) {
  const [map, layer, names = ""] = text.slice(1).split("/"), heads = names.split("+").map(Number), known = data.maps[map];
  const found = known && names && known.layers.includes(Number(layer)) && heads.every((head) => known.heads.includes(head));
  return found ? { map: Number(map), layer: Number(layer), heads } : null;
}
const link = (place) => `#${place.map}/${place.layer}/${place.heads.join("+")}`;

// the weights of a head, by query and then key
function weightsOf({ map, layer }, head) {
  const { layers, heads, queries, keys, values } = data.maps[map], size = queries.length * keys.length;
  const at = layers.indexOf(layer) * heads.length + heads.indexOf(head);
  return values.subarray(at * size, (at + 1) * size);
}

// ---- the selection: layers, heads, and which text attends to which
const filters = all(".filter"), choice = document.getElementById("choice");
function range(map, side) {
  const { second } = data.maps[map], count = data.maps[map][side].length, text = second ? filters[0].value[side === "queries" ? 0 : 1] : "*";
  return { "*": [0, count], A: [0, second], B: [second, count] }[text];
}
const within = ([from, to], i) => i >= from && i < to;
const bounded = (map, side) => data.maps[map].second && range(map, side)[0] === 0 && range(map, side)[1] > data.maps[map].second;

function select() {
  const chosen = (name) => new Set(all(`input[name=${name}]:checked`, choice).map((input) => input.value));
  const [layers, heads] = [chosen("layers"), chosen("heads")], asked = (name) => choice.querySelector(`input[name=${name}]`);
  for (const node of all(".layer")) node.hidden = Boolean(asked("layers")) && !layers.has(node.dataset.layer);
  for (const node of all(".head")) node.hidden = Boolean(asked("heads")) && !heads.has(node.dataset.head);
  const first = shown()[0];
  if (first && !shown().some((node) => node.tabIndex === 0)) first.tabIndex = 0;
  redraw();
}
const shown = () => heads.filter((node) => !node.hidden && !node.closest(".layer").hidden);
choice.addEventListener("change", (event) => { if (event.target.name) select(); });
choice.addEventListener("click", ({ target }) => {
  const name = target.dataset.every ?? target.dataset.none;
  if (!name) return;
  for (const input of all(`input[name=${name}]`, choice)) input.checked = "every" in target.dataset;
  select();
});
for (const filter of filters) filter.addEventListener("change", () => {
  for (const other of filters) other.value = filter.value;
  redraw();
  if (zoom.open) open();
});

// ---- pictures
function fit(canvas) {
  const ratio = Math.min(devicePixelRatio, 2), { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  return ratio;
}

// Small pictures are summed pixel by pixel, since a canvas takes a second for a layer with long rows.
function thumbnail(canvas, place) {
  const ratio = fit(canvas), { width, height } = canvas, { keys, second } = data.maps[place.map];
  const [from, to] = range(place.map, "queries"), [start, end] = range(place.map, "keys");
  const weights = weightsOf(place, place.heads[0]), thick = Math.max(1, Math.round(ratio)), sum = new Float32Array(width * (height + thick + 2));
  const centre = (i, count) => (height - thick - 1) * (i + 0.5) / count;
  for (let q = from; q < to; q++) for (let k = start; k < end; k++) {
    const weight = weights[q * keys.length + k];
    if (weight < 1e-3) continue;
    let y = centre(q - from, to - from);
    const step = (centre(k - start, end - start) - y) / width;
    for (let x = 0; x < width; x++, y += step) {
      const row = y | 0, part = y - row;
      let at = row * width + x;
      sum[at] += weight * (1 - part);
      for (let more = 1; more < thick; more++) sum[at += width] += weight;
      sum[at + width] += weight * part;
    }
  }
  const dense = ((to - from) * thick) / height; // mean sum of a pixel: higher sums are drawn lighter
  paint(canvas, sum, 2 / Math.max(1, 4 * dense));
  for (const [side, x] of [["queries", 0], ["keys", 0.9]]) {
    if (bounded(place.map, side)) boundary(canvas, x * width, (height * second) / data.maps[place.map][side].length, 0.1 * width, ratio);
  }
}

// a line where the second text starts
function boundary(canvas, x, y, width, ratio) {
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.querySelector(".note")).color;
  context.fillRect(x, Math.round(y), width, ratio);
}

function paint(canvas, sum, gain) {
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const [red, green, blue] = colour(canvas);
  for (let i = 0; i < canvas.width * canvas.height; i++) if (sum[i]) {
    image.data[4 * i] = red;
    image.data[4 * i + 1] = green;
    image.data[4 * i + 2] = blue;
    image.data[4 * i + 3] = 255 * (1 - Math.exp(-gain * sum[i]));
  }
  context.putImageData(image, 0, 0);
}
const colour = (node) => getComputedStyle(node).color.match(/[\d.]+/g).slice(0, 3).map(Number);

// ---- small pictures are drawn when they become visible, for a few milliseconds at a time
const heads = all(".head"), waiting = new Set();
const sight = new IntersectionObserver((entries) => {
  if (!waiting.size) requestAnimationFrame(work);
  for (const { target, isIntersecting } of entries) isIntersecting ? waiting.add(target) : waiting.delete(target);
}, { rootMargin: "150px" });

function work() {
  const until = performance.now() + 12;
  for (const node of waiting) {
    thumbnail(node.firstChild, read(node.hash));
    sight.unobserve(node);
    waiting.delete(node);
    if (performance.now() > until) break;
  }
  if (waiting.size) requestAnimationFrame(work);
}

function redraw() {
  for (const node of heads) {
    sight.unobserve(node);
    sight.observe(node);
  }
  hide();
  if (zoom.open) lines();
}

// ---- a larger picture under the pointer
const preview = document.getElementById("preview");
function show(node) {
  const place = read(node.hash), { keys } = data.maps[place.map], weights = weightsOf(place, place.heads[0]), share = keys.map(() => 0);
  const [from, to] = range(place.map, "queries"), visible = range(place.map, "keys");
  weights.forEach((weight, i) => { if (within([from * keys.length, to * keys.length], i) && within(visible, i % keys.length)) share[i % keys.length] += weight / (to - from); });
  const most = share.indexOf(Math.max(...share)), percent = `${Math.round(100 * share[most])} % of all weight is on`;
  preview.className = "hue";
  preview.style.setProperty("--hue", node.style.getPropertyValue("--hue"));
  preview.lastChild.replaceChildren(element("b", {}, title(place)), element("small", {}, `${percent} ${most} ${keys[most]}`));
  preview.hidden = false;
  const box = node.getBoundingClientRect(), own = preview.getBoundingClientRect(), right = box.right + 8;
  preview.style.left = `${right + own.width < innerWidth ? right : Math.max(8, box.left - own.width - 8)}px`;
  preview.style.top = `${Math.max(8, Math.min(box.top + box.height / 2 - own.height / 2, innerHeight - own.height - 8))}px`;
  thumbnail(preview.firstChild, place);
}
const hide = () => { preview.hidden = true; };

for (const node of heads) {
  node.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(node); });
  node.addEventListener("pointerleave", hide);
  node.addEventListener("focus", () => {
    heads.forEach((other) => { other.tabIndex = other === node ? 0 : -1; });
    if (node.matches(":focus-visible")) show(node);
  });
  node.addEventListener("blur", hide);
}

// ---- overlaid heads of a layer, with their tokens
const zoom = document.getElementById("zoom"), canvas = zoom.querySelector("canvas"), hint = "Point at a token to see only its weights; a click keeps it.";
const together = document.getElementById("together"), layer = document.getElementById("layer");
let place = null, chosen = null, kept = false;

function open() {
  place = read(location.hash);
  if (!place) return zoom.close();
  const { name, queries, keys, layers, heads } = data.maps[place.map];
  hide();
  zoom.querySelector("h2").replaceChildren(title(place), element("small", {}, name));
  const longest = Math.max(...["queries", "keys"].map((side) => range(place.map, side)).map(([from, to]) => to - from));
  const row = Math.max(15, Math.min(26, Math.floor((0.7 * innerHeight) / longest)));
  zoom.style.setProperty("--row", `${row}px`);
  canvas.style.height = `${row * longest}px`;
  layer.replaceChildren(...layers.map((number) => element("option", {}, number)));
  layer.value = place.layer;
  if (together.dataset.map !== String(place.map)) together.replaceChildren(together.firstElementChild, ...heads.map(switched));
  together.dataset.map = place.map;
  for (const input of all("input", together)) input.checked = place.heads.includes(Number(input.value));
  if (!zoom.open) {
    zoom.showModal();
    kept = false;
    chosen = null;
  }
  for (const [side, tokens] of [["queries", queries], ["keys", keys]]) fill(document.getElementById(side), tokens, side);
  mark();
}

// a switch for a head, in its color
function switched(head) {
  const own = heads.find((node) => node.hash === link({ ...place, heads: [head] }));
  return element("label", { class: "chip hue", style: own.getAttribute("style") }, element("input", { type: "checkbox", value: head }), head);
}

// replaces the open heads by others
function become(next) {
  history.replaceState(null, "", link(next));
  open();
}
layer.addEventListener("change", () => become({ ...place, layer: Number(layer.value) }));
together.addEventListener("change", ({ target }) => {
  const on = all("input:checked", together).map((input) => Number(input.value));
  become({ ...place, heads: on.length ? on : [Number(target.value)] });
});
together.addEventListener("dblclick", ({ target }) => {
  const head = target.closest("label")?.querySelector("input").value;
  if (head !== undefined) become({ ...place, heads: [Number(head)] });
});

function fill(list, tokens, side) {
  if (!(list.children.length === tokens.length && tokens.every((token, i) => list.children[i].title === `${i} ${token}`))) {
    chosen = null;
    kept = false;
    list.replaceChildren(...tokens.map((token, i) => element("li", { tabindex: 0, title: `${i} ${token}` },
      element("span", { class: "token" }, token), element("span", { class: "weight" }))));
  }
  [...list.children].forEach((node, i) => {
    node.hidden = !within(range(place.map, side), i);
    node.classList.toggle("second", Boolean(bounded(place.map, side)) && i === data.maps[place.map].second);
  });
  if (chosen?.side === list.id && list.children[chosen.index].hidden) chosen = null;
}

// the weights of the chosen token for every token of the other side: the mean over the heads
function own() {
  const { queries, keys } = data.maps[place.map], maps = place.heads.map((head) => weightsOf(place, head));
  const mean = (at) => maps.reduce((sum, weights) => sum + weights[at], 0) / maps.length;
  return chosen.side === "queries" ? keys.map((_, k) => mean(chosen.index * keys.length + k)) : queries.map((_, q) => mean(q * keys.length + chosen.index));
}

// marks the chosen token and writes its weights next to the others
function mark() {
  const weights = chosen && own(), other = chosen && (chosen.side === "queries" ? "keys" : "queries");
  const largest = chosen && Math.max(...weights.slice(...range(place.map, other)));
  for (const side of ["queries", "keys"]) [...document.getElementById(side).children].forEach((node, i) => {
    const weight = side === other ? weights[i] : 0;
    node.style.setProperty("--weight", Math.sqrt(weight));
    node.lastChild.textContent = side === other ? weight.toFixed(3) : "";
    node.classList.toggle("chosen", Boolean(chosen) && chosen.side === side && chosen.index === i);
    node.classList.toggle("most", side === other && weight === largest);
  });
  document.getElementById("reading").textContent = chosen ? sentence(weights, other) : hint;
  lines();
}

function sentence(weights, side) {
  const others = data.maps[place.map][side], mean = place.heads.length > 1 ? `, mean of ${place.heads.length} heads` : "";
  const first = weights.map((weight, i) => [weight, others[i]]).slice(...range(place.map, side)).sort((one, other) => other[0] - one[0]).slice(0, 3);
  const token = data.maps[place.map][chosen.side][chosen.index], verb = chosen.side === "queries" ? "attends to" : "is attended to by";
  return `“${token}” ${verb} ${first.map(([weight, other]) => `“${other}” ${weight.toFixed(3)}`).join(", ")}${mean}`;
}

function lines() {
  const ratio = fit(canvas), context = canvas.getContext("2d"), { keys } = data.maps[place.map];
  const [from, to] = range(place.map, "queries"), [start, end] = range(place.map, "keys");
  const row = (ratio * parseFloat(canvas.style.height)) / Math.max(to - from, end - start), tints = all(".chip", together);
  const chosenAlone = (q, k) => !chosen || (chosen.side === "queries" ? q : k) === chosen.index;
  const maps = place.heads.map((head) => weightsOf(place, head));
  const largest = chosen ? Math.max(...maps.map((weights) => weights.reduce((most, weight, i) => (chosenAlone(Math.floor(i / keys.length), i % keys.length) ? Math.max(most, weight) : most), 0))) : 1;
  maps.forEach((weights, i) => {
    const tint = tints[data.maps[place.map].heads.indexOf(place.heads[i])];
    context.strokeStyle = getComputedStyle(tint).borderTopColor;
    for (let q = from; q < to; q++) for (let k = start; k < end; k++) {
      const weight = weights[q * keys.length + k];
      if (weight < 1e-3 || !chosenAlone(q, k)) continue;
      context.globalAlpha = weight / largest;
      context.lineWidth = ratio * (chosen ? 1 + (2 * weight) / largest : 1.5);
      context.beginPath();
      context.moveTo(0, (q - from + 0.5) * row);
      context.lineTo(canvas.width, (k - start + 0.5) * row);
      context.stroke();
    }
  });
}

// ---- choosing a token
const tokens = document.getElementById("tokens");
function choose(node) {
  const item = node?.closest("li");
  chosen = item ? { side: item.parentNode.id, index: [...item.parentNode.children].indexOf(item) } : null;
  mark();
}
tokens.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse" && !kept) choose(event.target); });
tokens.addEventListener("pointerleave", () => { if (!kept) choose(null); });
tokens.addEventListener("focusin", (event) => { if (event.target.matches(":focus-visible")) choose(event.target); });
tokens.addEventListener("click", (event) => {
  const item = event.target.closest("li"), again = kept && item?.classList.contains("chosen");
  choose(again ? null : item);
  kept = Boolean(chosen);
});

// ---- moving between heads
function neighbour(node, key) {
  const step = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1, visible = shown();
  if (key === "ArrowLeft" || key === "ArrowRight") return visible[visible.indexOf(node) + step];
  const layers = all(".layer:not([hidden])"), row = node.closest(".layer"), beside = layers[layers.indexOf(row) + step];
  const of = (one) => visible.filter((head) => one.contains(head));
  return beside && of(beside)[Math.min(of(row).indexOf(node), of(beside).length - 1)];
}

// several heads move between layers together
function go(key) {
  const opened = zoom.open && place.heads.length === 1 ? heads.find((node) => node.hash === link(place)) : null;
  const from = zoom.open ? opened : document.activeElement.closest(".head");
  if (!/^Arrow/.test(key) || (zoom.open && document.activeElement.matches("select"))) return false;
  if (zoom.open && !from) {
    const { layers } = data.maps[place.map], next = layers[layers.indexOf(place.layer) + { ArrowDown: 1, ArrowUp: -1 }[key]];
    if (next !== undefined) become({ ...place, layer: next });
    return true;
  }
  const to = from && neighbour(from, key);
  if (to && zoom.open) become(read(to.hash));
  else if (to) to.focus();
  return Boolean(from);
}
addEventListener("keydown", (event) => {
  if (!(event.altKey || event.ctrlKey || event.metaKey) && go(event.key)) event.preventDefault();
});
all("[data-key]").forEach((button) => button.addEventListener("click", () => go(button.dataset.key)));
addEventListener("hashchange", open);
zoom.addEventListener("click", (event) => { if (event.target === zoom) zoom.close(); });
document.getElementById("close").addEventListener("click", () => zoom.close());
zoom.addEventListener("close", () => {
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  heads.find((node) => place && node.hash === link({ ...place, heads: place.heads.slice(0, 1) }))?.focus();
});

// ---- start
Promise.all(data.maps.map(async (map) => { map.values = await unpack(map); })).then(() => {
  redraw();
  open();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", redraw);
});
