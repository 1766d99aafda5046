"""The processes of a port on a mesh: all get the same case; one that fails is a row and ends the others; the next case gets new ones."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import store
from messages import mentions

from reference_numpy.sharding import Mesh
from rosettaformer.common.processes import Answer
from rosettaformer.common.processes.program import Stopped
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports import children, process
from rosettaformer.judge.ports.children import Children
from rosettaformer.judge.ports.process import Process
from rosettaformer.judge.status import Status
from rosettaformer.judge.suite.meshes import mesh_cases

PORT = str(Path(__file__).parents[1] / "ports" / "mesh_torch.py")
ABOUT = {"modes": ["eager"], "config": {}, "dtypes": ["float32"], "components": [], "processes": True}
Respond = Callable[[int, int], Answer]  # takes the rank and the question's number
WAITS = ("waits", None)  # waits for the others forever


def _filled(value: float) -> Answer:
    return "outputs", {"output": np.full((2, 3), value, "float32")}


ONES = _filled(1.0)


class _Child:
    """Answers by a function of its rank and the question's number; the handshake is number 0."""

    def __init__(self, rank: int, answer: Respond, environment: Mapping[str, str], stopped: Any) -> None:
        self.rank, self.environment, self.asked = rank, environment, 0
        self.running, self.ended = True, False
        self._answer, self._stopped = answer, stopped

    def ask(self, *question: Any, limit: float) -> None:
        self.asked += 1

    def answer(self, limit: float) -> Answer:
        kind, value = self._answer(self.rank, self.asked)
        while kind == "waits":
            if self._stopped.is_set():
                raise Stopped
            time.sleep(0.005)
        if kind in ("crash", "hang"):
            self.running, self.ended = False, True
        return kind, value

    def refuse(self, why: str) -> Answer:
        self.close()
        return "error", why

    def close(self) -> int:
        self.running = False
        return 0


def _group(answer: Respond, devices: int = 4, **options: Any) -> tuple[Children, list[_Child]]:
    started: list[_Child] = []

    def start(rank: int, environment: Mapping[str, str], halt: Any) -> Any:
        started.append(_Child(rank, answer, environment, halt))
        return started[-1]

    return Children(start, devices, **options), started


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait after a process fails; a fake child has its own `close`."""
    monkeypatch.setattr(children, "GRACE", 0.1)
    monkeypatch.setattr(children, "Child", _Child)


def _ready(answers: Mapping[int, Answer] | None = None, other: Answer = ONES) -> Respond:
    return lambda rank, asked: ("ready", ABOUT) if not asked else (answers or {}).get(rank, other)


def test_each_process_has_the_environment_of_torchrun_and_is_asked_the_same() -> None:
    group, started = _group(_ready())
    assert [child.rank for child in started] == [0]  # the required number is not known yet
    assert group.answer(1) == ("ready", ABOUT) and group.by_processes
    assert [child.environment["RANK"] for child in started] == [child.environment["LOCAL_RANK"] for child in started] == [*"0123"]
    assert {child.environment["WORLD_SIZE"] for child in started} == {child.environment["LOCAL_WORLD_SIZE"] for child in started} == {"4"}
    assert len({(child.environment["MASTER_ADDR"], child.environment["MASTER_PORT"]) for child in started}) == 1
    group.ask("answer", limit=1)
    assert group.answer(1) == ONES and [child.asked for child in started] == [1] * 4 and group.running and not group.ended
    group.close()
    assert not any(child.running for child in started)


def test_processes_that_are_known_to_be_needed_start_together() -> None:
    group, started = _group(_ready(), 3, known=True)
    assert [child.rank for child in started] == [0, 1, 2]
    assert group.answer(1) == ("ready", ABOUT) and group.answer(1)[0] == "ready" and len(started) == 3


def test_a_port_that_has_all_devices_in_one_process_has_one() -> None:
    group, started = _group(lambda rank, asked: ONES if asked else ("ready", ABOUT | {"processes": False}))
    assert group.answer(1)[0] == "ready" and len(started) == 1 and not group.by_processes


FAILURES: dict[str, tuple[dict[int, Answer], Answer, Answer]] = {
    "a crash, others wait": ({2: ("crash", "signal 9")}, WAITS, ("crash", "process 2 of 4: signal 9")),
    "a crash, others say so": ({2: ("crash", "signal 9")}, ("error", "closed by peer"), ("crash", "process 2 of 4: signal 9")),
    "an error, others wait": ({1: ("error", "no")}, WAITS, ("error", "process 1 of 4: no")),
    "an error, others answer": ({1: ("error", "no")}, ONES, ("error", "process 1 of 4: no")),
    "a hang": ({3: ("hang", "no answer within 1 s")}, ONES, ("hang", "process 3 of 4: no answer within 1 s")),
    "not covered": ({}, ("not covered", "no kernel"), ("not covered", "no kernel")),
    "another shape": (
        {1: ("outputs", {"output": np.ones((2, 4), "float32")})}, ONES,
        ("differs", "(2, 4) … process 1 … (2, 3) … process 0"),
    ),
    "no arrays": ({3: ("outputs", [1])}, ONES, ("differs", "process 3 … array")),
    "other names": ({3: ("outputs", {})}, ONES, ("differs", "process 3 … process 0")),
    "another value": ({2: _filled(1.5)}, ONES, ("differs", "process 2")),
    "NaN": ({2: _filled(np.nan)}, ONES, ("differs", "process 2")),
    "a rounding": ({2: _filled(1 + 2**-23)}, ONES, ONES),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_one_process_that_fails_or_differs_is_the_answer(name: str) -> None:
    answers, other, wanted = FAILURES[name]
    group, started = _group(_ready(answers, other))
    assert group.answer(1)[0] == "ready"
    group.ask("answer", limit=1)
    found = group.answer(1)
    assert found[0] == wanted[0] and (wanted is ONES or mentions(found[1], wanted[1]))
    lost = other == WAITS or "crash" in name or "hang" in name
    assert group.running != lost and group.ended == lost  # a process that still waits, or has lost a peer, is ended
    assert [child.running for child in started] == [not lost] * 4


def test_a_process_that_does_not_start_is_said() -> None:
    group, _ = _group(lambda rank, asked: ("error", "no torch") if rank == 2 else ("ready", ABOUT))
    assert group.answer(1) == ("error", "process 2 of 4: no torch")


def test_a_run_that_stops_waits_for_no_process() -> None:
    stopped = threading.Event()
    group, _ = _group(_ready({}, WAITS), stopped=stopped)
    group.answer(1)
    group.ask("answer", limit=1)
    stopped.set()
    with pytest.raises(Stopped):
        group.answer(1)


def test_xla_has_the_devices_behind_the_flags_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--own=1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "kept")
    started: list[tuple[int, Mapping[str, str]]] = []

    class Spawned(_Child):
        def __init__(self, module: str, port: str, threads: int, who: str, stopped: Any, environment: Mapping[str, str]) -> None:
            started.append((threads, environment))
            super().__init__(0, lambda rank, asked: ("ready", ABOUT | {"processes": port != "jax"}), environment, stopped)

    monkeypatch.setattr(process, "Child", Spawned)
    monkeypatch.setattr(children, "Child", Spawned)
    for port, mesh in (("jax", Mesh(data=2, model=4)), ("jax", None), ("mine.py", Mesh(data=2, model=2))):
        started.clear()
        Process(port, 8, 1.0, quick_compile=True, mesh=mesh).close()
        flags = started[0][1].get("XLA_FLAGS", "").split()
        assert flags[-2:] == (["--own=1", f"--xla_force_host_platform_device_count={mesh.devices}"] if mesh else [flags[-2], "--own=1"])
        assert (process.QUICK_XLA.split()[0] in flags) == (port == "jax")
        assert [threads for threads, _ in started] == ([8, 2, 2, 2] if port == "mine.py" else [8])


CASES = [case for case in mesh_cases([Mesh(data=2)]) if case.component in ("layer_norm", "layer_norm_vjp", "rms_norm")]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()


def _again() -> list[Case]:
    norm = CASES[0]
    return [norm, dataclasses.replace(norm, name=f"{norm.name}_2"), *CASES[1:]]


# the action of rank 1 in the second case -> its status and message
WRONG = {
    "": ("pass", ""),
    "crash": ("crash", "process 1 of 2 … exit code 3"),
    "raise": ("error", "process 1 of 2: RuntimeError: a device is gone (mesh_torch.py:42)"),
    "refuse": ("error", "ValueError: no device is there (mesh_torch.py:44)"),
    "hang": ("hang", "no answer within 30 s"),
    "exit": ("", ""),
}


@pytest.mark.conformance
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("fault", WRONG)
def test_two_processes_of_torch_answer_and_what_one_does_is_a_row(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setattr(children, "GRACE", 1.0)
    rows = runner.run(_again(), [PORT], ["float32"], limit=30 if fault == "hang" else 90, store=store())
    if fault == "exit":
        assert [(row.status, mentions(row.message, "process 1 of 2 … exit code 4")) for row in rows] == [("not started", True)]
        return
    found = {row.case.partition("/")[2] + row.component: (row.status, row.message) for row in rows}
    assert len(found) == 4 and {row.mesh for row in rows} == {"data=2,model=1"}
    kind, message = found.pop("sharded_plain_2layer_norm")
    assert kind == WRONG[fault][0] and mentions(message, WRONG[fault][1].partition(" (mesh")[0])
    assert mentions(" ".join(found.pop("sharded_plainrms_norm")), "not covered … on_mesh … rms_norm")
    assert {*found.values()} == {("pass", "")}  # the next case gets new processes


@pytest.mark.conformance
@pytest.mark.usefixtures("real")
def test_processes_that_disagree_are_a_row_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "apart")
    rows = runner.run(CASES[:1], [PORT], ["float32"], limit=90, store=store())
    assert [mentions(row.message, "1 … process 1 … process 0") for row in rows] == [True]


MESHES = {
    "torch": ("data=2", "model=2", "data=2,replicate", "data=2,model=2", "model=4"),
    "jax": ("data=2,model=4", "data=4,model=2", "data=8", "model=8"),
    "tf": ("data=2,replicate",),
}


PLACES = [(port, mesh) for port, meshes in MESHES.items() for mesh in meshes]
TRAINED = ("training_steps", "training_loss_vjp", "transformer")


@pytest.mark.conformance
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(("port", "mesh"), PLACES)
def test_every_case_of_a_port_on_a_mesh_equals_the_reference(port: str, mesh: str) -> None:
    cases, dtypes = mesh_cases([Mesh.parse(mesh)]), ["float64", "float32"]
    results = runner.run(cases, [port], dtypes, quick_compile=True, store=store())
    statuses = {(row.case, row.dtype, row.message): row.status for row in results}
    assert {*statuses.values()} <= {Status.PASS, Status.NOT_COVERED}, statuses
    passed = {row.case for row in results if row.status == Status.PASS}
    assert {case.id for case in cases if case.component in TRAINED} <= passed
