"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.body.dataset.root;
const kept = name => { try { return localStorage.getItem(name) ?? ""; } catch { return ""; } };
const keep = (name, value) => { try { if (value) localStorage.setItem(name, value); else localStorage.removeItem(name); } catch {} };

// the contents stick below the header, and other sticky elements below the contents
const contents = document.querySelector("nav.here");
const cut = ["figure.code pre", ".scroll", ".printed"].join();
function measure() {
  const header = document.querySelector("header.site");
  const top = getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0;
  document.documentElement.style.setProperty("--top", `${top}px`);
  document.documentElement.style.setProperty("--under", `${top + (contents?.offsetHeight ?? 0)}px`);
  for (const box of all(cut)) (box.closest("figure.code") ?? box).toggleAttribute("data-cut", box.scrollWidth > box.clientWidth + 1);
}
addEventListener("resize", measure);
addEventListener("load", measure);
measure();

// ---- marks the current section in the contents
if (contents) {
  const links = new Map(all("a", contents).map(link => [document.getElementById(link.hash.slice(1)), link]));
  const mark = () => {
    const line = contents.getBoundingClientRect().bottom + 40;
    const read = [...links.keys()].filter(heading => heading.getBoundingClientRect().top < line).at(-1);
    for (const [heading, link] of links) {
      if (heading !== read) link.removeAttribute("aria-current");
      else if (!link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        contents.scrollLeft = link.offsetLeft - contents.offsetLeft - 20;
      }
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

// ---- light and dark theme, remembered across pages
document.getElementById("theme").addEventListener("click", () => {
  const page = document.documentElement;
  const dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = dark ? "light" : "dark";
  keep("theme", page.dataset.theme);
});

// ---- the known and the wanted framework, remembered across pages
const FRAMEWORKS = all("#know option").map(option => option.value).filter(Boolean);
const frameworkOf = title => FRAMEWORKS.find(name => title.includes(name)) ?? title;
const rank = framework => [kept("know"), kept("want"), ...FRAMEWORKS].indexOf(framework);  // the known framework first, then the wanted one
const DIRECTION = /translate\/(\w+-to-\w+)((?:-\w+)?)\.html$/;
const here = location.pathname.match(DIRECTION)?.[1];  // this page's direction
if (here) keep("pair", here);

function direction() {  // the chosen direction, or empty
  const [know, want] = [kept("know"), kept("want")];
  return know && want && know !== want ? `${know}-to-${want}`.toLowerCase() : "";
}

function arrange() {  // updates everything that follows the choice except tabs and columns, which listen to the event
  const chosen = direction();
  for (const link of all("a[data-direction]")) {
    if (chosen) link.href = link.href.replace(/\w+-to-\w+?(?=[-.])/, chosen);
    if (link.dataset.direction) link.textContent = `${link.dataset.direction} ${kept("know")} to ${kept("want")}`;
  }
  for (const line of all(".yours")) line.hidden = !chosen || chosen === here;
  for (const holder of new Set(all("[data-framework]").map(one => one.parentElement))) {
    holder.append(...[...holder.children].sort((a, b) => rank(frameworkOf(a.dataset.framework)) - rank(frameworkOf(b.dataset.framework))));
  }
}
for (const select of all("#know, #want")) {
  select.value = kept(select.id);
  select.addEventListener("change", () => {
    keep(select.id, select.value);
    keep("tab", kept("want") || kept("know"));
    keep("columns", direction() && `${kept("know")} ${kept("want")}`);
    arrange();
    document.dispatchEvent(new Event("choice"));
  });
}
arrange();

// ---- a copy button on every code block; in console sessions it copies the commands
const said = document.createElement("p");
said.className = "unseen";
said.setAttribute("role", "status");
document.body.append(said);

function copied(blocks) {  // the visible text of the blocks
  return blocks.map(block => {
    const copy = block.cloneNode(true);
    if (copy.querySelector(".gp")) all(".gp, .go", copy).forEach(part => part.remove());
    return copy.textContent.replace(/^\n+|\s+$/g, "");
  }).join("\n") + "\n";
}

function copies(holder, what, blocks) {  // adds the button to the holder
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${what}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copied(blocks()));
      button.textContent = said.textContent = "Copied";
    } catch { button.textContent = said.textContent = "Not copied: blocked by the browser"; }
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  });
  holder.prepend(button);
}
for (const figure of all("figure.code")) copies(figure, figure.querySelector("pre").getAttribute("aria-label"), () => all("code", figure));
for (const head of all(".compare th")) {
  const column = () => all(`td[data-column="${head.dataset.column}"] code`, head.closest("table"));
  copies(head, `the column ${head.querySelector("b").textContent}`, column);
}

// ---- folds the not-covered lines of an output
for (const part of all(".folded")) {
  const button = document.createElement("button");
  const count = part.textContent.trim().split("\n").length;
  button.type = "button";
  button.className = "go fold";
  const fold = hidden => {
    part.hidden = hidden;
    button.setAttribute("aria-expanded", String(!hidden));
    button.textContent = `${hidden ? "Show" : "Hide"} ${count} lines that are not covered`;
  };
  button.addEventListener("click", () => fold(!part.hidden));
  part.before(button, "\n");
  fold(true);
}

// ---- folds the side contents if they are above the text
if (matchMedia("(max-width: 68rem)").matches) for (const contents of all(".contents details")) contents.open = false;

// ---- filters by class: [data-class] lists the classes, [data-filter] is a button for one
{
  const buttons = all("[data-filter]");
  const things = all("[data-class]");
  const filter = chosen => {
    buttons.forEach(button => button.setAttribute("aria-pressed", String(button.dataset.filter === chosen)));
    things.forEach(thing => { thing.hidden = Boolean(chosen) && !thing.dataset.class.split(" ").includes(chosen); });
    all("section:has([data-class])").forEach(section => {
      section.hidden = all("[data-class]", section).every(thing => thing.hidden);
    });
    const shown = things.filter(thing => !thing.hidden).length;
    document.getElementById("filtered").textContent = chosen ? `${shown} of ${things.length}` : "";
  };
  buttons.forEach(button => button.addEventListener("click", () => filter(button.dataset.filter)));
  addEventListener("hashchange", () => {  // a link may lead to a hidden element
    const target = document.getElementById(location.hash.slice(1));
    if (buttons.length && target?.closest("[hidden]")) { filter(""); target.scrollIntoView(); }
  });
}

// ---- tabs: [data-tabs] holds sections with data-tab and shows one; the choice carries over to other pages
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
  function select(chosen, keeping = true) {
    panels.forEach((panel, i) => { panel.hidden = i !== chosen; });
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === chosen));
      button.tabIndex = i === chosen ? 0 : -1;
    });
    if (keeping) keep("tab", frameworkOf(panels[chosen].dataset.tab));
  }
  const usual = () => select(Math.max(0, panels.findIndex(panel => frameworkOf(panel.dataset.tab) === kept("tab"))), false);
  list.append(...buttons);
  holder.prepend(list);
  document.addEventListener("choice", usual);
  usual();
}
all("[data-tabs]").forEach(tabs);
