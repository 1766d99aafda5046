"""Facts about a component: parameters in every layout, conformance, known bugs."""

import ast
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reference_numpy import layout, parameters, preset

from ...judge.catalogue import Defect, all_defects
from ...judge.expectation.components import VJP, model_of
from ...judge.expectation.tolerance import MAX_FACTOR
from ...judge.summary import Summary
from .modules import read
from .names import Stock, stock
from .prose import axes_in_words

PORTS = ("torch", "tf", "jax")
# one layer of each kind, with all parameters that a layer can have
CONFIG = preset("tiny", encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True, gated_feed_forward=True,
                query_key_norm="head", norm_placement="sandwich", attention_sinks="all")  # fmt: skip
EXPERTS = CONFIG.replace(experts=4, experts_per_token=2, expert_width=8, router_bias=True, selection_bias=True, shared_width=8,
                         shared_gate=True)  # fmt: skip
HEADS = CONFIG.replace(decoder_layers=0, share_embeddings=False, pooler=True, classes=3, segments=2, masked_language_head=True,
                       max_positions=8, positions="learned")  # fmt: skip
# component -> a config that has it, unless CONFIG does
HAVING = {
    **dict.fromkeys(("pooler", "classifier", "masked_language_head", "position_embedding", "segment_embedding"), HEADS),
    **dict.fromkeys(("router", "mixture_of_experts"), EXPERTS),
}


@dataclass(frozen=True)
class Native:
    """A parameter in a port or layer. change: how the canonical axes become its axes."""

    name: str
    axes: str
    change: str


@dataclass(frozen=True)
class Parameter:
    """A parameter. ports: by framework; stock: by the name of a framework's layer."""

    name: str
    letters: str
    axes: str
    ports: Mapping[str, Native]
    stock: Mapping[str, Native | None]


@dataclass(frozen=True)
class Figure:
    """Results of a port in a dtype: passed and compared cases, and the largest error as a multiple
    of the noise.

    share: that multiple as a percentage of the largest one that passes.
    """

    dtype: str
    port: str
    mode: str
    passed: int
    compared: int
    other: str
    ratio: float
    noise: float

    @property
    def share(self) -> int:
        return 0 if math.isnan(self.ratio) else min(100, round(100 * self.ratio / MAX_FACTOR))


def parameters_of(component: str) -> list[Parameter]:
    """Returns a component's parameters with layouts; empty if it runs a whole model."""
    if model_of(component) != component:
        return []
    try:
        axes = parameters.axes(HAVING.get(component, CONFIG), component)
    except ValueError:
        return []
    tables = {port: table(port) for port in PORTS}
    layers = [entry for entry in stock().get(component, ()) if entry.parameters]
    found = []
    for name, letters in axes.items():
        ports = {port: _native(*layout.native(name, letters, table), letters) for port, table in tables.items()}
        found.append(
            Parameter(
                name,
                letters,
                axes_in_words(letters, w="shared width"),
                ports,
                {layer.name: _stock(layer, name, letters) for layer in layers},
            )
        )
    return found


@functools.cache
def table(port: str) -> layout.Table:
    """Returns a port's weight table, read from its file without importing the framework."""
    tree = ast.parse(read(f"impl_{port}", "weights").text)
    values = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
              and ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) == "TABLE"]  # fmt: skip
    return tuple(eval(compile(ast.Expression(values[0]), "weights.py", "eval"), {"layout": layout}))


def _stock(layer: Stock, name: str, letters: str) -> Native | None:
    return _native(*layer.parameters[name], letters) if name in layer.parameters else None


def _native(name: str, axes: str, letters: str) -> Native:
    # layers with equal head counts and sizes use one letter for g and h, and for e and k
    own, canonical = (re.findall(r"[a-z]", text.translate(str.maketrans("ge", "hk"))) for text in (axes, letters))
    changes = ["transposed"] * (own != canonical) + ["stacked"] * bool(re.search(r"\d", axes)) + ["folded"] * ("(" in axes)
    return Native(name, axes, " and ".join(changes) or "as it is")


def figures(summary: Summary, component: str) -> list[Figure]:
    """Returns the results of a component, one per dtype and port."""
    return [_figure(summary, row, column) for row in summary.rows if row[0] == component for column in summary.columns]


def _figure(summary: Summary, row: tuple[str, str], column: tuple[str, str, str]) -> Figure:
    cell = summary.cell(row, column)
    return Figure(row[1], column[0], column[1], cell.passed, cell.compared, cell.other, cell.ratio, summary.noise(row))


def defects_of(component: str) -> Iterator[Defect]:
    """Yields the known bugs in this component or its gradient."""
    yield from (defect for defect in all_defects().values() if defect.component.removesuffix(VJP) == component)


def number(value: float) -> Any:
    """Formats a number to two digits."""
    return "–" if math.isnan(value) else f"{value:.2g}"
