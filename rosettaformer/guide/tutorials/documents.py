"""Renders Markdown documents of the project as pages of the guide."""

import itertools
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

from ..code import Code, highlighted
from ..site import slug

PACKAGE = __package__.rpartition(".")[0]


class Document:
    """A Markdown page, split into title and body.

    origin: origin of its code blocks. links: other documents -> their pages; links to all other
    documents are removed. names: text in code style -> the page that explains it, linked at its
    first occurrence. body: HTML. headings: (text, fragment) of each section.
    """

    @classmethod
    def of_package(cls, file: str, links: Mapping[str, str], names: Mapping[str, str] | None = None) -> "Document":
        """Reads a file of docs/ that the package includes."""
        return cls(resources.files(PACKAGE).joinpath(file).read_text(encoding="utf-8"), f"docs/{file}", links, names)

    def __init__(self, text: str, origin: str, links: Mapping[str, str], names: Mapping[str, str] | None = None) -> None:
        from markdown_it import MarkdownIt
        from markdown_it.renderer import RendererHTML
        from markupsafe import Markup

        self._origin, self._links = origin, links
        parser = MarkdownIt("commonmark", {"html": False}).enable("table")
        tokens = parser.parse(text)
        self.title, tokens = tokens[1].content, tokens[3:]
        self.headings = [
            (after.content.replace("`", ""), slug(after.content)) for token, after in pairwise(tokens) if token.type == "heading_open"
        ]
        self._mark(tokens)
        renderer = RendererHTML(parser)
        rules: Any = renderer.rules
        rules["fence"] = rules["code_block"] = lambda tokens, index, *_: str(self._code(tokens[index]))
        numbers = itertools.count(1)
        opening = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>\n'
        rules["table_open"] = lambda *_: opening.format(next(numbers))
        rules["table_close"] = lambda *_: "</table></div>\n"
        body = renderer.render(tokens, parser.options, {})
        for name, page in (names or {}).items():
            body = body.replace(code := f"<code>{name}</code>", f'<a href="{page}">{code}</a>', 1)
        self.body = Markup(body)

    def _mark(self, tokens: Sequence[Any]) -> None:
        """Adds fragments to headings and resolves links."""
        for token, after in pairwise(tokens):
            if token.type == "heading_open":
                token.attrSet("id", slug(after.content))
        for token in tokens:
            inner = token.children or []
            kept = []
            for child in inner:
                if child.type == "link_open":
                    href = str(child.attrGet("href"))
                    child.hidden = (target := href if href.startswith("#") else self._links.get(href)) is None
                    child.attrSet("href", target or "")
                    kept.append(child)
                child.hidden = child.hidden or (child.type == "link_close" and kept.pop().hidden)
            token.children = [child for child in inner if not child.hidden] if inner else token.children

    def _code(self, token: Any) -> Any:
        return highlighted(Code(token.content, self._origin, token.info or "console"))
