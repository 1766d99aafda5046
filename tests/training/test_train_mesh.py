"""A run on several devices: the numbers of a single-device run, and one message for each error before anything is created."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import refused
from messages import mentions, naming
from thread_groups import in_threads
from training_runs import TINY, fields, log, train

from reference_numpy.sharding import Group, Mesh
from rosettaformer.common.meshes import failing, placing
from rosettaformer.common.meshes.together import Elsewhere, OneProcess, decided, led, together
from rosettaformer.use.training import options
from rosettaformer.use.training.holding import alone
from rosettaformer.use.training.manifest import Manifest

TORCH = (*TINY, "--backend", "torch")
FLOAT32 = 1e-5  # tolerance of a loss: six steps of rounding in other orders


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in log(folder)]


@pytest.mark.conformance
def test_two_processes_train_the_run_that_the_reference_trains_and_it_goes_on_there(tmp_path: Path) -> None:
    """Two torch processes, then the reference; compared with only the reference."""
    pytest.importorskip("torch")
    folder, alone = tmp_path / "run", tmp_path / "alone"
    arguments = ("--set", "dropout_rate=0", *fields("--loop", save_every=2, validate_every=3, sample=1), "--recipe", "microbatches=2")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    train(folder, "--backend", "torch", "--mesh", "data=2", "--recompute", *arguments, "--steps", 3)
    assert {number: signal.getsignal(number) for number in before} == before
    train(alone, *arguments, "--steps", 3)
    free = Manifest.read(folder).free
    assert (free["mesh"], free["recompute"]) == ("data=2,model=1", True)
    assert mentions(refused("train", "--out", folder, "--resume", "--backend", "numpy"), "--mesh data=2,model=1 … --mesh none")
    for path in (folder, alone):
        train(path, "--resume", "--backend", "numpy", "--mesh", "none", "--no-recompute", "--steps", 6)
    np.testing.assert_allclose(losses(folder), losses(alone), rtol=FLOAT32)
    validations, others = ([entry["loss"] for entry in log(path, "validation")] for path in (folder, alone))
    np.testing.assert_allclose(validations, others, rtol=FLOAT32)
    assert [entry["step"] for entry in log(folder)] == [*range(1, 7)]
    assert [entry["backend"] for entry in log(folder, "start")] == ["torch", "numpy"]
    assert [path.name.count("-of-00002") for path in sorted((folder / "checkpoints/step-00000002").glob("model-*"))] == [1, 1]
    assert (folder / "best.safetensors").exists() and (folder / "average.safetensors").exists()


# rejected requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mesh", "data=2"), "--mesh … data=2,model=1 … --mesh … none"),
        (("--mesh", "two"), "data=N,model=N"),
        (("--backend", "torch", "--mesh", "model=3"), "mesh's … h=2 … model=3"),
        (("--backend", "jax", "--mesh", "model=64"), "feed-forward … mesh's"),
        (("--backend", "torch", "--mesh", "data=300"), "256 … data=300,model=1"),
    ],
)
def test_a_mesh_that_cannot_be(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert mentions(refused("train", "--out", tmp_path / "run", *TINY, *arguments), message)
    assert not (tmp_path / "run").exists()


def test_devices_that_are_missing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() > 63:
        pytest.skip("there are 64 devices")
    errors = refused("train", "--out", tmp_path / "run", *TORCH, "--backend", "torch:cuda", "--mesh", "data=64")
    assert mentions(errors, f"data=64,model=1 … 64 … {torch.cuda.device_count()}")
    assert not (tmp_path / "run").exists()


def test_torch_on_a_mesh_and_numpy_say_nothing_of_compiling() -> None:
    meshes = {"numpy": None, "torch": "data=2", "jax": "data=2", "tf": "data=2"}
    compiles = {backend: options.compiles(options.FREE | {"backend": backend, "mesh": mesh}) for backend, mesh in meshes.items()}
    assert compiles == {"numpy": False, "torch": False, "jax": True, "tf": True}
    assert options.compiles(options.FREE | {"backend": "torch"})


def test_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        errors = refused("train", "--out", tmp_path / "run", *TORCH, "--mesh", "data=2")
    assert mentions(errors, f"{os.environ['MASTER_PORT']} … MASTER_PORT")
    monkeypatch.setenv("MASTER_PORT", "x")
    assert mentions(refused("train", "--out", tmp_path / "run", *TORCH, "--mesh", "data=2"), "MASTER_PORT … 'x'")
    assert not (tmp_path / "run").exists()


def test_a_run_in_training_is_refused_before_processes_start(run: Path) -> None:
    pytest.importorskip("torch")
    with alone(run):
        assert mentions(refused("train", "--out", run, "--resume", "--backend", "torch", "--mesh", "data=2"), "another … process")


def test_what_has_lost_a_process_of_torchrun_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failing.LAUNCHER, raising=False)
    wanted = "closed by peer; the advice$"
    with pytest.raises(ValueError, match=wanted), failing.recorded(2, 0, advice=lambda: "the advice"):
        raise RuntimeError("Connection closed by peer")


def test_processes_that_torchrun_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, text)
    mesh = Mesh(data=2)
    assert "the mesh data=2,model=1 needs 2 processes; torchrun has started 3" in refused(
        "train", "--out", tmp_path / "run", *TORCH, "--mesh", "data=2"
    )
    with pytest.raises(ValueError, match="a run without --mesh is one process; torchrun has started 3"):
        placing.place("torch", "cpu", None)
    for name, text in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, text)
    assert placing.started() == (2, 1)
    assert placing.to_start("torch", mesh) == 0
    assert placing.place("torch", "cuda", mesh) == placing.Place("cuda:1", 1, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match=naming("torchrun … starts")):
        placing.place("jax", "cpu", mesh)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match=naming("RANK … 'first'")):
        placing.place("torch", "cpu", mesh)


def test_what_jax_and_tensorflow_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("", f"{placing.XLA_DEVICES}=8"), ("--a=b", f"--a=b {placing.XLA_DEVICES}=8"), (placing.XLA_DEVICES + "=9",) * 2):
        monkeypatch.setenv("XLA_FLAGS", given)
        assert placing.place("jax", "cpu", Mesh(data=2, model=4)) == placing.Place("cpu")
        assert os.environ["XLA_FLAGS"] == wanted
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert placing.place("tf", "cpu", Mesh(data=3)) == placing.Place("cpu", 2, 3)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ValueError, match=naming("TF_CONFIG")):
        placing.place("tf", "cpu", Mesh(data=3))


# processes that agree


def test_one_failure_ends_all_and_one_says_why() -> None:
    def fail(group: Group, ranks: tuple[int, ...]) -> Any:
        if group.rank in ranks:
            raise OSError(f"disk {group.rank}")
        return group.rank

    assert in_threads(3, lambda group: together(group, lambda: fail(group, ()))) == [0, 1, 2]
    assert in_threads(3, lambda group: led(group, lambda: fail(group, (1,)))) == [0, None, None]
    errors = in_threads(3, lambda group: together(group, lambda: fail(group, (1, 2))))
    assert [type(error) for error in errors] == [Elsewhere, OneProcess, Elsewhere]
    assert str(errors[1]) == "the process of rank 1: disk 1"
    assert [type(error) for error in in_threads(2, lambda group: led(group, lambda: fail(group, (0,))))] == [OSError, Elsewhere]
    assert in_threads(2, lambda group: decided(group, group.rank == 0)) == [True, True]
    assert in_threads(2, lambda group: decided(group, group.rank == 1)) == [False, False]


RECORDS = {
    "mistake": {"kind": failing.MISTAKE, "message": "the disk is full"},
    "crash": {"kind": failing.CRASH, "message": "RuntimeError: Connection closed by peer", "traceback": "Traceback: lost\n"},
    "elsewhere": {"kind": failing.ELSEWHERE, "message": "rank 1 has failed"},
}


@pytest.mark.parametrize(
    ("ended", "said", "wanted"),
    [
        ({1: -9, 0: 1}, {0: "crash"}, "the process of rank 1 (of 3) was ended by SIGKILL"),
        ({1: -300, 0: 1}, {0: "crash"}, "the process of rank 1 (of 3) was ended by signal 300"),
        ({2: 2, 1: 2, 0: -6}, {2: "elsewhere", 1: "mistake"}, "the disk is full"),
        ({0: 1, 1: 7}, {0: "crash"}, "the process of rank 1 (of 3) ended with exit code 7"),
        ({0: 0, 1: 1}, {1: "crash"}, "the process of rank 1 (of 3) failed: RuntimeError: Connection closed by peer"),
    ],
)
def test_of_all_that_processes_say_one_is_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ended: dict[int, int], said: dict[int, str], wanted: str
) -> None:
    """A killed process makes the others fail; so does one with an error."""
    records, printed = (
        {rank: RECORDS.get(said.get(rank, ""), {}) for rank in range(3)},
        {rank: tmp_path / f"{rank}.txt" for rank in range(3)},
    )
    printed[1].write_text("its last words\x1b\n")
    if (mistake := failing.mistake(records)) and not failing.killed(ended):
        assert mistake == wanted
        return
    assert failing.problem(ended, 3, records, {rank: str(path) for rank, path in printed.items()}) == wanted
    shown = capsys.readouterr().err
    assert ("its last words\\x1b" in shown) == (ended.get(1) == 7) and ("Traceback" in shown) == ("failed" in wanted)
