"use strict";
// ---- topics of one class alone
{
  const found = (selector, root = document) => [...root.querySelectorAll(selector)];
  const buttons = found("[data-filter]");
  const topics = found("[data-class]");
  const filter = chosen => {
    buttons.forEach(button => button.setAttribute("aria-pressed", String(button.dataset.filter === chosen)));
    topics.forEach(topic => { topic.hidden = Boolean(chosen) && topic.dataset.class !== chosen; });
    found("section.topics").forEach(section => {
      const own = found("[data-class]", section);
      section.hidden = own.length > 0 && own.every(topic => topic.hidden);
    });
    const shown = topics.filter(topic => !topic.hidden).length;
    document.getElementById("filtered").textContent = chosen ? `${shown} of ${topics.length} topics` : "";
  };
  buttons.forEach(button => button.addEventListener("click", () => filter(button.dataset.filter)));
  // a link leads to a topic that the filter hides
  addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.closest("[hidden]")) { filter(""); target.scrollIntoView(); }
  });
}
