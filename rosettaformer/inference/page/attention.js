// ---- weights: zlib of the high bytes of all of them and then the low bytes, each a multiple of 1 / levels
async function unpack(map) {
  const bytes = await inflated(map.weights), count = bytes.length / 2;
  return Float32Array.from({ length: count }, (_, i) => (256 * bytes[i] + bytes[count + i]) / data.levels);
}

const title = (place) => `layer ${place.layer} · head ${place.head}`;

// the head that a link names
function read(text) {
  const [map, layer, head] = text.slice(1).split("/").map(Number), known = data.maps[map];
  return known && layer >= 0 && layer < known.layers && head >= 0 && head < known.heads ? { map, layer, head } : null;
}

// the weights of a head, by query and then key
function weightsOf({ map, layer, head }) {
  const { heads, queries, keys, values } = data.maps[map], size = queries.length * keys.length;
  return values.subarray((layer * heads + head) * size, (layer * heads + head + 1) * size);
}

// ---- pictures
function fit(canvas) {
  const ratio = Math.min(devicePixelRatio, 2), { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  return ratio;
}

// A small picture is summed up pixel by pixel, since a canvas takes a second for the lines of a layer of long rows.
function thumbnail(canvas, place) {
  const ratio = fit(canvas), { width, height } = canvas, { queries, keys } = data.maps[place.map];
  const weights = weightsOf(place), thick = Math.max(1, Math.round(ratio)), sum = new Float32Array(width * (height + thick + 2));
  const centre = (i, count) => (height - thick - 1) * (i + 0.5) / count;
  for (let q = 0; q < queries.length; q++) for (let k = 0; k < keys.length; k++) {
    const weight = weights[q * keys.length + k];
    if (weight < 1e-3) continue;
    let y = centre(q, queries.length);
    const step = (centre(k, keys.length) - y) / width;
    for (let x = 0; x < width; x++, y += step) {
      const row = y | 0, part = y - row;
      let at = row * width + x;
      sum[at] += weight * (1 - part);
      for (let more = 1; more < thick; more++) sum[at += width] += weight;
      sum[at + width] += weight * part;
    }
  }
  const dense = (queries.length * thick) / height; // what a pixel sums up on average: more of it is drawn lighter
  paint(canvas, sum, 2 / Math.max(1, 4 * dense));
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

// ---- the small pictures are drawn when they come into sight, some milliseconds at a time
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

// ---- what is pointed at is shown larger
const preview = document.getElementById("preview");
function show(node) {
  const place = read(node.hash), { queries, keys } = data.maps[place.map], weights = weightsOf(place), share = keys.map(() => 0);
  weights.forEach((weight, i) => { share[i % keys.length] += weight / queries.length; });
  const most = share.indexOf(Math.max(...share)), percent = `${Math.round(100 * share[most])} % of all weight is on`;
  preview.className = node.closest("section").className;
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

// ---- one head with its tokens
const zoom = document.getElementById("zoom"), canvas = zoom.querySelector("canvas"), hint = "Point at a token to see its weights alone; a click keeps it.";
let place = null, chosen = null, kept = false;

function open() {
  place = read(location.hash);
  if (!place) return zoom.close();
  const { name, queries, keys } = data.maps[place.map];
  hide();
  zoom.querySelector("h2").replaceChildren(title(place), element("small", {}, name));
  zoom.className = `kind${place.map}`;
  const row = Math.max(15, Math.min(26, Math.floor((0.7 * innerHeight) / Math.max(queries.length, keys.length))));
  zoom.style.setProperty("--row", `${row}px`);
  canvas.style.height = `${row * Math.max(queries.length, keys.length)}px`;
  if (!zoom.open) {
    zoom.showModal();
    kept = false;
    chosen = null;
  }
  for (const [side, tokens] of [["queries", queries], ["keys", keys]]) fill(document.getElementById(side), tokens);
  mark();
}

function fill(list, tokens) {
  if (list.children.length === tokens.length && tokens.every((token, i) => list.children[i].title === `${i} ${token}`)) return;
  chosen = null;
  kept = false;
  list.replaceChildren(...tokens.map((token, i) => element("li", { tabindex: 0, title: `${i} ${token}` },
    element("span", { class: "token" }, token), element("span", { class: "weight" }))));
}

// the weights of the chosen token, one for every token of the other side
function own() {
  const { queries, keys } = data.maps[place.map], weights = weightsOf(place);
  return chosen.side === "queries" ? keys.map((_, k) => weights[chosen.index * keys.length + k]) : queries.map((_, q) => weights[q * keys.length + chosen.index]);
}

// marks the chosen token and writes its weights beside the others
function mark() {
  const weights = chosen && own(), other = chosen && (chosen.side === "queries" ? "keys" : "queries");
  for (const side of ["queries", "keys"]) [...document.getElementById(side).children].forEach((node, i) => {
    const weight = side === other ? weights[i] : 0;
    node.style.setProperty("--weight", Math.sqrt(weight));
    node.lastChild.textContent = side === other ? weight.toFixed(3) : "";
    node.classList.toggle("chosen", Boolean(chosen) && chosen.side === side && chosen.index === i);
    node.classList.toggle("most", side === other && weight === Math.max(...weights));
  });
  document.getElementById("reading").textContent = chosen ? sentence(weights, data.maps[place.map][other]) : hint;
  lines();
}

function sentence(weights, others) {
  const first = weights.map((weight, i) => [weight, others[i]]).sort((one, other) => other[0] - one[0]).slice(0, 3);
  const token = data.maps[place.map][chosen.side][chosen.index], verb = chosen.side === "queries" ? "looks at" : "is looked at by";
  return `“${token}” ${verb} ${first.map(([weight, other]) => `“${other}” ${weight.toFixed(3)}`).join(", ")}`;
}

function lines() {
  const ratio = fit(canvas), context = canvas.getContext("2d"), { queries, keys } = data.maps[place.map], weights = weightsOf(place);
  const row = (ratio * parseFloat(canvas.style.height)) / Math.max(queries.length, keys.length);
  const largest = chosen ? Math.max(...own()) : 1;
  context.strokeStyle = `rgb(${colour(canvas)})`;
  for (let q = 0; q < queries.length; q++) for (let k = 0; k < keys.length; k++) {
    const weight = weights[q * keys.length + k];
    if (weight < 1e-3 || (chosen && (chosen.side === "queries" ? q : k) !== chosen.index)) continue;
    context.globalAlpha = weight / largest;
    context.lineWidth = ratio * (chosen ? 1 + (2 * weight) / largest : 1.5);
    context.beginPath();
    context.moveTo(0, (q + 0.5) * row);
    context.lineTo(canvas.width, (k + 0.5) * row);
    context.stroke();
  }
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

// ---- from head to head
function neighbour(node, key) {
  const step = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  if (key === "ArrowLeft" || key === "ArrowRight") return heads[heads.indexOf(node) + step];
  const layers = all(".layer"), row = node.closest(".layer"), beside = layers[layers.indexOf(row) + step];
  return beside && all(".head", beside)[Math.min(all(".head", row).indexOf(node), all(".head", beside).length - 1)];
}

function go(key) {
  const from = zoom.open ? heads.find((node) => node.hash === location.hash) : document.activeElement.closest(".head");
  const to = from && /^Arrow/.test(key) && neighbour(from, key);
  if (to && zoom.open) {
    history.replaceState(null, "", to.hash);
    open();
  } else if (to) to.focus();
  return Boolean(from) && /^Arrow/.test(key);
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
  heads.find((node) => place ? node.hash === `#${place.map}/${place.layer}/${place.head}` : false)?.focus();
});

// ---- begin
Promise.all(data.maps.map(async (map) => { map.values = await unpack(map); })).then(() => {
  redraw();
  open();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", redraw);
});
