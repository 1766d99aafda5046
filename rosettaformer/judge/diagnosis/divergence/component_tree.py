"""Judges the components of a port from its traced runs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...case import Case
from ...compare import Comparison, compare, heat_map, relative_error
from ...ports.adapters.submodules import transposed
from ...status import Kind
from .. import words
from .teacher import Teacher

Activations = Mapping[str, Mapping[str, Any]]  # of the port, by canonical path: inputs, output, error, refused


@dataclass(frozen=True)
class Row:
    """One component in the tree of traced components.

    depth: the number of traced components around it. free: its output in the free run, with a
    tolerance for all arithmetic up to it. forced: its output on the reference's inputs, with a
    tolerance for the arithmetic within it; None if it could not be forced. inputs_agree: whether
    its inputs in the free run match the reference; None if they have no counterpart. first: whether
    it is the first divergence.
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
        """The path, or the component if the path is empty."""
        return self.path or self.component

    @property
    def fails(self) -> bool:
        """Whether it fails on the reference's inputs."""
        return self.forced is not None and self.forced.excess > 1


@dataclass(frozen=True)
class Failure:
    """A component that fails on the reference's inputs: the case it was asked, and its output."""

    path: str
    case: Case
    output: np.ndarray


@dataclass(frozen=True)
class Divergence:
    """Where a port first differs from the reference on a case.

    rows: the tree in execution order, every component before its parts. sentence: the conclusion.
    heat: |error| / allowed of the first diverging output, positions x features. failures: the
    components that fail on the reference's inputs, as does everything around them, and whose error
    no later step undoes, in the order in which they finish. untraced: the components with
    parameters for which the port has no module. problem: why rows are missing.
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
    """The results of the runs so far."""

    teacher: Teacher
    free: Activations
    forced: dict[str, Comparison] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    within: dict[str, Activations] = field(default_factory=dict)  # by component, the calls of the run in which it was forced
    undone: set[str] = field(default_factory=set)  # failing components whose error the next step undoes
    deaths: int = 0
    problem: str = ""

    def __post_init__(self) -> None:
        self._judge("", self.free)  # the case gives the whole the reference's inputs

    @property
    def traced(self) -> list[str]:
        """The traced paths, in the order in which the reference finishes them."""
        return [path for path in self.teacher.calls if path in self.free]

    @property
    def paths(self) -> list[str]:
        """The paths to be forced."""
        return [path for path in self.traced if path]

    def add(self, path: str, kind: str, answer: Any) -> None:
        """Adds the answer of the run in which the component was forced."""
        if kind == Kind.OUTPUTS and path in answer:
            self._judge(path, answer)
            return
        self.deaths += kind in (Kind.CRASH, Kind.HANG)
        self.messages[path] = f"{kind}: {answer}" if kind != Kind.OUTPUTS else "was not reached in its forced run"

    def _judge(self, path: str, run: Activations) -> None:
        call = run[path]
        if "refused" in call:
            self.messages[path] = call["refused"]
            return
        if "output" not in call and path and "output" in self.free[path]:  # it runs in the free run: only replacing its inputs fails
            self.messages[path] = f"cannot be forced: {call.get('error', 'it returned no output')}"
            return
        if "output" not in call:
            self.forced[path] = Comparison(np.inf, np.inf, np.inf, 0.0, message=call.get("error", "returned no output"))
        else:
            expectation = self.teacher.forced(path)
            output = transposed(call["output"], expectation.reference.shape) if path else call["output"]
            self.forced[path] = compare(expectation, output)
            if self.forced[path].excess > 1 and isinstance(output, np.ndarray):
                self.failures[path] = Failure(path, self.teacher.question(path), output)
        self.messages[path] = self.forced[path].message
        self.within[path] = run

    def _guilty(self) -> set[str]:
        """The failing components inside failing ones only, whose error nothing undoes."""
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
        """The divergence that the runs show."""
        guilty = self._guilty()
        first = next((path for path in self.traced if path in guilty), None)  # parts finish before the component around them
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
            return words.no_divergence(self.teacher.calls[""].component, len(self.paths))
        alone = not path and not self.paths
        return words.diverges(self.teacher.calls[path].name, size(self.forced[path]), alone, self._dataflow(path))

    def _dataflow(self, path: str) -> str:
        """Where a component goes wrong whose parts are right."""
        run, before = self.within[path], "its inputs"
        children = self._children(path)
        compared = [child for child in children if child in self.forced and not self._fails(child)]
        parts = words.parts_right(any(map(self._fails, children)), all(child in self.forced for child in children))
        for child in compared:
            if child in run and self.teacher.inputs_agree(child, run[child]["inputs"]) is False:
                return words.wrong_input(parts, child, before)
            before = child
        return words.wrong_after(parts, before) if compared else ""


def size(comparison: Comparison) -> str:
    """The size of an error in units of the tolerance, or what else is wrong."""
    return f"error {comparison.excess:.3g} x allowed" if math.isfinite(comparison.excess) else comparison.message


def _explained(row: Row, guilty: set[str], undone: set[str]) -> str:
    """The message of a row, with the reason if the component fails but is not the cause."""
    if not row.fails or row.path in guilty:
        return row.message
    return f"{row.message}; {words.not_guilty(row.path in undone)}"
