"""The outcome of one case on one port."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .compare import compare, heat_map, relative_error
from .expectation.components import VJP
from .expectation.tolerance import Expectation
from .status import Kind, Status

Expected = dict[str, Expectation]
FEW = 6  # at most this many names of outputs are listed


@dataclass(frozen=True)
class Result:
    """One row: the outcome of one case on one port.

    incomparable: the outputs that show nothing, with the reasons; if others show something, the status is about those.
    ratio, excess, error, noise, ulps: see `compare.Comparison`; they are the worst output's, `worst` is the place of its largest error and
    `allowed` the largest error that passes there. For a failure `output` is that output's name, and if its shape is right `heat` shows
    |error| / allowed around that place. seconds: how long the port took to answer. mesh: on which it did; empty if on one device. beyond:
    where a lower precision is expected, the error in units of what the dtype itself allows.
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
    beyond: float = float("nan")
    incomparable: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it was computed: the device, or the mesh, and its devices if they are no CPUs."""
        return self.mesh if self.mesh and self.device == "cpu" else f"{self.device} {self.mesh}".strip()


def _names(wanted: list[str], got: list[str]) -> str:
    """Returns what is wrong with the names of the outputs; if there are many, names only those that are missing or unexpected."""
    if max(len(wanted), len(got)) > FEW:
        missing, others = ([name for name in names if name not in known] for names, known in ((wanted, got), (got, wanted)))
        parts = (f"{what} {', '.join(names[:FEW])}{', ...' if len(names) > FEW else ''}" for what, names in
                 (("lacks", missing), ("must not have", others)) if names)  # fmt: skip
        return f"must return {len(wanted)} outputs; it {' and '.join(parts)}"
    return f"must return {', '.join(wanted)}; got {', '.join(got)}"


def of_pair(component: str, wanted: bool, answer: Mapping[str, np.ndarray]) -> str:
    """Returns the message for a pair if one array is wanted, or for one array if a pair is wanted; empty for other outputs."""
    shapes = " and ".join(str(array.shape) for array in answer.values())
    if not wanted and [*answer] == ["output", "weights"]:
        pick = f'"return": lambda output, inputs: output[0] in the call of {component.removesuffix(VJP)}'
        return f"must return one array; got a pair, of shapes {shapes}: in a port's file {pick} picks one"
    if wanted and [*answer] == ["output"]:
        return f"must return a pair, output and weights; got one array, of shape {shapes}"
    return ""


def judge(row: dict[str, Any], kind: str, answer: Any, expected: Expected) -> Result:
    """Returns the result of one case: `row` says which, (kind, answer) is what the port gave, `expected` what the reference gives."""
    if kind != Kind.OUTPUTS:
        return Result(**row, status=Status(kind), message=str(answer))
    if answer.keys() != expected.keys():
        message = of_pair(row["component"], "weights" in expected, answer) or _names([*expected], [*answer])
        return Result(**row, status=Status.DIFFERS, message=message)
    comparisons = {name: compare(expected[name], answer[name]) for name in expected}
    incomparable = {name: comparison.incomparable for name, comparison in comparisons.items() if comparison.incomparable}
    judged = {name: comparison for name, comparison in comparisons.items() if name not in incomparable}
    if not judged:
        if not any(one.reference.size for one in expected.values()):
            return Result(**row, status=Status.EMPTY, message="there are no elements; only shape and dtype were compared")
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
    message = f"{name}: {worst.message}" if worst.message else ""
    if lower and np.isfinite(beyond):
        explained = f"more than {lower} explains" if failed else f"as {lower} is" if beyond > 1 else "which is within it"
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


def _reasons(incomparable: Mapping[str, str]) -> str:
    """Returns why no output shows anything: the first one's reason, and the number of the others."""
    name, reason = next(iter(incomparable.items()))
    return f"{name}: {reason}" + (f"; {len(incomparable) - 1} other outputs show nothing either" if len(incomparable) > 1 else "")
