"""The first divergence: which component of a whole model fails, although it is given what the reference gives it.

The port runs once free, and once for every component with that component's inputs replaced with the reference's. In the free run an error
spreads to everything that follows; a component that fails on the reference's inputs is wrong itself. Only one component is forced in a run
and what it is made of runs free, so that wrong wiring inside it (a query taken before the residual) shows in it and is not hidden.
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

CHUNK = 8  # forced runs in one question to the port, which builds and loads the model once for it


def divergence(
    worker: Worker,
    case: Case,
    dtype: str,
    device: str = "cpu",
    limit: float = 120.0,
    progress: Callable[[float], None] = lambda share: None,
) -> Divergence:
    """Runs the worker's port on the case, free and forced, and finds the first component in the order of execution, the deepest, that fails
    on the reference's inputs while none of its own parts does.

    A component that fails within one that does not is no divergence: the port divides the work otherwise there.
    case: with the config fields that the port fixes. limit: seconds for a few runs. progress is called with the share of the runs that is
    done.
    """
    teacher = Teacher(case.at(dtype, device))
    kind, answer = worker.call("trace", teacher.case, [None], limit=limit)
    if kind in (Kind.CRASH, Kind.HANG) and worker.call("trace", teacher.case, [], limit=limit)[0] == Kind.OUTPUTS:  # it can be built
        return _until_death(worker, teacher, limit, f"{kind}: {answer}").result(worker.port, case.id, dtype)
    if kind != Kind.OUTPUTS or "refused" in answer[0].get("", ()):
        problem = f"{kind}: {answer}" if kind != Kind.OUTPUTS else answer[0][""]["refused"]
        return Divergence(worker.port, case.id, dtype, f"{case.component} could not be traced: {problem}", problem=problem)
    traced = TracedRuns(teacher, answer[0])
    for done, paths in enumerate(chunks(traced.paths)):
        progress(done * CHUNK / len(traced.paths))
        for path, reply in run_forced(worker, teacher.case, [Force(path, teacher.arrays(path)) for path in paths], limit):
            traced.add(path, *reply)
        if traced.deaths > RESTARTS:
            traced.problem = f"the port's process had ended {traced.deaths} times; what follows is unknown"
            break
    return traced.result(worker.port, case.id, dtype)


def _until_death(worker: Worker, teacher: Teacher, limit: float, problem: str) -> TracedRuns:
    """What can be known of a port whose process ends in the free run: a run ends with the component that is forced, and before it is free.

    The first component to finish whose run ends the process is the one that does so, or something between it and the one before.
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
    """The paths, as many at a time as are one question to the port."""
    for start in range(0, len(paths), CHUNK):
        yield paths[start : start + CHUNK]


def run_forced(worker: Worker, case: Case, forces: list[Force], limit: float) -> Iterator[tuple[str, Answer]]:
    """The port's answer for each forced component: from one question, or one by one where that one has no answer."""
    kind, answers = worker.call("trace", case, forces, limit=limit)
    if kind == Kind.OUTPUTS:
        yield from ((force.path, (kind, answer)) for force, answer in zip(forces, answers, strict=True))
    elif len(forces) == 1:
        yield forces[0].path, (kind, answers)
    else:
        for force in forces:
            yield from run_forced(worker, case, [force], limit)
