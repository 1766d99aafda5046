"""The figures of the guide: SVG in the page's colors, with shapes from one table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from reference_numpy import mask

# the sizes of every axis in the figures
SIZES = {"b": 1, "t": 3, "s": 5, "d": 8, "h": 4, "g": 2, "k": 2, "e": 2}
CELL, GAP, TOP, LINE = 18, 46, 44, 17  # pixels: array cell, gap between arrays, space above them, line of text


def shape(axes: str) -> tuple[int, ...]:
    """Returns the shape of an array with these axes, `t k`, in the figures."""
    return tuple(SIZES[axis] for axis in axes.split())


def figures(component: str) -> list[Any]:
    """Returns the figures of a component's page as HTML."""
    return [draw() for draw in FIGURES.get(component, ())]


@dataclass
class _Drawing:
    """An image that grows as it is drawn on. title: alternative text; about: description."""

    name: str
    title: str
    about: str
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """Writes text at a point on its baseline."""
        self._hold(x + (4 if anchor == "middle" else 8) * len(text), y + 6)
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')

    def cells(self, x: float, y: float, shown: np.ndarray) -> None:
        """Draws a matrix. shown: the class of each cell, such as a head's number, `on` or `off`."""
        rows, columns = shown.shape
        for row, column in np.ndindex(rows, columns):
            place = f'x="{x + column * CELL:g}" y="{y + row * CELL:g}" width="{CELL}" height="{CELL}"'
            self.parts.append(f'<rect {place} class="{shown[row, column]}"/>')
        self._hold(x + columns * CELL + 1, y + rows * CELL + 1)

    def array(self, x: float, y: float, name: str, axes: str, kinds: Sequence[str] = ("on",)) -> float:
        """Draws a named matrix. kinds: classes of equal column blocks. Returns its right edge."""
        rows, columns = shape(axes)
        self.cells(x, y, np.tile(np.repeat(kinds, columns // len(kinds)), (rows, 1)))
        middle = x + columns * CELL / 2
        self.text(middle, y - 8, name)
        self.text(middle, y + rows * CELL + LINE, axes, "axes")
        self.text(middle, y + rows * CELL + 2 * LINE, f"{rows} × {columns}", "axes")
        return x + columns * CELL

    def arrow(self, x: float, y: float, to: float, down: float = 0) -> None:
        """Draws an arrow to a point further right."""
        self.parts.append(f'<path d="M{x:g} {y:g} L{to:g} {y + down:g}"/><circle cx="{to:g}" cy="{y + down:g}" r="2.5"/>')

    def arc(self, x: float, to: float, y: float, kind: str) -> None:
        """Draws an arc above two points."""
        height = 8 + (to - x) / 3
        self.parts.append(f'<path class="{kind}" d="M{x:g} {y:g} C{x:g} {y - height:g} {to:g} {y - height:g} {to:g} {y:g}"/>')

    @property
    def markup(self) -> Any:
        """The image as HTML, with title and description for screen readers."""
        from markupsafe import Markup

        head = f'<title id="{self.name}-title">{escape(self.title)}</title><desc id="{self.name}-about">{escape(self.about)}</desc>'
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        return Markup(
            f'<figure class="drawing"><svg {size} role="img" aria-labelledby="{self.name}-title" aria-describedby="{self.name}-about">'
            f"{head}{''.join(self.parts)}</svg><figcaption>{escape(self.about)}</figcaption></figure>"
        )

    def _hold(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def attention() -> Any:
    """Draws the arrays of one head of the attention, from the query to the output."""
    drawing = _Drawing(
        "attention", "Shapes in attention",
        "One head of one sequence. Each query is multiplied by each key, the softmax turns every row into weights, and the weights average "
        f"the values: the result has one row for each of the {SIZES['t']} queries.",
    )  # fmt: skip
    top, x, tallest = TOP, 10.0, max(SIZES["s"], SIZES["t"]) * CELL
    steps = (("query", "t k", "×"), ("keyᵀ", "k s", "÷ √k ="), ("logits", "t s", "softmax"), ("weights", "t s", "×"),
             ("value", "s e", "="), ("output", "t e", ""))  # fmt: skip
    for name, axes, sign in steps:
        width = shape(axes)[1] * CELL
        x += max(0.0, 4.0 * len(name) - width / 2)
        end = drawing.array(x, top + (tallest - shape(axes)[0] * CELL) / 2, name, axes)
        if sign:
            room = GAP + 6 * max(0, len(sign) - 2)
            drawing.text(end + room / 2, top + tallest / 2 + 5, sign, "sign")
            x = end + room
    return drawing.markup


def heads() -> Any:
    """Draws how the width is split into heads, and merged."""
    drawing = _Drawing(
        "heads", "Heads, split and merged",
        f"A projection of width h k = {SIZES['d']} is split into h = {SIZES['h']} heads of k = {SIZES['k']} neighboring features. "
        "Each head attends separately. Their outputs are concatenated.",
    )  # fmt: skip
    kinds = [f"head{head}" for head in range(SIZES["h"])]
    assert shape("d")[0] == SIZES["h"] * SIZES["k"]
    height, step = SIZES["t"] * CELL, SIZES["t"] * CELL + 2 * LINE + TOP
    middle = TOP + (SIZES["h"] - 1) * step / 2
    end = drawing.array(10, middle, "x W", "t d", kinds)
    parts = end + 2 * GAP
    for head, kind in enumerate(kinds):
        y = TOP + head * step
        drawing.arrow(end + 6, middle + height / 2, parts - 8, y - middle)
        last = drawing.array(parts, y, f"head {head}", "t k", [kind])
        drawing.arrow(last + 8, y + height / 2, last + 2 * GAP - 8, middle - y)
    drawing.array(last + 2 * GAP, middle, "merged", "t d", kinds)
    return drawing.markup


def grouped_heads() -> Any:
    """Draws which query heads share a head of keys and values."""
    shared = SIZES["h"] // SIZES["g"]
    drawing = _Drawing(
        "grouped-heads", "Grouped heads",
        f"With g = {SIZES['g']} key and value heads for h = {SIZES['h']} query heads, each key head serves {shared} query heads in a row.",
    )  # fmt: skip
    step = 2 * GAP
    for head in range(SIZES["h"]):
        group = head // shared
        x, middle = 14 + head * step, 14 + (group * shared + (shared - 1) / 2) * step + SIZES["k"] * CELL / 2
        drawing.array(x, TOP, f"query {head}", "t k", [f"head{group}"])
        below = TOP + SIZES["t"] * CELL + 2 * LINE + 10
        drawing.parts.append(f'<path d="M{x + SIZES["k"] * CELL / 2:g} {below:g} L{middle:g} {below + 30:g}"/>')
        if head % shared == 0:
            drawing.array(middle - SIZES["k"] * CELL / 2, below + 30 + LINE + 8, f"key, value {group}", "s k", [f"head{group}"])
    return drawing.markup


def causal() -> Any:
    """Draws both alignments of the causal mask, for more keys than queries."""
    target, source = shape("t s")
    drawing = _Drawing(
        "causal", "Two alignments of the causal mask",
        f"For t = {target} queries (rows) and s = {source} keys (columns). Bottom-right, as in the reference: the last query sees the last "
        "key, so a step with cached keys is a row of the full mask. Top-left: query 0 sees only key 0. For t = s both are equal.",
    )  # fmt: skip
    masks = {"bottom-right": mask.causal_mask(target, source)[0, 0], "top-left": np.tril(np.ones((target, source), bool))}
    for index, (name, seen) in enumerate(masks.items()):
        x = 70 + index * (source * CELL + 2 * GAP + 40)
        drawing.text(x + source * CELL / 2, 18, name)
        for key in range(source):
            drawing.text(x + (key + 0.5) * CELL, TOP - 6, str(key), "axes")
        for query in range(target):
            drawing.text(x - 8, TOP + (query + 0.5) * CELL + 5, f"query {query}", "axes", "end")
        drawing.cells(x, TOP, np.where(seen, "on", "off"))
    return drawing.markup


def rotary() -> Any:
    """Draws which features turn together."""
    size = SIZES["d"]
    drawing = _Drawing(
        "rotary", "Two layouts of rotary pairs",
        f"The {size} features of a head rotate in {size // 2} pairs. Halves: a feature of the first half with one of the second, "
        "as in Hugging Face checkpoints. Neighbors: each even feature with the next, as in Meta's. Shapes do not distinguish the two.",
    )  # fmt: skip
    layouts = {"halves": [(j, j + size // 2) for j in range(size // 2)], "neighbours": [(2 * j, 2 * j + 1) for j in range(size // 2)]}
    for index, (name, pairs) in enumerate(layouts.items()):
        x, y = 14 + index * (size * CELL + 30), 92
        kinds = np.empty((1, size), object)
        for pair, (first, second) in enumerate(pairs):
            kinds[0, [first, second]] = f"head{pair}"
            drawing.arc(x + (first + 0.5) * CELL, x + (second + 0.5) * CELL, y - 2, "")
        drawing.cells(x, y, kinds)
        for feature in range(size):
            drawing.text(x + (feature + 0.5) * CELL, y + CELL + LINE, str(feature), "axes")
        drawing.text(x + size * CELL / 2, 18, name)
    return drawing.markup


FIGURES: dict[str, Iterable[Any]] = {
    "scaled_dot_product_attention": (attention, grouped_heads, causal),
    "multi_head_attention": (heads, grouped_heads),
    "causal_mask": (causal,),
    "rotary_embedding": (rotary,),
}
