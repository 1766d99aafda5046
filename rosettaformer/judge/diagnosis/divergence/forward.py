"""Finds the first component of a whole model that fails on the reference's inputs.

The port runs once freely, and once per component with that component's inputs replaced with the
reference's. In the free run an error spreads to everything after it; a component that fails on
the reference's inputs is wrong itself. A run forces only one component and leaves its parts free,
so that wrong dataflow inside it (a query taken before the residual) still shows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ....common.processes import Answer
from ...case import Case
from ...ports.adapters.recorder import Force
from ...ports.process import RESTARTS, Worker
from ...status import Kind
from .component_tree import Activations, Divergence, TracedRuns
from .teacher import Teacher

CHUNK = 8  # forced runs per question; the port builds and loads the model once for each question


def divergence(
    worker: Worker,
    case: Case,
    dtype: str,
    device: str = "cpu",
    limit: float = 120.0,
    progress: Callable[[float], None] = lambda share: None,
) -> Divergence:
    """Runs the worker's port on the case, free and forced, and finds where it first diverges.

    That is the first component in execution order, the innermost, that fails on the reference's
    inputs while none of its parts does. A component that fails within one that agrees does not
    count: the port splits the work differently there. case: with the config fields that the port
    fixes. limit: seconds for a few runs. progress is called with the finished share of the runs.
    """
    teacher = Teacher(case.at(dtype, device))
    kind, answer = worker.call("trace", teacher.case, [None], limit=limit)
    if kind in (Kind.CRASH, Kind.HANG) and worker.call("trace", teacher.case, [], limit=limit)[0] == Kind.OUTPUTS:  # it can be built
        return _until_death(worker, teacher, limit, f"{kind}: {answer}").result(worker.port, case.id, dtype)
    if kind != Kind.OUTPUTS or "refused" in answer[0].get("", ()):
        problem = f"{kind}: {answer}" if kind != Kind.OUTPUTS else answer[0][""]["refused"]
        return Divergence(worker.port, case.id, dtype, f"{case.component} could not be traced ({problem})", problem=problem)
    traced = TracedRuns(teacher, answer[0])
    for done, paths in enumerate(chunks(traced.paths)):
        progress(done * CHUNK / len(traced.paths))
        for path, reply in run_forced(worker, teacher.case, [Force(path, teacher.arrays(path)) for path in paths], limit):
            traced.add(path, *reply)
        if traced.deaths > RESTARTS:
            traced.problem = f"the port's process ended {traced.deaths} times; the remaining components are unknown"
            break
    return traced.result(worker.port, case.id, dtype)


def _until_death(worker: Worker, teacher: Teacher, limit: float, problem: str) -> TracedRuns:
    """Traces a port whose process dies in the free run, by forced runs alone.

    A forced run is free up to the forced component and ends with it. The first component whose run
    kills the process contains the cause, or follows right after it.
    """
    runs: dict[str, Activations] = {}
    dead = ""
    for path in filter(None, teacher.calls):
        kind, answer = worker.call("trace", teacher.case, [Force(path, teacher.arrays(path))], limit=limit)
        if kind != Kind.OUTPUTS:
            dead = path
            break
        if path in answer[0]:
            runs[path] = answer[0]
    free: dict[str, Mapping[str, Any]] = {path: {"inputs": []} for path in runs}
    for path, run in runs.items():
        free |= {name: call for name, call in run.items() if name and not f"{name}.".startswith(f"{path}.")}
    free |= {name: {"inputs": [], "error": problem} for name in ("", dead)}
    traced = TracedRuns(teacher, free, problem=problem)
    for path in (*runs, dead):
        traced.add(path, Kind.OUTPUTS, runs.get(path, free))
    return traced


def chunks(paths: list[str]) -> Iterator[list[str]]:
    """The paths in chunks of one question each."""
    for start in range(0, len(paths), CHUNK):
        yield paths[start : start + CHUNK]


def run_forced(worker: Worker, case: Case, forces: list[Force], limit: float) -> Iterator[tuple[str, Answer]]:
    """The port's answer for each forced component; one question, or one by one if that fails."""
    kind, answers = worker.call("trace", case, forces, limit=limit)
    if kind == Kind.OUTPUTS:
        yield from ((force.path, (kind, answer)) for force, answer in zip(forces, answers, strict=True))
    elif len(forces) == 1:
        yield forces[0].path, (kind, answers)
    else:
        for force in forces:
            yield from run_forced(worker, case, [force], limit)
