"""A proposal in the making: what is known about a module, what is open, and its parts and config by one selection of what is open."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig

from ...common.modules import BACKENDS
from ..catalogue import Alteration
from .calling import Call
from .construction import Construction
from .matching import Matching, Part, Row
from .user_code import Source

Selection = Mapping[str, Any]  # values by the names of choices; any other choice has its first value
_FIELDS = TransformerConfig.__dataclass_fields__


@dataclass(frozen=True)
class Choice:
    """An open choice: its name, its values as they are written, the likeliest first; and which parts of a model show it."""

    name: str
    values: tuple[Any, ...]
    shows_in: str  # one of `trying.GROUPS`
    read: bool = False  # whether the first value was read from the module, so that no other is likely if no case tells them apart

    def value(self, selection: Selection) -> Any:
        return selection.get(self.name, self.values[0])

    @property
    def argument(self) -> str:
        """The argument of a call that it is about; empty if it is about none."""
        return self.name.removeprefix("argument ") if self.name.startswith("argument ") else ""


@dataclass
class Draft:
    """What is known about a module.

    sizes: at which it was built. decoder_only: a decoder without an encoder. fixed: the config fields that it fixes. missing: the canonical
    parameters without a tensor, with their axes. output: the expression for its output, such as `output[0]`. choices: what is open;
    `selection` the values, `tried` those decided by trying, in words, `nearest` those with values that are only the nearest, `undecided`
    the others, each with a remark. form: the form in which it returns the logits. deviation: of the module's norms from the reference's, if
    it is a known one. verified: whether the norms and tables around the layers give the reference's numbers. dtypes: those in which it
    runs; refused: why not in float64. failure: why it does not run at all. gives_vectors: whether it returns its last layer's vectors
    instead of logits.
    """

    source: Source
    component: str
    framework: str
    construction: Construction
    sizes: Mapping[str, Any]
    match: Matching
    call: Call
    decoder_only: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    output: str = "output"
    choices: list[Choice] = field(default_factory=list)
    selection: dict[str, Any] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)
    nearest: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    form: str = ""
    deviation: Alteration | None = None
    verified: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32")
    refused: str = ""
    failure: str = ""
    gives_vectors: bool = False

    @property
    def adapter(self) -> str:
        """The framework as a port names it."""
        return BACKENDS[self.framework]

    @property
    def is_modern(self) -> bool:
        """Whether it is a part of a decoder since Llama: its positions rotate, or its norms have no offset."""
        return "norm_offset" in self.fixed or "rotary_fraction" in self.fixed or "gated_feed_forward" in self.fixed

    @property
    def places_norms(self) -> bool:
        """Whether it is open if the norms beside the layers come before or after them."""
        return any(choice.name == "final_norm" for choice in self.choices)

    @property
    def shared(self) -> list[str]:
        """The kernels that all heads share."""
        return [name for name, row in self.match.root.named() if "i" in row.axes[0]]

    def config(self, selection: Selection) -> dict[str, Any]:
        """Returns the config fields that the port fixes, by this selection."""
        found = self.fixed | {choice.name: choice.value(selection) for choice in self.choices if choice.name in _FIELDS}
        return found | ({"embedding_norm": not found["final_norm"]} if self.places_norms else {})

    def given(self, selection: Selection) -> dict[str, str]:
        """Returns what each argument of the module is given, by this selection."""
        return self.call.text({choice.argument: choice.value(selection) for choice in self.choices if choice.argument})

    def root(self, selection: Selection) -> Part:
        """Returns the parts, their names and axes by this selection."""
        root = _chosen(self.match.root, {choice.name: choice.value(selection) for choice in self.choices})
        return _placed(root, self.config(selection)["final_norm"]) if self.places_norms else root


def _chosen(part: Part, values: Mapping[str, Any]) -> Part:
    """Returns the part with one layout for each row, and with parts that only their order told apart in the order of the values."""
    index = values.get(f"axes of {part.component}", 0)
    rows = [dataclasses.replace(row, axes=(row.axes[min(index, len(row.axes) - 1)],)) for row in part.rows]
    rows = _exchanged(rows, dict(values.get(f"order of {part.component}", ())))
    by_path = {child.path: child for child in part.parts}
    norms = values.get(f"order of norms of {part.component}", ())
    moved = {slot: dataclasses.replace(by_path[other], path=slot) for slot, other in norms if other in by_path}
    parts = [_chosen(moved.get(child.path, child), values) for child in part.parts]
    return dataclasses.replace(part, rows=rows, parts=parts)


_EMBEDDED = {"source_embedding_norm": "encoder", "target_embedding_norm": "decoder"}  # the norm before a stack -> the stack


def _placed(root: Part, final: bool) -> Part:
    """Returns the model with the norms beside its layers after them, as norms of the stacks, or before them, as norms of the embeddings."""
    norms = {_EMBEDDED[child.path]: child for child in root.parts if child.path in _EMBEDDED}
    norms |= {stack.path: norm for stack in root.parts for norm in stack.parts if norm.path == "final_norm"}
    parts = []
    for child in (one for one in root.parts if one.path not in _EMBEDDED):
        inside = [one for one in child.parts if one.path != "final_norm"]
        inside += [dataclasses.replace(norms[child.path], path="final_norm")] if final and child.path in norms else []
        parts.append(dataclasses.replace(child, parts=inside))
    if not final:
        parts += [dataclasses.replace(norms[stack], path=path) for path, stack in _EMBEDDED.items() if stack in norms]
    return dataclasses.replace(root, parts=parts)


def _exchanged(rows: list[Row], order: Mapping[str, str]) -> list[Row]:
    """Returns the rows with tensors exchanged between roles: role -> the role whose tensor it has."""
    by_name = {row.name: row for row in rows}
    others = [by_name.get(row.name.replace(row.role, order.get(row.role, row.role), 1), row) for row in rows]
    return [
        Row(row.name, other.native, tuple(_relettered(text, other.role, row.role) for text in other.axes))
        for row, other in zip(rows, others, strict=True)
    ]


def _relettered(axes: str, role: str, wanted: str) -> str:
    """Returns the axes of one projection with the letters of another's."""
    letters = {"query": "hk", "key": "gk", "value": "ge"}
    if role == wanted or role not in letters or wanted not in letters:
        return axes
    return axes.translate(str.maketrans(letters[role], letters[wanted]))
