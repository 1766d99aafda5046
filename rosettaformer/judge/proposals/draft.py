"""A draft of a proposal: what is known about a module, and the choices that are open."""

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

Selection = Mapping[str, Any]  # choice -> value; other choices have their first value
_FIELDS = TransformerConfig.__dataclass_fields__


@dataclass(frozen=True)
class Choice:
    """An open choice: its name, its values (likeliest first), and what it affects."""

    name: str
    values: tuple[Any, ...]
    shows_in: str  # one of `trying.GROUPS`
    read: bool = False  # the first value was read from the module, so it wins if no case distinguishes the values

    def value(self, selection: Selection) -> Any:
        return selection.get(self.name, self.values[0])

    @property
    def argument(self) -> str:
        """The call argument that the choice is about; "" if none."""
        return self.name.removeprefix("argument ") if self.name.startswith("argument ") else ""


@dataclass
class Draft:
    """Everything known about a module.

    sizes: the sizes it was built at. decoder_only: a decoder without an encoder. fixed: config
    fields with a fixed value. missing: canonical parameters without a tensor, with their axes.
    output: the expression for its output, such as `output[0]`. choices: what is open. selection:
    the chosen values. tried: choices settled by trials, described. nearest: choices whose best
    value does not match. undecided: the other choices, each with a remark. form: the form in which
    it returns the logits. deviation: the known bug in its norms, if any. verified: whether the
    norms and tables around the layers match the reference. dtypes: the dtypes it runs in. refused:
    why not in float64. failure: why it does not run at all. gives_vectors: whether it returns
    hidden states instead of logits.
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
        """The framework's name in a port."""
        return BACKENDS[self.framework]

    @property
    def is_modern(self) -> bool:
        """Whether it is part of a decoder since Llama: RoPE, gates, norms without offset."""
        return "norm_offset" in self.fixed or "rotary_fraction" in self.fixed or "gated_feed_forward" in self.fixed

    @property
    def places_norms(self) -> bool:
        """Whether the norms around the layers may be before or after them."""
        return any(choice.name == "final_norm" for choice in self.choices)

    @property
    def shared(self) -> list[str]:
        """The kernels shared by all heads."""
        return [name for name, row in self.match.root.named() if "i" in row.axes[0]]

    def config(self, selection: Selection) -> dict[str, Any]:
        """Returns the config fields that the port fixes with this selection."""
        found = self.fixed | {choice.name: choice.value(selection) for choice in self.choices if choice.name in _FIELDS}
        return found | ({"embedding_norm": not found["final_norm"]} if self.places_norms else {})

    def given(self, selection: Selection) -> dict[str, str]:
        """Returns the text for each argument of the module with this selection."""
        return self.call.text({choice.argument: choice.value(selection) for choice in self.choices if choice.argument})

    def root(self, selection: Selection) -> Part:
        """Returns the parts with their names and axes for this selection."""
        root = _chosen(self.match.root, {choice.name: choice.value(selection) for choice in self.choices})
        return _placed(root, self.config(selection)["final_norm"]) if self.places_norms else root


def _chosen(part: Part, values: Mapping[str, Any]) -> Part:
    """Returns the part with one layout per row, and submodules in the selected order."""
    index = values.get(f"axes of {part.component}", 0)
    rows = [dataclasses.replace(row, axes=(row.axes[min(index, len(row.axes) - 1)],)) for row in part.rows]
    rows = _exchanged(rows, dict(values.get(f"order of {part.component}", ())))
    by_path = {child.path: child for child in part.parts}
    norms = values.get(f"order of norms of {part.component}", ())
    moved = {slot: dataclasses.replace(by_path[other], path=slot) for slot, other in norms if other in by_path}
    parts = [_chosen(moved.get(child.path, child), values) for child in part.parts]
    return dataclasses.replace(part, rows=rows, parts=parts)


_EMBEDDED = {"source_embedding_norm": "encoder", "target_embedding_norm": "decoder"}  # norm before a stack -> stack


def _placed(root: Part, final: bool) -> Part:
    """Returns the model with the norms around its layers as final or embedding norms."""
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
    """Returns the rows with tensors swapped: role -> the role whose tensor it gets."""
    by_name = {row.name: row for row in rows}
    others = [by_name.get(row.name.replace(row.role, order.get(row.role, row.role), 1), row) for row in rows]
    return [
        Row(row.name, other.native, tuple(_relettered(text, other.role, row.role) for text in other.axes))
        for row, other in zip(rows, others, strict=True)
    ]


def _relettered(axes: str, role: str, wanted: str) -> str:
    """Translates the axes of one projection to the letters of another."""
    letters = {"query": "hk", "key": "gk", "value": "ge"}
    if role == wanted or role not in letters or wanted not in letters:
        return axes
    return axes.translate(str.maketrans(letters[role], letters[wanted]))
