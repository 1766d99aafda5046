"use strict";
// ---- search
const box = document.getElementById("search");
const found = document.getElementById("found");

const CHOICES = "[role=option]:not([aria-disabled])";

function choose(index) {
  const options = all(CHOICES, found);
  options.forEach((option, i) => option.setAttribute("aria-selected", i === index));
  box.setAttribute("aria-activedescendant", options[index]?.id ?? "");
  options[index]?.scrollIntoView({ block: "nearest" });
}

function option(tag, { path, fragment }) {  // a selectable element that links there
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
  const only = result.ways?.length > 1 ? result.ways.find(way => direction() && !way.added && way.path.includes(`/${direction()}`)) : result;
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

function nothing() {  // suggestions if nothing is found: the nearest terms and the glossary
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

found.addEventListener("mousedown", event => event.preventDefault());  // keep the focus in the box, so that a click registers
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
