"""A port's names of parameters and submodules: its `weights`.

`weights` is one table, for whichever component runs, or a mapping from component to table. A row of
three is (end of the canonical name, end of the module's own name, axes of the module's own tensor).
A row of two renames a submodule: (canonical part, own part).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig, layout, parameters
from reference_numpy.suggestions import known

from ..expectation.components import FORWARD, is_layout, model_of

Rename = tuple[str, str]  # canonical part, own part
LETTERS = "dhgkefxmwvparci"  # axes of `reference_numpy.parameters`, and i: a head's slice of the width
# step of a canonical path -> its component, if their names differ
_PARTS = {
    "source_embedding": "embedding",
    "target_embedding": "embedding",
    "source_position_embedding": "position_embedding",
    "target_position_embedding": "position_embedding",
    "source_segment_embedding": "segment_embedding",
    "self_attention": "multi_head_attention",
    "cross_attention": "multi_head_attention",
    "norm": "layer_norm",
}
# components with the same parameters: if one has no table, the other's is used
_ALIKE = {
    "self_attention": "multi_head_attention",
    "multi_head_attention": "self_attention",
    "layer_norm": "rms_norm",
    "rms_norm": "layer_norm",
}
_PART_OF = re.compile(r"\d/[1-9]")  # i/n: the i-th of n parameters in one tensor


class Names:
    """The port's own names of a component's parameters and submodules.

    A canonical name is split at the components on its path: encoder, layers.0 (encoder_layer),
    self_attention (multi_head_attention), query.kernel. The innermost component whose table has a
    matching row of three determines the end of the own name and the axes. The preceding steps are
    renamed from the end by rows of two in the tables of the enclosing components: the longest row
    wins, then the innermost component. A part without a row keeps its name; an empty own part drops
    it.

    Raises ValueError if `weights` is invalid.
    """

    def __init__(self, weights: Any, module_paths: Sequence[Rename] = ()) -> None:
        """module_paths: rows of two that rename submodules of any outermost component."""
        self._each = isinstance(weights, Mapping)
        tables = weights if self._each else {"": weights}
        if self._each:
            known("component of weights", tables, FORWARD)
        read = {component: [*_rows(component, table)] for component, table in tables.items()}
        self._tables: dict[str, layout.Table] = {name: tuple(row for row in rows if len(row) == 3) for name, rows in read.items()}
        self._renames: dict[str, list[Rename]] = {name: [row for row in rows if len(row) == 2] for name, rows in read.items()}
        self._paths = module_paths

    def table(self, component: str, config: TransformerConfig) -> layout.Table:
        """Returns the component's table. Raises ValueError if a parameter matches no row."""
        axes = parameters.axes(config, model_of(component))
        return tuple(self._row(_owner(component), name, letters) for name, letters in axes.items())

    @property
    def shared(self) -> tuple[str, ...]:
        """The ends of the canonical names of kernels shared by all heads."""
        return tuple(dict.fromkeys(row[0] for table in self._tables.values() for row in table if "i" in row[2]))

    def path(self, component: str, path: str) -> str:
        """Returns the port's path of the component's submodule at a canonical path."""
        return ".".join(self._own(_owner(component), path.split("."), self._paths))

    def _row(self, component: str, name: str, axes: str) -> layout.Row:
        steps = name.split(".")
        for start, inner in reversed(_around(component, steps)):
            row = layout.fitting(".".join(steps[start:]), axes, self._of(self._tables, inner, start))
            if row is not None:
                before = name.removesuffix(row[0]).removesuffix(".")
                own = self._own(component, before.split("."), []) if before else []
                return name, ".".join([*own, row[1]]), row[2]
        if not self._each:
            raise ValueError(f"`weights` has no row for {name} with axes {axes!r}: add one")
        where = " or ".join(dict.fromkeys(inner for _, inner in reversed(_around(component, steps))))
        raise ValueError(f"`weights` has no row for {name} with axes {axes!r}: add one to the table of {where}")

    def _own(self, component: str, steps: list[str], others: Sequence[Rename]) -> list[str]:
        """Translates canonical steps. others: more rows of the outermost component."""
        if not steps:
            return []
        path, end, own = ".".join(steps), steps[-1], steps[-1]
        longest = 0
        for start, inner in reversed(_around(component, steps)):
            rows = [*self._of(self._renames, inner, start), *(others if start == 0 else ())]
            relative = ".".join(steps[start:])
            for canonical, native in rows:
                if len(canonical) > longest and f".{relative}".endswith(f".{canonical}"):
                    end, own, longest = canonical, native, len(canonical)
        before = path.removesuffix(end).removesuffix(".")
        return [*self._own(component, before.split(".") if before else [], others), *filter(None, own.split("."))]

    def _of(self, tables: Mapping[str, Any], component: str, start: int) -> Any:
        """Returns a component's rows. A single table belongs to the outermost component."""
        if not self._each:
            return tables[""] if start == 0 else ()
        return tables.get(component) or tables.get(_ALIKE.get(component, ""), ())


def _owner(component: str) -> str:
    """Returns the component whose table is used: the model, for those that run a whole model."""
    return component if is_layout(component) else model_of(component)


def _around(component: str, steps: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the components on a path, outermost first, with the number of steps before each."""
    found = [(0, component)]
    for index, step in enumerate(steps):
        if inner := _component(step, found[-1][1]):
            found.append((index + 1, inner))
    return found


def _component(step: str, around: str) -> str:
    """Returns the component of a step inside another component; "" if there is none."""
    if step.isdigit() and around in ("encoder", "decoder"):
        return f"{around}_layer"
    if step.endswith("_norm"):
        return "layer_norm"
    return _PARTS.get(step, step if step in FORWARD else "")


def _rows(component: str, table: Any) -> Iterator[Any]:
    """Yields the rows of a table as tuples. Raises ValueError at the first invalid row."""
    where = f"the table of {component}" if component else "weights"
    if isinstance(table, (str, Mapping)) or not isinstance(table, Sequence):
        raise ValueError(f"{where} must be a list of rows; got {table!r:.100}")
    for row in table:
        if problem := _problem(row):
            raise ValueError(f"each row of {where} must {problem}; got {row!r:.100}")
        yield tuple(row)


def _problem(row: Any) -> str:
    """Returns the requirement that a row violates; "" if it is valid."""
    if isinstance(row, str) or not isinstance(row, Sequence) or len(row) not in (2, 3) or not all(isinstance(item, str) for item in row):
        return "be (end of the canonical name, end of your name, your axes) or (canonical part, your part)"
    if not row[0] or (len(row) == 3 and not row[1]):
        return "have non-empty names"
    wrong = _no_axes(row[2]) if len(row) == 3 else ""
    return f"write its axes with the letters {', '.join(LETTERS)} and 1, or several of them in brackets, not {wrong!r}" if wrong else ""


def _no_axes(axes: str) -> str:
    """Returns the first invalid word of the axes; "" if all are valid."""
    axes = _PART_OF.sub("", axes)
    words = [word for group in re.findall(r"\(([^()]*)\)", axes) for word in group.split()] + [*re.sub(r"\([^()]*\)|\s", "", axes)]
    return next((word for word in words if len(word) != 1 or word not in f"{LETTERS}1"), "")
