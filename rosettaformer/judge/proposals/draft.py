"""A proposal in the making: what is known about a module, what is open, and the text of the port for given choices."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig, parameters, preset

from ...common.modules import BACKENDS
from ..catalogue import Alteration
from ..expectation.components import model_of
from .calling import Call
from .construction import Construction
from .model_parts import Match
from .parts import Part, Row
from .source import Source

Selection = Mapping[str, int]


@dataclass(frozen=True)
class Choice:
    """An open choice: its name, its values as they are written, the likeliest first; and which parts of a model show it."""

    name: str
    values: tuple[Any, ...]
    shows_in: str  # one of `trying.GROUPS`
    read: bool = False  # whether the first value was read from the module, so that no other is likely if no case tells them apart

    @property
    def is_open(self) -> bool:
        return len(self.values) > 1


@dataclass
class Draft:
    """What is known about a module.

    sizes: at which it was built. decoder_only: a decoder without an encoder. rows: of its tables of positions; 0 if it has none. fixed: the
    config fields that it fixes; shown: the fields that are guessed from its tensors. missing: the canonical parameters without a tensor,
    with their axes. output: the expression for its output, such as `output[0]`. choices: what is open; `selection` the index of each one's
    value, `tried` those decided by trying, in words, `nearest` those with values that are only the nearest, `undecided` the others, each
    with a remark. form: the form in which it returns the logits. deviation: of the module's norms from the reference's, if it is a known
    one. verified: whether the norms and tables around the layers give the reference's numbers. filled: whether it needs a mask even if a
    case has none. dtypes: those in which it runs; refused: why not in float64. failure: why it does not run at all. gives_vectors: whether
    it returns its last layer's vectors instead of logits.
    """

    source: Source
    component: str
    framework: str
    construction: Construction
    sizes: Mapping[str, Any]
    match: Match
    call: Call
    decoder_only: bool = False
    rows: int = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    missing: list[str] = field(default_factory=list)
    output: str = "output"
    choices: list[Choice] = field(default_factory=list)
    selection: dict[str, int] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    nearest: list[str] = field(default_factory=list)
    undecided: dict[str, str] = field(default_factory=dict)
    form: str = ""
    deviation: Alteration | None = None
    filled: bool = False
    verified: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32")
    refused: str = ""
    failure: str = ""
    gives_vectors: bool = False

    @property
    def adapter(self) -> str:
        """The framework as a port names it."""
        return BACKENDS[self.framework]

    def value(self, choice: Choice, selection: Selection | None = None) -> Any:
        return choice.values[(self.selection if selection is None else selection).get(choice.name, 0)]

    def config(self, selection: Selection) -> dict[str, Any]:
        """Returns the config fields that the port fixes, by this selection."""
        found = self.fixed | {choice.name: self.value(choice, selection) for choice in self.choices if choice.name in _FIELDS}
        if self.places_norms:
            found["embedding_norm"] = not found["final_norm"]
        if self.rows:
            found["max_positions"] = self.sizes["max_positions"] if self.sized else self.rows - found["position_offset"]
        return found

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
        return [name for name, row in _rows(self.match.root) if "i" in row.axes[0]]

    @property
    def sized(self) -> bool:
        """Whether the table of positions has the length that the constructor is given."""
        return "max_positions" in self.construction.fields and self.rows >= self.sizes["max_positions"]

    @property
    def spare_rows(self) -> int:
        """How many more rows a table of positions has than the constructor is asked for."""
        return self.rows - self.sizes["max_positions"] if self.sized else 0

    def built(self, selection: Selection) -> str:
        """Returns the expression that builds the module, by this selection."""
        text = str(self.sizes["max_positions"])  # the length of a buffer, if no table has that length
        if self.sized:
            more = self.config(selection)["position_offset"] - self.spare_rows
            text = f"config.max_positions {'+' if more > 0 else '-'} {abs(more)}" if more else "config.max_positions"
        given = {} if self.sizes["feed_forward_width"] == self.construction.width else {"feed_forward_width": str(self.construction.width)}
        return self.construction.replaced(max_positions=text, **given).text

    def free(self) -> dict[str, Any]:
        """Returns the sizes that a case need not have, and that the constructor takes."""
        return {name: self.sizes[name] for name in ("segments", "classes") if name in self.construction.fields and name in self.sizes}

    def root(self, selection: Selection) -> Part:
        """Returns the parts, their names and axes by this selection."""
        root = chosen(self.match.root, {choice.name: self.value(choice, selection) for choice in self.choices})
        return _placed(root, self.config(selection)["final_norm"]) if self.places_norms else root


_FIELDS = TransformerConfig.__dataclass_fields__


def chosen(part: Part, values: Mapping[str, Any]) -> Part:
    """Returns the part with one layout for each row, and with parts that only their order told apart in the order of the values."""
    index = values.get(f"axes of {part.component}", 0)
    rows = [dataclasses.replace(row, axes=(row.axes[min(index, len(row.axes) - 1)],)) for row in part.rows]
    order = values.get(f"order of {part.component}", ())
    parts = part.parts
    if order and part.rows:
        rows = _exchanged(rows, order)
    norms = values.get(f"order of norms of {part.component}", ())
    if norms:
        by_path = {child.path: child for child in parts}
        moved = {slot: dataclasses.replace(by_path[other], path=slot) for slot, other in norms if other in by_path}
        parts = [moved.get(child.path, child) for child in parts]
    return dataclasses.replace(part, rows=rows, parts=[chosen(child, values) for child in parts])


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


def _exchanged(rows: list[Row], order: tuple[tuple[str, str], ...]) -> list[Row]:
    """Returns the rows with tensors exchanged between roles: (role, the role whose tensor it has)."""
    by_name = {row.name: row for row in rows}
    result = []
    for row in rows:
        role, _, kind = row.name.partition(".")
        other = by_name.get(f"{dict(order).get(role, role)}.{kind}", row)
        axes = tuple(_relettered(text, other.name.partition(".")[0], role) for text in other.axes)
        result.append(Row(row.name, other.native, axes))
    return result


def _relettered(axes: str, role: str, wanted: str) -> str:
    """Returns the axes of one projection with the letters of another's."""
    letters = {"query": "hk", "key": "gk", "value": "ge"}
    if role == wanted or role not in letters or wanted not in letters:
        return axes
    return axes.translate(str.maketrans(letters[role], letters[wanted]))


def named_rows(part: Part) -> Iterator[str]:
    """Yields the canonical names that the part's rows cover, as names in the whole."""
    return (name for name, _ in _rows(part))


def _rows(part: Part, prefix: str = "") -> Iterator[tuple[str, Row]]:
    for row in part.rows:
        yield prefix + row.name, row
    for child in part.parts:
        yield from _rows(child, f"{prefix}{child.path}.")


def canonical(draft: Draft) -> dict[str, str]:
    """Returns the axes of the component's parameters, by canonical name; empty if it has none."""
    found = draft.config(draft.selection)
    learned = {} if found.get("positions", "learned") == "learned" else {"max_positions": 0}
    config = preset("nn_transformer", **{**draft.sizes, **learned, **found})
    try:
        return dict(parameters.axes(config, model_of(draft.component)))
    except ValueError:
        return {}
