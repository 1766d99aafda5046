"""Writes the site as a folder of files: pages from templates, what they share, and the search index. Nothing in it needs a network."""

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

# the sections of the site in the order of its navigation, where they have an index: folder -> title
SECTIONS = {
    "components": "Components",
    "translate": "From X to Y",
    "defects": "Defects",
    "models": "Models",
    "tutorials": "Tutorials",
    "evidence": "Evidence",
}
GLOSSARY = "glossary.html"  # the glossary's page, to which the others link
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

    path: relative to the site's root, such as `components/layer_norm.html`. template: a file of the folder `page`, which extends
    `site.html.jinja`. values: what the template is given. summary: a line for lists and the search. names: other words by which the search
    finds it, native names of the frameworks first, each by itself or with the fragment of the section about it: `("nn.LayerNorm",
    "#torch")`.
    """

    path: str
    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    names: tuple[str | tuple[str, str], ...] = ()

    @property
    def section(self) -> str:
        """The folder that it is in; empty for the home page."""
        return posixpath.dirname(self.path)


def write(out: Path, site: Iterable[Page], about: Mapping[str, str]) -> list[Page]:
    """Writes the pages into the folder `out`, which is replaced when all are written. about: what the page footers say about this run.

    Raises ValueError if the folder holds something that is not a site, two pages have the same path, or a link leads nowhere.
    """
    require(out)
    made = list(site)
    paths = Counter(page.path for page in made)
    if doubled := [path for path, count in paths.items() if count > 1]:
        raise ValueError(f"pages must have paths of their own; got {', '.join(sorted(doubled))} twice")
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
        for page in made:
            file = folder / page.path
            file.parent.mkdir(parents=True, exist_ok=True)
            values = {"page": page, "pages": made, "page_paths": paths, "sections": SECTIONS, "about": about, "code": highlighted}
            values |= {"to": _linking(page), "slug": slug, "word": _wording(page, made), "headings": headings}
            values |= {"neighbours": _neighbours(page, made)}
            file.write_text(environment.get_template(page.template).render(values | dict(page.values)), encoding="utf-8")
        if broken := dangling(folder):
            raise ValueError("links that lead nowhere:\n" + "\n".join(f"  {page}: {link}" for page, link in broken))
    return made


def require(out: Path) -> None:
    """Raises ValueError if a site cannot replace `out`, since other contents of the folder would be lost."""
    writable(out, folder=True)
    if out.is_dir() and any(out.iterdir()) and not (out / "assets" / "index.js").is_file():
        raise ValueError(f"{out} must be a new or empty folder, or one that holds a guide; it holds other files")


def dangling(folder: Path) -> list[tuple[str, str]]:
    """Returns the links of a site that lead nowhere: (page, link). Those to other hosts are not followed."""
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
    """Returns the second-level headings of a page: (id, text without remarks in small type).

    Returns none if there are fewer than three, and if the page has contents of its own.
    """
    if OWN_CONTENTS.search(body):
        return []
    found = [(id, html.unescape(TAG.sub("", REMARK.sub("", text))).strip()) for id, text in HEADING.findall(body)]
    return found if len(found) > 2 else []


def _neighbours(page: Page, made: list[Page]) -> tuple[Page | None, Page | None]:
    """Returns the pages before and after it in its section; the section's index has none."""
    if not page.section or page.path.endswith("/index.html"):
        return None, None
    group = [one for one in made if one.section == page.section and not one.path.endswith("/index.html")]
    place = group.index(page)
    return (group[place - 1] if place else None), (group[place + 1] if place + 1 < len(group) else None)


def slug(heading: str) -> str:
    """Returns the fragment of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def synonyms() -> list[dict[str, list[str]]]:
    """Returns what the search takes for the same thing: its `words`, and the `pages` that come first for them."""
    text = (resources.files(__package__) / "synonyms.txt").read_text(encoding="utf-8")
    things = [re.findall(r"^(\w+): (.*(?:\n    .*)*)", part, re.MULTILINE) for part in text.split("\n\n")[1:]]
    return [{name: prose(value).split("; ") for name, value in thing} for thing in things]


def _index(made: Iterable[Page]) -> list[list[Any]]:
    """Returns what the search reads: [title, path, section, summary, [[name, fragment], ...]] for every page."""
    return [
        [page.title, page.path, SECTIONS.get(page.section, ""), page.summary, [(n, "") if isinstance(n, str) else n for n in page.names]]
        for page in made
    ]


def _linking(page: Page) -> Callable[[str], str]:
    """Returns a function that maps a page's path to the link to it from this page."""
    return lambda path: html.escape(posixpath.relpath(path, page.section or "."), quote=True)


def _wording(page: Page, made: Iterable[Page]) -> Callable[..., Any]:
    """Returns a function that links a text to its term in the glossary (by default the text itself), if the site has a glossary."""
    from markupsafe import Markup, escape

    glossary = _linking(page)(GLOSSARY) if any(one.path == GLOSSARY for one in made) else ""

    def word(text: str, term: str = "") -> Any:
        return Markup(f'<a class="word" href="{glossary}#{slug(term or text)}">{escape(text)}</a>') if glossary else text

    return word
