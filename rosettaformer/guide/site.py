"""Writes the site as a folder: pages, shared assets and the search index. It works offline."""

import html
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..common import pages
from ..common.atomic import replacing
from ..common.atomic import require as writable
from .blocks import prose
from .code import highlighted, styles, ticked

# sections with an index, in navigation order: folder -> title
SECTIONS = {
    "components": "Components",
    "translate": "From X to Y",
    "defects": "Known bugs",
    "models": "Models",
    "tutorials": "Tutorials",
    "evidence": "Evidence",
}
GLOSSARY = "glossary.html"
STYLES = (
    "shared.css", "site.css", "home.css", "components.css", "translation.css", "defects.css", "models.css", "tutorials.css", "glossary.css",
)  # fmt: skip
SCRIPTS = ("site.js", "matching.js", "search.js", "components.js")
TAG = re.compile(r"<[a-z][^<>]*>")
HEADING = re.compile(r'<h2 id="([^"]+)"[^>]*>(.*?)</h2>', re.DOTALL)
REMARK = re.compile(r"<small>.*?</small>", re.DOTALL)
OWN_CONTENTS = re.compile(r'<nav class="(?:contents|steps)"')
ATTRIBUTE = re.compile(r'\s(href|src|id)="([^"]*)"')


@dataclass(frozen=True)
class Page:
    """One page.

    path: relative to the site's root, such as `components/layer_norm.html`. template: a file in the
    folder `page` that extends `site.html.jinja`. values: the template's variables. summary: one
    line for lists and search results. names: further search terms, native framework names first,
    each a string or `("nn.LayerNorm", "#torch")` with the fragment of a section.
    """

    path: str
    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    names: tuple[str | tuple[str, str], ...] = ()

    @property
    def section(self) -> str:
        """The page's folder; empty for the home page."""
        return posixpath.dirname(self.path)


def write(out: Path, site: Iterable[Page], about: Mapping[str, str]) -> list[Page]:
    """Writes the pages and then replaces the folder `out`. about: entries of the page footer.

    Raises ValueError if the folder contains anything but a site, two pages have the same path, or a
    link is broken.
    """
    require(out)
    made = list(site)
    paths = Counter(page.path for page in made)
    if doubled := [path for path, count in paths.items() if count > 1]:
        raise ValueError(f"several pages have the same path: {', '.join(sorted(doubled))}")
    environment = pages.environment(__package__)
    environment.filters["ticked"] = ticked
    with replacing(out, folder=True) as folder:
        (folder / "assets").mkdir(parents=True)
        shared = "".join(environment.loader.get_source(environment, name)[0] for name in STYLES)
        (folder / "assets" / "site.css").write_text(shared + styles(), encoding="utf-8")
        for name in SCRIPTS:
            (folder / "assets" / name).write_text(environment.loader.get_source(environment, name)[0], encoding="utf-8")
        index = {"INDEX": _index(made), "SYNONYMS": synonyms()}
        (folder / "assets" / "index.js").write_text(
            "".join(f"window.{name} = {json.dumps(value, ensure_ascii=False)};\n" for name, value in index.items()), encoding="utf-8"
        )
        chapters: dict[str, list[Page]] = {}
        for page in made:
            chapters.setdefault(page.section, []).append(page)
        for page in made:
            file = folder / page.path
            file.parent.mkdir(parents=True, exist_ok=True)
            values = {"page": page, "pages": made, "page_paths": paths, "sections": SECTIONS, "about": about, "code": highlighted}
            values |= {"to": _linking(page), "slug": slug, "word": _wording(page, made), "headings": headings}
            values |= {"neighbours": _neighbours(page, chapters[page.section])}
            file.write_text(environment.get_template(page.template).render(values | dict(page.values)), encoding="utf-8")
        if broken := dangling(folder):
            raise ValueError("broken links:\n" + "\n".join(f"  {page}: {link}" for page, link in broken))
    return made


def require(out: Path) -> None:
    """Raises ValueError if replacing `out` would delete files that are not a site."""
    writable(out, folder=True)
    if out.is_dir() and any(out.iterdir()) and not (out / "assets" / "index.js").is_file():
        raise ValueError(f"{out} contains files that are not a guide; choose a new or empty folder, or an existing guide")


def dangling(folder: Path) -> list[tuple[str, str]]:
    """Returns a site's broken links as (page, link). Links to other hosts are not checked."""
    texts = {file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in folder.rglob("*.html")}
    read = {path: [pair for tag in TAG.findall(text) for pair in ATTRIBUTE.findall(tag)] for path, text in texts.items()}
    ids = {path: {html.unescape(value) for name, value in found if name == "id"} for path, found in read.items()}
    broken = []
    for path, found in read.items():
        for link in [html.unescape(value) for name, value in found if name != "id"]:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, fragment = unquote(link).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            there = target in read if target.endswith(".html") else (folder / target).is_file()
            if not there or (fragment and fragment not in ids[target]):
                broken.append((path, link))
    return broken


def headings(body: str) -> list[tuple[str, str]]:
    """Returns the second-level headings of a page: (id, text without <small>).

    Returns an empty list if there are fewer than three, or if the page has its own contents.
    """
    if OWN_CONTENTS.search(body):
        return []
    found = [(id, html.unescape(TAG.sub("", REMARK.sub("", text))).strip()) for id, text in HEADING.findall(body)]
    return found if len(found) > 2 else []


def _neighbours(page: Page, chapter: list[Page]) -> tuple[Page | None, Page | None]:
    """Returns the previous and next page in the chapter; none for its index."""
    if not page.section or page.path.endswith("/index.html"):
        return None, None
    group = [one for one in chapter if not one.path.endswith("/index.html")]
    place = group.index(page)
    return (group[place - 1] if place else None), (group[place + 1] if place + 1 < len(group) else None)


def slug(heading: str) -> str:
    """Returns the fragment of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def synonyms() -> list[dict[str, list[str]]]:
    """Returns the synonyms for the search: `words`, and the `pages` that come first for them."""
    text = (resources.files(__package__) / "synonyms.txt").read_text(encoding="utf-8")
    things = [re.findall(r"^(\w+): (.*(?:\n    .*)*)", part, re.MULTILINE) for part in text.split("\n\n")[1:]]
    return [{name: prose(value).split("; ") for name, value in thing} for thing in things]


def _index(made: Iterable[Page]) -> list[list[Any]]:
    """Returns the search index: [title, path, section, summary, [[name, fragment], ...]]."""
    return [
        [page.title, page.path, SECTIONS.get(page.section, ""), page.summary, [(n, "") if isinstance(n, str) else n for n in page.names]]
        for page in made
    ]


def _linking(page: Page) -> Callable[[str], str]:
    """Returns a function that maps a page's path to a link relative to this page."""
    return lambda path: html.escape(posixpath.relpath(path, page.section or "."), quote=True)


def _wording(page: Page, made: Iterable[Page]) -> Callable[..., Any]:
    """Returns a function that links text to a glossary term, if there is a glossary."""
    from markupsafe import Markup, escape

    glossary = _linking(page)(GLOSSARY) if any(one.path == GLOSSARY for one in made) else ""

    def word(text: str, term: str = "") -> Any:
        return Markup(f'<a class="word" href="{glossary}#{slug(term or text)}">{escape(text)}</a>') if glossary else text

    return word
