"use strict";
// the columns of the comparison: all chosen ones if there is room, otherwise one at a time as tabs
for (const box of document.querySelectorAll(".equation, .notes > div, .groups li, .drawing")) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // lets the arrow keys scroll it
}
(() => {
  const compares = [...document.querySelectorAll(".compare")];
  if (!compares.length) return;
  const boxes = [...document.querySelectorAll(".columns input")];
  const titles = boxes.map(box => box.parentElement.textContent.trim());
  const frameworks = titles.map(frameworkOf);
  const names = boxes.map(box => box.name);
  const narrow = matchMedia("(max-width: 46rem)");
  const medium = matchMedia("(max-width: 70rem)");
  const large = matchMedia("(min-width: 106rem)");  // wide enough for all columns without breaking most lines

  // tabs, above each table
  const lists = compares.map(compare => {
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Framework");
    const tabs = names.map((name, i) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.id = `${compare.id}-${name}`;
      tab.textContent = titles[i];
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", compare.id);
      tab.addEventListener("keydown", event => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = step ? (i + step + names.length) % names.length : { Home: 0, End: names.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        choose(next);
        tabs[next].focus();
      });
      tab.addEventListener("click", () => { choose(i); });
      return tab;
    });
    list.append(...tabs);
    compare.before(list);
    return list;
  });

  let chosen = 0;  // the tab
  function choose(i) {
    chosen = i;
    keep("tab", frameworks[i]);
    show();
  }
  function columns() {
    if (narrow.matches) return [names[chosen]];
    return names.filter((_, i) => boxes[i].checked);
  }
  function show() {
    const shown = columns();
    compares.forEach((compare, at) => {
      lists[at].hidden = !narrow.matches;
      if (narrow.matches) {
        compare.setAttribute("role", "tabpanel");
        compare.setAttribute("aria-labelledby", `${compare.id}-${shown[0]}`);
      } else {
        compare.removeAttribute("role");
        compare.removeAttribute("aria-labelledby");
      }
      [...lists[at].children].forEach((tab, i) => {
        tab.setAttribute("aria-selected", String(names[i] === shown[0]));
        tab.tabIndex = names[i] === shown[0] ? 0 : -1;
      });
      const table = compare.querySelector("table");
      table.dataset.shown = shown.length;
      for (const cell of table.querySelectorAll("[data-column]")) cell.hidden = !shown.includes(cell.dataset.column);
      for (const row of table.tBodies[0].rows) row.hidden = ![...row.cells].some(cell => !cell.hidden && !cell.classList.contains("none"));
    });
  }
  function arrange() {  // the known framework first, then the wanted one
    const order = names.map((_, i) => i).sort((a, b) => rank(frameworks[a]) - rank(frameworks[b]));
    for (const row of document.querySelectorAll(".compare tr")) {
      const cells = Object.fromEntries([...row.cells].map(cell => [cell.dataset.column, cell]));
      row.append(...order.map(i => cells[names[i]]));
    }
  }
  function start() {
    const wanted = kept("columns").split(" ").filter(name => frameworks.includes(name));
    const usual = medium.matches ? frameworks.slice(0, 2) : large.matches ? frameworks : frameworks.slice(1);
    boxes.forEach((box, i) => { box.checked = (wanted.length ? wanted : usual).includes(frameworks[i]); });
    chosen = Math.max(0, frameworks.indexOf(kept("tab")));
    arrange();
    show();
  }
  boxes.forEach(box => box.addEventListener("change", () => {
    if (!boxes.some(one => one.checked)) box.checked = true;
    keep("columns", frameworks.filter((_, i) => boxes[i].checked).join(" "));
    show();
  }));
  narrow.addEventListener("change", show);
  for (const size of [medium, large]) size.addEventListener("change", start);
  document.addEventListener("choice", start);
  start();
})();
