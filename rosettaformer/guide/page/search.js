"use strict";
// ---- search
const box = document.getElementById("search");
const found = document.getElementById("found");

const RANKS = ["components", "translate", "glossary.html", "tutorials"];  // of pages that match alike; the other sections follow
const CONTRIBUTORS = /tutorials\/add-a-/;  // pages that come after those for users
const FILLERS = new Set("a an the how to do does i my is are what which where can of in for with".split(" "));

function fit(name, query) {  // 4 the whole name, 3 whole parts of it, 2 within it, 0 otherwise
  const text = name.toLowerCase();
  const words = query.split(/\s+/);
  if (text === query || text.replaceAll("_", " ") === query) return 4;
  if (!words.every(word => text.includes(word))) return 0;
  const parts = text.split(/[^\p{L}\p{N}_-]+/u);
  return words.every(word => parts.includes(word)) || text.endsWith("." + query) ? 3 : 2;
}

const without = text => text.split(/\s+/).filter(word => !FILLERS.has(word)).join(" ") || text;
const plain = text => without(text.toLowerCase().replaceAll("-", " "));  // with hyphens or without, it is the same

function understood(typed) {  // the query, the same in other words, and the pages that come first
  const query = typed.trim().toLowerCase().replace(/\(\)$/, "").replace(/[?\s]+$/, "");
  const [short, bare] = [without(query), plain(query)];
  const within = word => ` ${bare} `.includes(` ${word} `);
  let [longest, thing] = ["", null];
  for (const one of window.SYNONYMS) for (const word of one.words) {
    if (within(plain(word)) && plain(word).length > longest.length) [longest, thing] = [plain(word), one];
  }
  const others = thing ? thing.words.map(word => bare.replace(longest, word.toLowerCase())) : [];
  return { query: short, readings: [...new Set([query, short, bare, ...others])], first: longest === bare && thing ? thing.pages : [] };
}

function matches(typed) {
  const { query, readings, first } = understood(typed);
  if (!query) return [];
  const last = direction() || kept("pair");  // the direction that is chosen, or was read last, comes first
  const fits = new Map();  // of the names, most of which stand on several pages
  const fitting = name => {
    if (!fits.has(name)) fits.set(name, Math.max(...readings.map(reading => fit(name, reading))));
    return fits.get(name);
  };
  const results = [];
  for (const [title, path, section, summary, names] of window.INDEX) {
    const best = { score: 0, name: "", fragment: "" };
    const way = path.match(DIRECTION);
    for (const [name, fragment] of way?.[2] ? names : [[title, ""], ...names]) {
      const at = first.findIndex(one => one === path + fragment || (way && fragment && one === fragment));
      const own = fitting(name);
      const used = own && ["#source", "#config", "#arguments"].includes(fragment);  // used there, and no name of it
      const score = at >= 0 ? 9 - at / 9 + own / 99 : own - (used ? 0.5 : 0) - (own && own < 4 && CONTRIBUTORS.test(path) ? 1.5 : 0);
      const titled = best.score > 0 && !best.name && way;  // a framework's name is rather the direction than a topic
      const shorter = score === best.score && score > 0 && name.length < (best.name || title).length && !titled;
      if (score > best.score || shorter) Object.assign(best, { score, name: name === title || !own ? "" : name, fragment });
    }
    const whole = [way?.[2] ? "" : title, summary, ...names.map(([name]) => name)].join(" ").toLowerCase();
    if (!best.score && query.split(/\s+/).every(word => whole.includes(word))) best.score = 1;
    const place = RANKS.indexOf(path.split("/")[0]);
    const order = (place < 0 ? RANKS.length : place) - (way && way[1] === last ? 0.5 : 0) + (way?.[1].startsWith("numpy") ? 0.2 : 0);
    const topic = names.find(([, fragment]) => fragment === best.fragment)?.[0];
    if (best.score) results.push({ title, path, section, summary, order, topic, length: (best.name || title).length, ...best });
  }
  return folded(results.sort((a, b) => b.score - a.score || a.order - b.order || a.length - b.length)).slice(0, 30);
}

function folded(results) {  // one topic in several directions is one result, at the place of the first of them
  const topics = new Map();
  return results.filter(result => {
    const way = result.path.match(DIRECTION);
    if (!way) return true;
    const first = topics.get(way[2] + result.fragment);
    if (first) first.ways.push(result);
    else topics.set(way[2] + result.fragment, Object.assign(result, { ways: [result] }));
    return !first;
  });
}

function near(typed) {  // the terms that share most pairs of letters with what was typed
  const pairs = text => new Set([...text].slice(1).map((letter, i) => text[i] + letter));
  const wanted = pairs(typed.trim().toLowerCase());
  const names = window.INDEX.flatMap(([title, , , , names]) => [title, ...names.map(([name]) => name)]);
  const terms = new Map([...names, ...window.SYNONYMS.flatMap(({ words }) => words)].map(term => [term.toLowerCase(), term]));
  const alike = [...terms].filter(([, term]) => term.length < 40).map(([text, term]) => {
    const own = pairs(text);
    return [2 * [...own].filter(pair => wanted.has(pair)).length / (own.size + wanted.size), term];
  });
  return alike.filter(([share]) => share > 0.4).sort((a, b) => b[0] - a[0]).slice(0, 5).map(([, term]) => term);
}

const CHOICES = "[role=option]:not([aria-disabled])";

function choose(index) {
  const options = all(CHOICES, found);
  options.forEach((option, i) => option.setAttribute("aria-selected", i === index));
  box.setAttribute("aria-activedescendant", options[index]?.id ?? "");
  options[index]?.scrollIntoView({ block: "nearest" });
}

function option(tag, { path, fragment }) {  // an element that can be chosen and leads there
  const made = document.createElement(tag);
  made.setAttribute("role", "option");
  made.dataset.href = root + path + fragment;
  return made;
}

function about(holder, title, name, line) {
  holder.append(title);
  if (name && name !== title) {
    const code = document.createElement("code");
    code.textContent = name;
    holder.append(" ", code);
  }
  const small = document.createElement("small");
  small.textContent = line.filter(Boolean).join(" · ");
  holder.append(small);
}

function entry(result) {
  const only = result.ways?.length > 1 ? result.ways.find(way => direction() && way.path.includes(`/${direction()}`)) : result;
  if (only) {
    const made = option("div", only);
    const heading = result.ways && only.topic ? only.topic : only.title;
    about(made, heading, only.name, [only.section, heading === only.title ? only.summary : only.title]);
    return made;
  }
  const group = document.createElement("div");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `${result.section}: ${result.topic ?? "pages"}`);
  about(group, result.topic ?? result.section, result.topic && result.name, [result.topic && result.section]);
  for (const way of result.ways) {
    const link = option("a", way);
    link.href = link.dataset.href;
    link.tabIndex = -1;
    link.textContent = way.title.replace(/^.*from /i, "");
    group.append(link, " ");
  }
  return group;
}

function nothing() {  // what is offered where nothing is found: the nearest terms, and the glossary
  const none = document.createElement("div");
  none.setAttribute("role", "option");
  none.setAttribute("aria-disabled", "true");
  none.textContent = "Nothing found. Try one of these:";
  const terms = near(box.value).map(term => {
    const made = document.createElement("div");
    made.setAttribute("role", "option");
    made.dataset.query = made.textContent = term;
    return made;
  });
  const glossary = option("div", { path: "glossary.html", fragment: "" });
  glossary.textContent = "The glossary";
  const components = option("div", { path: "components/index.html", fragment: "" });
  components.textContent = "All components, with the frameworks' names";
  return [none, ...terms, glossary, components];
}

function show() {
  const results = matches(box.value);
  const typed = Boolean(box.value.trim());
  found.replaceChildren(...(typed && !results.length ? nothing() : results.map(entry)));
  all("[role=option]", found).forEach((option, i) => { option.id = `found-${i}`; });
  found.hidden = !typed;
  box.setAttribute("aria-expanded", String(typed));
  choose(0);
}

function follow(chosen) {
  if (chosen.dataset.query) { box.value = chosen.dataset.query; show(); }
  else location.href = chosen.dataset.href;
}

found.addEventListener("mousedown", event => event.preventDefault());  // the box keeps the focus, so that a click is one
found.addEventListener("click", event => {
  const chosen = event.target.closest(`div${CHOICES}`);
  if (chosen) follow(chosen);
});
box.addEventListener("input", show);
box.addEventListener("focus", () => { if (box.value.trim()) show(); });
box.addEventListener("blur", () => { found.hidden = true; box.setAttribute("aria-expanded", "false"); });
box.addEventListener("keydown", event => {
  const options = all(CHOICES, found);
  const at = options.findIndex(option => option.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (options.length) choose((at + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length);
  } else if (event.key === "Enter" && options[at]) {
    follow(options[at]);
  } else if (event.key === "Escape") {
    found.hidden = true;
    box.blur();
  }
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) { event.preventDefault(); box.focus(); }
});
