"""The result of one case on one port."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .compare import compare, heat_map, relative_error
from .expectation.components import VJP
from .expectation.routing import ROUTED
from .expectation.tolerance import Expectation
from .status import Kind, Status

Expected = dict[str, Expectation]
FEW = 6  # names of outputs listed at most


@dataclass(frozen=True)
class Result:
    """The result of one case on one port.

    ratio, excess, error, noise, ulps: those of the worst output, see `compare.Comparison`. worst:
    the index of its largest error. allowed: the largest error that passes there. output: its name,
    for a failure. heat: |error| / allowed around `worst`, for a failure with the right shape.
    incomparable: the outputs that cannot be compared, with the reasons; the status is about the
    others. seconds: how long the port took to answer. mesh: the mesh it ran on; empty for one
    device. decisions, undecided, wrong: of the routers: how many there are, how many rounding may
    change, and how many are wrong, if the port returns them. open: tokens that are not compared, as
    undecided experts of a port that chose others stay open. beyond: with a lower expected precision,
    the error in units of the dtype's own tolerance.
    """

    case: str
    component: str
    port: str
    dtype: str
    device: str
    mode: str
    status: Status
    message: str = ""
    ratio: float = float("nan")
    excess: float = float("nan")
    error: float = float("nan")
    noise: float = float("nan")
    ulps: float = float("nan")
    allowed: float = float("nan")
    worst: tuple[int, ...] = ()
    output: str = ""
    heat: list[list[float]] | None = None
    seconds: float = 0.0
    mesh: str = ""
    decisions: int = 0
    undecided: int = 0
    wrong: int = 0
    open: int = 0
    beyond: float = float("nan")
    incomparable: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The device or mesh that it ran on; for a mesh, also the device unless it is the CPU."""
        return self.mesh if self.mesh and self.device == "cpu" else f"{self.device} {self.mesh}".strip()


def _names(wanted: list[str], got: list[str]) -> str:
    """Returns what is wrong with the names of the outputs, abbreviated if there are many."""
    if max(len(wanted), len(got)) > FEW:
        missing, others = ([name for name in names if name not in known] for names, known in ((wanted, got), (got, wanted)))
        parts = (f"{what} {', '.join(names[:FEW])}{', ...' if len(names) > FEW else ''}" for what, names in
                 (("lacks", missing), ("has unexpected", others)) if names)  # fmt: skip
        return f"must return {len(wanted)} outputs; it {' and '.join(parts)}"
    return f"must return {', '.join(wanted)}; got {', '.join(got)}"


def of_pair(component: str, wanted: bool, answer: Mapping[str, np.ndarray]) -> str:
    """Returns the message for a pair in place of one array, or the reverse; empty otherwise."""
    shapes = " and ".join(str(array.shape) for array in answer.values())
    if not wanted and [*answer] == ["output", "weights"]:
        pick = f'"return": lambda output, inputs: output[0] in the call of {component.removesuffix(VJP)}'
        return f"must return one array; got a pair of shapes {shapes}. In a port file, {pick} selects one"
    if wanted and [*answer] == ["output"]:
        return f"must return a pair, output and weights; got one array of shape {shapes}"
    return ""


def judge(row: dict[str, Any], kind: str, answer: Any, expected: Expected) -> Result:
    """Returns the result of a case. row: its fields. kind, answer: the port's reply."""
    if kind != Kind.OUTPUTS:
        return Result(**row, status=Status(kind), message=str(answer))
    if answer.keys() != expected.keys():
        message = of_pair(row["component"], "weights" in expected, answer) or _names([*expected], [*answer])
        return Result(**row, status=Status.DIFFERS, message=message)
    comparisons = {name: compare(expected[name], answer[name]) for name in expected}
    row = row | _routing(row["component"], expected, answer)
    incomparable = {name: comparison.incomparable for name, comparison in comparisons.items() if comparison.incomparable}
    judged = {name: comparison for name, comparison in comparisons.items() if name not in incomparable}
    if not judged:
        if not any(one.reference.size for one in expected.values()):
            return Result(**row, status=Status.EMPTY, message="the outputs have no elements; only shape and dtype were compared")
        return Result(**row, status=Status.NOT_COMPARABLE, message=_reasons(incomparable), incomparable=incomparable)
    name, worst = max(judged.items(), key=lambda item: (item[1].excess, item[1].ratio))
    failed = worst.excess > 1
    if not failed and expected[name].hidden:
        return Result(**row, status=Status.NOT_SHOWN, message=expected[name].hidden)
    heat = None
    place = worst.worst
    if failed and answer[name].size and answer[name].shape == expected[name].reference.shape:
        error = relative_error(expected[name], answer[name])
        place = place or tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        heat = heat_map(error, place)
    beyond, lower = (worst.error / expected[name].own if expected[name].lower else float("nan")), expected[name].lower
    said = f"{row['wrong']} of {row['decisions']} decisions differ" if failed and row.get("wrong") else worst.message
    message = f"{name}: {said}" if said and len(expected) > 1 else said
    if lower and np.isfinite(beyond):
        explained = f"more than {lower} explains" if failed else f"as expected of {lower}" if beyond > 1 else "which is within it"
        message = f"{message}{'; ' * bool(message)}{beyond:.2g} times {expected[name].dtype}'s tolerance, {explained}"
    return Result(
        **row,
        status=Status.DIFFERS if failed else Status.PASS,
        message=message,
        beyond=beyond,
        ratio=max(comparison.ratio for comparison in judged.values()),
        excess=worst.excess,
        error=worst.error,
        noise=worst.noise,
        ulps=worst.ulps,
        allowed=expected[name].bound,
        worst=place,
        output=name if failed else "",
        heat=heat,
        incomparable=incomparable,
    )


def _routing(component: str, expected: Expected, answer: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Returns the numbers of decisions of routers, if any: all, undecided, and wrong; and of open tokens."""
    found = {name: max(getattr(one, name) for one in expected.values()) for name in ("decisions", "undecided", "open")}
    if component == ROUTED and answer["output"].shape == expected["output"].reference.shape:
        found["wrong"] = int((answer["output"] != expected["output"].reference).any(axis=-1).sum())
    return found if found["decisions"] else {}


def _reasons(incomparable: Mapping[str, str]) -> str:
    """Returns why no output can be compared: the reason for the first, and the number of others."""
    name, reason = next(iter(incomparable.items()))
    return f"{name}: {reason}" + (f"; {len(incomparable) - 1} other outputs cannot be compared either" if len(incomparable) > 1 else "")
