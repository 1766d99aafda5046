"""What is known of a component beside its source: arguments, parameters in every layout, conformance, defects."""

import ast
import functools
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reference_numpy import layout, parameters, preset

from ...conformance.defects import Defect, all_defects
from ...conformance.reference.components import VJP, function_of, model_of
from ...conformance.reference.tolerance import MAX_FACTOR
from ...conformance.report.summary import Summary
from .modules import read
from .names import Stock, stock
from .prose import axes_in_words

__all__ = ["Argument", "Figure", "Native", "Parameter", "arguments", "defects_of", "errors", "figures", "parameters_of"]

PORTS = ("torch", "tf", "jax")
# one layer of each kind, with all parameters that a layer can have
CONFIG = preset("tiny", encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True)
HEADS = CONFIG.replace(decoder_layers=0, share_embeddings=False, pooler=True, classes=3, segments=2, masked_language_head=True,
                       max_positions=8, positions="learned")  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """An argument of the reference's function. axes: the letters that its name ends in, in words; default: as Python writes it."""

    name: str
    letters: str
    axes: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Native:
    """A parameter as a port or a framework's layer has it. change: what becomes of the canonical axes."""

    name: str
    axes: str
    change: str


@dataclass(frozen=True)
class Parameter:
    """A parameter. ports: by framework; stock: by the name of a layer of a framework."""

    name: str
    letters: str
    axes: str
    ports: Mapping[str, Native]
    stock: Mapping[str, Native | None]


@dataclass(frozen=True)
class Figure:
    """How a port conforms in a dtype: cases that passed and that were compared, the largest error as a multiple of plain NumPy's own, and
    that. share: of the largest multiple that passes, in percent."""

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


def arguments(component: str) -> list[Argument]:
    """The arguments of the reference's function, and what its docstring says of them."""
    function = function_of(component)
    text = " ".join((inspect.getdoc(function) or "").split())
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        letters = " ".join(found_axes[1]) if (found_axes := re.search(r"_([a-z1]{1,5})$", name)) and set(found_axes[1]) <= set(AXES) else ""
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        default = "float64" if "float64" in default else default
        found.append(Argument(name, letters, axes_in_words(letters), default, _meaning(name, text)))
    return found


AXES = "btsdhgkefvparcnlw1"


def _meaning(name: str, text: str) -> str:
    """What a docstring says of an argument: from `name:` to the end of the sentence, or to what is said of the next."""
    start = re.search(rf"(?:^|[.;,] |`\. )(?:\w+(?:, | and ))*{name}(?:(?:, | and )\w+)*: ", text)
    if not start:
        return ""
    rest = re.split(r"(?<=[^.][a-z0-9`)\d])\. (?=[A-Z]|\w+(?:, \w+| and \w+)*: )|; (?=\w+: )", text[start.end() :])[0]
    return rest.rstrip(".")


def errors(component: str) -> list[str]:
    """What the docstring says that it raises."""
    text = " ".join((inspect.getdoc(function_of(component)) or "").split())
    return re.findall(r"Raises [^.]*(?:\.\w[^.]*)*\.", text)


def parameters_of(component: str) -> list[Parameter]:
    """The parameters of a component with their layouts; of what runs a whole model none, since they are the model's."""
    if model_of(component) != component:
        return []
    try:
        axes = parameters.axes(HEADS if component in ("pooler", "classifier", "masked_language_head", "position_embedding",
                                                      "segment_embedding") else CONFIG, component)  # fmt: skip
    except ValueError:
        return []
    tables = {port: table(port) for port in PORTS}
    layers = [entry for entry in stock().get(component, ()) if entry.parameters]
    found = []
    for name, letters in axes.items():
        ports = {port: _native(*layout.native(name, letters, table), letters) for port, table in tables.items()}
        found.append(
            Parameter(name, letters, axes_in_words(letters), ports, {layer.name: _stock(layer, name, letters) for layer in layers})
        )
    return found


@functools.cache
def table(port: str) -> layout.Table:
    """The weight table of a port. It is read from its file, since importing that would load the framework."""
    tree = ast.parse(read(f"impl_{port}", "weights").text)
    values = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
              and ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) == "TABLE"]  # fmt: skip
    return tuple(eval(compile(ast.Expression(values[0]), "weights.py", "eval"), {"layout": layout}))


def _stock(layer: Stock, name: str, letters: str) -> Native | None:
    return _native(*layer.parameters[name], letters) if name in layer.parameters else None


def _native(name: str, axes: str, letters: str) -> Native:
    own = re.findall(r"[a-z]", axes)
    changes = ["transposed"] * (own != letters.split()) + ["stacked"] * bool(re.search(r"\d", axes)) + ["folded"] * ("(" in axes)
    return Native(name, axes, " and ".join(changes) or "as it is")


def figures(summary: Summary, component: str) -> list[Figure]:
    """The figures of a component, a row for each dtype and port."""
    return [_figure(summary, row, column) for row in summary.rows if row[0] == component for column in summary.columns]


def _figure(summary: Summary, row: tuple[str, str], column: tuple[str, str, str]) -> Figure:
    cell = summary.cell(row, column)
    return Figure(row[1], column[0], column[1], cell.passed, cell.compared, cell.other, cell.ratio, summary.noise(row))


def defects_of(component: str) -> Iterator[Defect]:
    """The defects of the catalogue that are mistakes in this component, or in its gradient."""
    yield from (defect for defect in all_defects().values() if defect.component.removesuffix(VJP) == component)


def number(value: float) -> Any:
    """A number with two digits."""
    return "–" if math.isnan(value) else f"{value:.2g}"
