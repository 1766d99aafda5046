"""What the runs of a port show of its components, and what that comes to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...case import Case
from ...compare import Comparison, compare, heat_map, relative_error
from ...ports.adapters.submodules import transposed
from ...status import Kind
from .teacher import Teacher

Activations = Mapping[str, Mapping[str, Any]]  # of the port, by canonical path: inputs, output, error, refused


@dataclass(frozen=True)
class Row:
    """One component of the tree that the port shows.

    depth: how many traced components it is within. free: its output in the free run, allowed for what plain arithmetic costs up to it.
    forced: its output on the reference's inputs, allowed for what plain arithmetic costs within it; None where it could not be forced.
    inputs_agree: whether its inputs in the free run are the reference's; None where they have no counterpart. first: the first divergence.
    """

    path: str
    component: str
    depth: int
    free: Comparison | None
    forced: Comparison | None
    inputs_agree: bool | None
    first: bool = False
    message: str = ""

    @property
    def name(self) -> str:
        """The path, or the component where the path is empty."""
        return self.path or self.component

    @property
    def fails(self) -> bool:
        """Whether it fails on the reference's inputs."""
        return self.forced is not None and self.forced.excess > 1


@dataclass(frozen=True)
class Failure:
    """What a component that fails on the reference's inputs was asked, as a case of that component, and what it gave."""

    path: str
    case: Case
    output: np.ndarray


@dataclass(frozen=True)
class Divergence:
    """Where a port first differs from the reference on a case.

    rows: the tree, every component before its parts and in the order of execution. sentence: what it comes to. heat: |error| / allowed
    of the first diverging output, positions x features. failures: every component that fails on the reference's inputs and gave an output,
    where all around it fails too and nothing that follows undoes it, in the order in which they finish. untraced: the components with
    parameters that the port has no module for. problem: why the rows are missing or are not all there.
    """

    port: str
    case: str
    dtype: str
    sentence: str
    rows: tuple[Row, ...] = ()
    heat: list[list[float]] | None = None
    failures: tuple[Failure, ...] = ()
    untraced: tuple[str, ...] = ()
    problem: str = ""

    @property
    def first(self) -> Row | None:
        """The first divergence, if there is one."""
        return next((row for row in self.rows if row.first), None)


@dataclass
class TracedRuns:
    """What the runs have shown so far."""

    teacher: Teacher
    free: Activations
    forced: dict[str, Comparison] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    within: dict[str, Activations] = field(default_factory=dict)  # the calls of the run in which the component was forced
    undone: set[str] = field(default_factory=set)  # what fails, and is right again in what takes its output
    deaths: int = 0
    problem: str = ""

    def __post_init__(self) -> None:
        self._judge("", self.free)  # the whole is given the reference's inputs by the case

    @property
    def traced(self) -> list[str]:
        """The paths that the port shows, in the order in which the reference finishes them."""
        return [path for path in self.teacher.calls if path in self.free]

    @property
    def paths(self) -> list[str]:
        """The paths that are to be forced."""
        return [path for path in self.traced if path]

    def add(self, path: str, kind: str, answer: Any) -> None:
        """The answer to the run in which the component was forced."""
        if kind == Kind.OUTPUTS and path in answer:
            self._judge(path, answer)
            return
        self.deaths += kind in (Kind.CRASH, Kind.HANG)
        self.messages[path] = f"{kind}: {answer}" if kind != Kind.OUTPUTS else "was not reached when it was to be forced"

    def _judge(self, path: str, run: Activations) -> None:
        call = run[path]
        if "refused" in call:
            self.messages[path] = call["refused"]
            return
        if "output" not in call and path and "output" in self.free[path]:  # it runs by itself, so that exchanging its inputs fails
            self.messages[path] = f"cannot be forced: {call.get('error', 'it gave no output')}"
            return
        if "output" not in call:
            self.forced[path] = Comparison(np.inf, np.inf, np.inf, 0.0, message=call.get("error", "gave no output"))
        else:
            expectation = self.teacher.forced(path)
            output = transposed(call["output"], expectation.reference.shape) if path else call["output"]
            self.forced[path] = compare(expectation, output)
            if self.forced[path].excess > 1 and isinstance(output, np.ndarray):
                self.failures[path] = Failure(path, self.teacher.question(path), output)
        self.messages[path] = self.forced[path].message
        self.within[path] = run

    def _guilty(self) -> set[str]:
        """Those that fail, and all around them that was forced too, and that nothing undoes."""
        guilty: set[str] = set()
        for path in reversed(self.traced):
            above = self.teacher.parent(path, self.forced)
            if self._fails(path) and (above is None or above in guilty):
                run = {} if above is None else self.within.get(above, {})
                (self.undone if path in run and self.teacher.undone(path, run) else guilty).add(path)
        return guilty

    def _fails(self, path: str) -> bool:
        return path in self.forced and self.forced[path].excess > 1

    def result(self, port: str, case: str, dtype: str) -> Divergence:
        """Everything, put together."""
        guilty = self._guilty()
        first = next((path for path in self.traced if path in guilty), None)  # a part finishes before what it is part of
        rows = (self._row(path, depth) for path, depth in self._tree("", 0))
        known = [name for name, call in self.teacher.calls.items() if call.parameters]
        return Divergence(
            port=port,
            case=case,
            dtype=dtype,
            sentence=self._sentence(first),
            rows=tuple(replace(row, first=row.path == first, message=_explained(row, guilty, self.undone)) for row in rows),
            heat=self._heat(first),
            failures=tuple(self.failures[path] for path in self.traced if path in self.failures and path in guilty),
            untraced=tuple(path for path in known if path not in self.free),
            problem=self.problem,
        )

    def _tree(self, path: str, depth: int) -> Iterator[tuple[str, int]]:
        yield path, depth
        for child in self._children(path):
            yield from self._tree(child, depth + 1)

    def _children(self, path: str) -> list[str]:
        return [child for child in self.paths if self.teacher.parent(child, self.free) == path]

    def _row(self, path: str, depth: int) -> Row:
        call = self.free[path]
        free = None
        if "output" in call:
            expectation = self.teacher.free(path)
            free = compare(expectation, transposed(call["output"], expectation.reference.shape))
        return Row(
            path=path,
            component=self.teacher.calls[path].component,
            depth=depth,
            free=free,
            forced=self.forced.get(path),
            inputs_agree=self.teacher.inputs_agree(path, call["inputs"]),
            message=self.messages.get(path, ""),
        )

    def _heat(self, path: str | None) -> list[list[float]] | None:
        if path is None or path not in self.failures:
            return None
        expectation, output = self.teacher.forced(path), self.failures[path].output
        if output.shape != expectation.reference.shape:
            return None
        error = relative_error(expectation, output)
        return heat_map(error, tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape)))

    def _sentence(self, path: str | None) -> str:
        if path is None:
            return (
                f"no divergence: {self.teacher.calls[''].component} agrees, and with it {len(self.paths)} components inside it were traced"
            )
        subject = "fails, as the whole" if not path and not self.paths else "the first component that fails although its inputs agree"
        return f"{self.teacher.calls[path].name}: {subject} ({size(self.forced[path])}){self._wiring(path)}"

    def _wiring(self, path: str) -> str:
        """Of a component whose parts are right: where within it something goes wrong."""
        run, before = self.within[path], "its inputs"
        children = self._children(path)
        compared = [child for child in children if child in self.forced and not self._fails(child)]
        subject = "its other parts" if any(map(self._fails, children)) else "its parts"
        parts = f"{subject} are right" if all(child in self.forced for child in children) else f"{subject} that could be compared are right"
        for child in compared:
            if child in run and self.teacher.inputs_agree(child, run[child]["inputs"]) is False:
                return f"; {parts}, but {child} is given something else than the reference gives it, after {before}"
            before = child
        return f"; {parts} and given what the reference gives them: it fails after {before}" if compared else ""


def size(comparison: Comparison) -> str:
    """How large an error that is not allowed is, or what else is wrong."""
    return f"error {comparison.excess:.3g} x allowed" if math.isfinite(comparison.excess) else comparison.message


def _explained(row: Row, guilty: set[str], undone: set[str]) -> str:
    """The message of a row; of one that fails and is not wrong, with the reason."""
    if not row.fails or row.path in guilty:
        return row.message
    reason = "what follows undoes it" if row.path in undone else "what is around it agrees"
    return f"{row.message}; but {reason}: the port divides the work otherwise"
