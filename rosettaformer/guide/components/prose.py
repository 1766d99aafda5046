"""Renders docstrings as HTML: paragraphs, with their equations as MathML."""

import html
import re
from collections.abc import Callable

from .equations import kind, mathml

WORDS = {
    "b": "batch", "t": "target position", "s": "source position", "d": "model width", "h": "query head", "g": "key head", "k": "key size",
    "e": "value size", "f": "feed-forward width", "v": "vocabulary", "p": "position row", "a": "segment", "r": "head width", "c": "class",
    "l": "layer", "n": "new token", "w": "beam", "1": "size 1",
}  # fmt: skip
Link = Callable[[str], str]  # a name in backticks -> its link, or empty


def paragraphs(docstring: str, link: Link, blocks: bool = True) -> str:
    """Returns a docstring as HTML. With `blocks` an equation has its own line if it contains a relation or begins its paragraph."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\n|(?<=[.)])\s+(?=Source: )", docstring)]
    markup = "".join(_paragraph(part, link, blocks) for part in parts if part)
    return markup.replace("<p>Source: ", '<p class="reference">Source: ')


def sentence(text: str, link: Link) -> str:
    """Returns text with its backticks as code and equations."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    return "".join(_span(part, link) if i % 2 else html.escape(part) for i, part in enumerate(parts))


def axes_in_words(letters: str) -> str:
    """Returns `b t d` in words."""
    return ", ".join(WORDS.get(letter, letter) for letter in re.findall(r"[a-z1]", letters))


def _paragraph(text: str, link: Link, blocks: bool) -> str:
    parts = re.split(r"`([^`]+)`", text)
    out: list[str] = []
    line = ""
    for i, part in enumerate(parts):
        own_line = blocks and i % 2 and kind(part) == "equation" and (_relates(part) or not "".join(parts[:i]).strip())
        if not own_line:
            line += _span(part, link) if i % 2 else html.escape(part)
            continue
        out += [_text(line, bool(out)), f'<div class="equation">{mathml(part, True)}</div>']
        line = ""
    out.append(_text(line, len(out) > 0))
    return "".join(out)


def _text(line: str, continues: bool) -> str:
    """Returns the text between equations as a paragraph; dropped if it is only punctuation."""
    line = re.sub(r"^\s*[,;.:]\s*", "", line) if continues else line
    return f"<p>{line.strip()}</p>" if re.search(r"\w", line) else ""


def _relates(span: str) -> bool:
    """Whether an equation contains a relation, and is not just a term."""
    depth = 0
    for character in span:
        depth += (character in "([") - (character in ")]")
        if character in "=<" and not depth:
            return True
    return False


def _span(span: str, link: Link) -> str:
    what = kind(span)
    if what == "equation":
        return mathml(span)
    if what == "axes":
        return f'<code class="axes" title="{html.escape(axes_in_words(span))}">{html.escape(span)}</code>'
    code = f"<code>{html.escape(span)}</code>"
    return f'<a href="{link(span)}">{code}</a>' if link(span) else code
