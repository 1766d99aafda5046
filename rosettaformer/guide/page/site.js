"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.body.dataset.root;

// ---- light and dark, kept for the other pages
document.getElementById("theme").addEventListener("click", () => {
  const page = document.documentElement;
  const dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", page.dataset.theme); } catch {}
});

// ---- search
const box = document.getElementById("search");
const found = document.getElementById("found");

const RANKS = ["components", "translate", "glossary.html", "tutorials"];  // of pages that match alike; the other sections follow
const DIRECTION = /translate\/\w+-to-\w+\.html$/;
const pair = location.pathname.match(DIRECTION)?.[0];  // the pair of frameworks that was read last comes first
if (pair) try { localStorage.setItem("pair", pair); } catch {}

function fit(name, query, words) {  // 4 the whole name, 3 whole parts of it, 2 within it, 0 otherwise
  const text = name.toLowerCase();
  if (text === query) return 4;
  if (!words.every(word => text.includes(word))) return 0;
  const parts = text.split(/[^\p{L}\p{N}_-]+/u);
  return words.every(word => parts.includes(word)) || text.endsWith("." + query) ? 3 : 2;
}

function matches(typed) {
  const query = typed.trim().toLowerCase().replace(/\(\)$/, "");
  const words = query.split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  let last = null;
  try { last = localStorage.getItem("pair"); } catch {}
  const results = [];
  for (const [title, path, section, summary, names] of window.INDEX) {
    const best = { score: 0, name: "", fragment: "" };
    for (const [name, fragment] of [[title, ""], ...names]) {
      const fits = fit(name, query, words);
      const score = fits && fragment === "#source" ? fits - 0.5 : fits;  // used there, and no name of it
      const titled = best.score > 0 && !best.name && DIRECTION.test(path);  // a framework's name is rather the direction than a topic
      const shorter = score === best.score && score > 0 && name.length < (best.name || title).length && !titled;
      if (score > best.score || shorter) Object.assign(best, { score, name: name === title ? "" : name, fragment });
    }
    const whole = [title, summary, ...names.map(([name]) => name)].join(" ").toLowerCase();
    if (!best.score && words.every(word => whole.includes(word))) best.score = 1;
    const rank = RANKS.indexOf(path.split("/")[0]);
    const order = (rank < 0 ? RANKS.length : rank) - (path === last ? 0.5 : 0);
    const topic = names.find(([, fragment]) => fragment && fragment === best.fragment)?.[0];
    if (best.score) results.push({ title, path, section, summary, order, topic, length: (best.name || title).length, ...best });
  }
  return folded(results.sort((a, b) => b.score - a.score || a.order - b.order || a.length - b.length)).slice(0, 30);
}

function folded(results) {  // one topic on several directions is one result, at the place of the first of them
  const topics = new Map();
  return results.filter(result => {
    if (!DIRECTION.test(result.path)) return true;
    const first = topics.get(result.fragment);
    if (first) first.ways.push(result);
    else topics.set(result.fragment, Object.assign(result, { ways: [result] }));
    return !first;
  });
}

function choose(index) {
  const options = all("[role=option]", found);
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
  if (!(result.ways?.length > 1)) {
    const made = option("div", result);
    about(made, result.title, result.name, [result.section, result.summary]);
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
    link.textContent = way.title.replace(/^From /, "");
    group.append(link, " ");
  }
  return group;
}

function show() {
  const results = matches(box.value);
  found.replaceChildren(...results.map(entry));
  all("[role=option]", found).forEach((option, i) => { option.id = `found-${i}`; });
  if (box.value.trim() && !results.length) {
    const none = document.createElement("div");
    none.setAttribute("role", "option");
    none.setAttribute("aria-disabled", "true");
    none.textContent = "nothing found";
    found.append(none);
  }
  found.hidden = !box.value.trim();
  box.setAttribute("aria-expanded", String(!found.hidden));
  choose(0);
}

found.addEventListener("mousedown", event => event.preventDefault());  // the box keeps the focus, so that a click is one
found.addEventListener("click", event => {
  const chosen = event.target.closest("[role=option]");
  if (chosen?.tagName === "DIV" && chosen.dataset.href) location.href = chosen.dataset.href;
});
box.addEventListener("input", show);
box.addEventListener("focus", () => { if (box.value.trim()) show(); });
box.addEventListener("blur", () => { found.hidden = true; box.setAttribute("aria-expanded", "false"); });
box.addEventListener("keydown", event => {
  const options = all("[role=option]", found);
  const at = options.findIndex(option => option.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (options.length) choose((at + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length);
  } else if (event.key === "Enter" && options[at]?.dataset.href) {
    location.href = options[at].dataset.href;
  } else if (event.key === "Escape") {
    found.hidden = true;
    box.blur();
  }
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) { event.preventDefault(); box.focus(); }
});

// ---- tabs: [data-tabs] holds sections with data-tab, one of which is shown; the same name is chosen on every page
function tabs(holder) {
  const panels = all(":scope > [data-tab]", holder);
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", holder.dataset.tabs);
  const buttons = panels.map((panel, i) => {
    const button = document.createElement("button");
    panel.id ||= `panel-${holder.dataset.tabs.replace(/\W+/g, "-")}-${i}`;
    button.id = `tab-${panel.id}`;
    button.type = "button";
    button.textContent = panel.dataset.tab;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", button.id);
    button.addEventListener("click", () => select(i));
    button.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step ? (i + step + buttons.length) % buttons.length : { Home: 0, End: buttons.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      select(next);
      buttons[next].focus();
    });
    return button;
  });
  function select(chosen, keep = true) {
    panels.forEach((panel, i) => { panel.hidden = i !== chosen; });
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === chosen));
      button.tabIndex = i === chosen ? 0 : -1;
    });
    if (keep) try { localStorage.setItem("tab", panels[chosen].dataset.tab); } catch {}
  }
  let kept = null;
  try { kept = localStorage.getItem("tab"); } catch {}
  list.append(...buttons);
  holder.prepend(list);
  select(Math.max(0, panels.findIndex(panel => panel.dataset.tab === kept)), false);
}
all("[data-tabs]").forEach(tabs);
