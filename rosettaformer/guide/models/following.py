"""Traces one forward pass of the reference, component by component, with the error of each port."""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...common.backends import PORTS
from ...judge.case import Case
from ...judge.diagnosis.divergence.component_tree import TracedRuns
from ...judge.diagnosis.divergence.teacher import Teacher
from ...judge.ports.session import open_worker
from ...judge.suite import all_cases

DTYPE = "float32"


@dataclass(frozen=True)
class Step:
    """A component's call.

    depth: nesting depth. shape: of the output. size: root mean square of the output. noise: plain
    NumPy's largest error in float32. errors: each port's error in units of the noise, for ports
    that expose the component.
    """

    path: str
    component: str
    depth: int
    shape: tuple[int, ...]
    size: float
    noise: float
    errors: Mapping[str, float]

    @property
    def name(self) -> str:
        """The last part of the path; for a layer, with its index."""
        parts = self.path.split(".")
        return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1] or "the whole"


@dataclass(frozen=True)
class Pass:
    """A forward pass: the case and its steps, in the order in which components start.

    missing: ports without results -> the reason.
    """

    case: Case
    steps: Sequence[Step]
    missing: Mapping[str, str]


def followed(identities: Sequence[str]) -> dict[str, Pass]:
    """Returns the forward passes by case id. Each port runs all in one process."""
    cases = {case.id: case for case in all_cases()}
    teachers = {identity: Teacher(cases[identity].at(DTYPE)) for identity in identities}
    with ThreadPoolExecutor(len(PORTS)) as pool:
        answers = dict(zip(PORTS, pool.map(lambda port: _errors(port, teachers), PORTS), strict=True))
    return {identity: _pass(teacher, identity, answers) for identity, teacher in teachers.items()}


def _errors(port: str, teachers: Mapping[str, Teacher]) -> dict[str, dict[str, float] | str]:
    """Returns the errors of the port's components by case and path, or a reason."""
    with contextlib.closing(open_worker(port, threads=1)) as worker:
        if worker.greeting[0] != "ready":
            return dict.fromkeys(teachers, f"{worker.greeting[0]}: {worker.greeting[1]}")
        found: dict[str, dict[str, float] | str] = {}
        for identity, teacher in teachers.items():
            kind, answer = worker.call("trace", teacher.case, [None])
            if kind != "outputs":
                found[identity] = f"{kind}: {answer}"
                continue
            rows = TracedRuns(teacher, answer[0]).result(port, identity, DTYPE).rows
            found[identity] = {row.path: row.free.ratio for row in rows if row.free is not None}
        return found


def _pass(teacher: Teacher, identity: str, answers: Mapping[str, Mapping[str, dict[str, float] | str]]) -> Pass:
    own = {port: found[identity] for port, found in answers.items()}
    errors = {port: found for port, found in own.items() if isinstance(found, dict)}
    steps = [_step(teacher, path, depth, errors) for path, depth in _tree(teacher, "", 0)]
    return Pass(teacher.case, steps, {port: found for port, found in own.items() if isinstance(found, str)})


def _tree(teacher: Teacher, path: str, depth: int) -> list[tuple[str, int]]:
    """Returns the component at the path, followed by its parts."""
    children = [name for name, call in teacher.calls.items() if name and call.parent == path]
    return [(path, depth), *(row for child in children for row in _tree(teacher, child, depth + 1))]


def _step(teacher: Teacher, path: str, depth: int, errors: Mapping[str, Mapping[str, float]]) -> Step:
    call, floating = teacher.calls[path], teacher.calls[path].output.dtype.kind == "f"
    return Step(
        path=path,
        component=call.component,
        depth=depth,
        shape=call.output.shape,
        size=float(np.sqrt(np.mean(np.square(call.output, dtype=np.float64)))) if floating else np.nan,
        noise=teacher.free(path).noise if floating else 0.0,
        errors={port: found[path] for port, found in errors.items() if path in found and np.isfinite(found[path])},
    )
