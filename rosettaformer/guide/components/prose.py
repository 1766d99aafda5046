"""Renders docstrings as HTML paragraphs, with equations as MathML."""

import html
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from .equations import kind, mathml

WORDS = {
    "b": "batch", "t": "target position", "s": "source position", "d": "model width", "h": "query head", "g": "key head", "k": "key size",
    "e": "value size", "f": "feed-forward width", "v": "vocabulary", "p": "position row", "a": "segment", "r": "head width", "c": "class",
    "l": "layer", "n": "new token", "w": "beam", "x": "expert", "m": "expert width", "1": "size 1",
}  # fmt: skip
ASIDE = ("Half-precision ", "Computed in ", "Errors ", "Arguments ", "Returns ")  # starts of sentences that do not describe the component
Link = Callable[[str], str]  # a name in backticks -> its link, or empty


class Told(NamedTuple):
    """A docstring split into its lead, further facts, and the source.

    Sentences about single arguments and errors are dropped, since the table of arguments has them.
    """

    lead: str
    facts: tuple[str, ...]
    source: str


def told(docstring: str, arguments: Collection[str]) -> Told:
    """Splits a docstring into its parts."""
    text, _, source = " ".join(docstring.split()).partition(" Source: ")
    lead: list[str] = []
    facts: list[str] = []
    for sentence in sentences(text):
        about = re.match(r"(?:\w+(?:, | and ))*(\w+): ", sentence)
        if sentence.startswith("Raises ") or (about and about[1] in arguments):
            continue
        spans = re.findall(r"`([^`]+)`", sentence)
        equation = any(kind(span) == "equation" and _relates(span) for span in spans)
        aside = sentence.startswith(ASIDE) or sentence.partition(" ")[0] in arguments
        (lead if equation or (len(lead) < 2 and not aside) else facts).append(sentence)
    return Told(" ".join(lead), tuple(facts), f"Source: {source}" if source else "")


def sentences(text: str) -> list[str]:
    """Splits a text into sentences, but not after abbreviations such as `et al.`."""
    joined = " ".join(text.split())
    return [one for one in re.split(r"(?<=[^.][a-z0-9A-Z`)\]]\.) (?=[A-Z`a-z(])(?!al\.)", joined) if one]


def paragraphs(docstring: str, link: Link, blocks: bool = True) -> str:
    """Returns a docstring as HTML. blocks: puts main equations on separate lines."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\n|(?<=[.)])\s+(?=Source: )", docstring)]
    markup = "".join(_paragraph(part, link, blocks) for part in parts if part)
    return markup.replace("<p>Source: ", '<p class="reference">Source: ')


def sentence(text: str, link: Link) -> str:
    """Returns text with its backticks as code and equations."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    return "".join(_span(part, link) if i % 2 else html.escape(part) for i, part in enumerate(parts))


def axes_in_words(letters: str, **others: str) -> str:
    """Returns `b t d` in words. others: of letters that mean something else here."""
    words = {**WORDS, **others}
    return ", ".join(words.get(letter, letter) for letter in re.findall(r"[a-z1]", letters))


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
    """Returns whether an equation contains a relation and is not just a term."""
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
