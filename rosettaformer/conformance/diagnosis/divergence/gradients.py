"""The first divergence of the gradients: in backward order, the first component whose gradient is wrong although all that it is given is
the reference's.

Every component that agrees forward is given the reference's inputs and a random cotangent, so that what goes wrong behind it cannot reach
it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...case import Case
from ...compare import Comparison
from ...ports.process import Worker
from ...reference import components, trace
from ...status import Kind
from .findings import Divergence, size
from .forward import chunks, run_forced
from .probe import Probe, within

__all__ = ["Backward", "BackwardRow", "backward"]


@dataclass(frozen=True)
class BackwardRow:
    """One component. gradients: what was compared, by the name of every floating input and every parameter."""

    path: str
    component: str
    gradients: Mapping[str, Comparison] = field(default_factory=dict)
    first: bool = False
    message: str = ""

    @property
    def name(self) -> str:
        """The path, or the component where the path is empty."""
        return self.path or self.component

    @property
    def worst(self) -> str:
        """The name of the gradient that is furthest from what is allowed; empty where none was compared."""
        return max(self.gradients, key=lambda name: self.gradients[name].excess, default="")

    @property
    def fails(self) -> bool:
        """Whether a gradient is wrong."""
        return bool(self.gradients) and self.gradients[self.worst].excess > 1


@dataclass(frozen=True)
class Backward:
    """Where a port's gradients first differ from the reference's. rows: the components that agree forward, in backward order."""

    port: str
    case: str
    dtype: str
    sentence: str
    rows: tuple[BackwardRow, ...] = ()

    @property
    def first(self) -> BackwardRow | None:
        """The first divergence, if there is one."""
        return next((row for row in self.rows if row.first), None)


def backward(
    worker: Worker, forward: Divergence, case: Case, device: str = "cpu", limit: float = 120.0,
    progress: Callable[[float], None] = lambda share: None,
) -> Backward:  # fmt: skip
    """Walks the components that agree forward, as `forward` found them for the same case, from the last to the first.

    Named is the first whose gradient is wrong while that of none of its parts is, and wrong is that of all around it.
    """
    cast = case.at(forward.dtype, device)
    reference = trace.record(cast.at("float64"))
    agreeing = {row.path for row in forward.rows if row.forced is not None and not row.fails}
    probes = {
        path: Probe(reference[path], cast)
        for path in reversed(reference)
        if path in agreeing and reference[path].component in components.DIFFERENTIABLE
    }
    rows: list[BackwardRow] = []
    for paths in chunks(list(probes)):
        progress(len(rows) / len(probes))
        for path, (kind, answer) in run_forced(worker, cast, [probes[path].force for path in paths], limit):
            rows.append(_row(reference[path], probes[path], kind, answer.get(path, {}) if kind == Kind.OUTPUTS else answer))
    return _result(forward, rows)


def _result(forward: Divergence, rows: list[BackwardRow]) -> Backward:
    wrong = {row.path for row in rows if row.fails}
    around = {path: [row.path for row in rows if row.gradients and within(path, row.path)] for path in wrong}
    failing = [row.path for row in rows if row.fails and wrong.issuperset(around[row.path])]
    first = next((path for path in failing if not any(within(other, path) for other in failing)), None)
    rows = [dataclasses.replace(row, first=row.path == first) for row in rows]
    named = next((row for row in rows if row.first), None)
    sentence = f"no divergence of the gradients of {sum(bool(row.gradients) for row in rows)} components"
    if named is not None:
        error, parts = size(named.gradients[named.worst]), any(within(row.path, named.path) for row in rows)
        where = "; the gradients of its parts are right, so it is what lies between them" if parts else ""
        sentence = f"{named.name}: in backward order the first component whose gradient is wrong, that of {named.worst} ({error}){where}"
    elif not any(row.gradients for row in rows):
        sentence = "no gradient was compared" + (f": {rows[0].message}" if rows else "")
    return Backward(forward.port, forward.case, forward.dtype, sentence, tuple(rows))


def _row(call: trace.TracedCall, probe: Probe, kind: str, answer: Any) -> BackwardRow:
    if kind != Kind.OUTPUTS or "gradients" not in answer:
        message = f"{kind}: {answer}" if kind != Kind.OUTPUTS else answer.get(Kind.ERROR, answer.get("refused", "no gradient came"))
        return BackwardRow(call.path, call.component, message=message)
    row = BackwardRow(call.path, call.component, probe.compare(answer["gradients"]))
    return dataclasses.replace(row, message=f"{row.worst}: {row.gradients[row.worst].message}") if row.fails else row
