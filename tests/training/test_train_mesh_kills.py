"""A run on several devices that is killed, interrupted or resumed elsewhere equals an uninterrupted run, and reports what happened."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import heed_interrupts, marked
from messages import mentions
from training_runs import TINY, fields, log, process, train

from rosettaformer.common.meshes import failing
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.manifest import Manifest

pytest.importorskip("torch")

pytestmark = pytest.mark.conformance
STEPS = 14
FLOAT32 = 1e-4  # tolerance of a loss: rounding in other orders, which grows over the steps
FOUR = ("--mesh", "data=2,model=2")
OWN = ("--backend", "torch", "--steps", STEPS, *fields("--loop", save_every=2, validate_every=100, sample=1, keep=3, average=1))
RUN = (*TINY, *OWN)
WAIT = 300.0  # seconds until processes have started on a busy machine


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"} | more


@contextlib.contextmanager
def begun(folder: Path, *arguments: object, steps: int = 4) -> Iterator[subprocess.Popen[str]]:
    """Starts the command and waits for the checkpoint of that step."""
    with process("train", "--out", folder, *arguments, env=environment(), preexec_fn=heed_interrupts) as running:
        try:
            deadline = time.monotonic() + WAIT
            while not (folder / f"checkpoints/step-{steps:08}").is_dir():
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield running
        finally:
            running.kill()


def of_rank(rank: int, launcher: int) -> int:
    """Returns the process of a rank that a command has started."""
    (found,) = set(marked(f"{failing.LAUNCHER}={launcher}\0")) & set(marked(f"\0RANK={rank}\0"))
    return found


def losses(folder: Path) -> list[float]:
    entries = log(folder)
    assert [entry["step"] for entry in entries] == [*range(1, len(entries) + 1)]
    return [entry["loss"] for entry in entries]


def ended(running: subprocess.Popen[str], within: float) -> tuple[int, str]:
    _, said = running.communicate(timeout=within)
    return running.returncode, said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on a mesh of two, with dropout."""
    folder = tmp_path_factory.mktemp("mesh") / "whole"
    train(folder, *OWN, "--mesh", "data=2")
    return folder


def test_one_of_four_is_killed_and_two_go_on_to_the_same_curve(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    with begun(folder, *RUN, "--steps", 10_000, *FOUR) as running:
        victim, began = of_rank(2, running.pid), time.monotonic()
        os.kill(victim, signal.SIGKILL)
        code, said = ended(running, 30)
    last = int(Store(folder).paths()[-1].name.removeprefix("step-"))
    assert code == 2 and time.monotonic() - began < 30
    message = f"rank 2 (of 4) … SIGKILL … step {last}; … --resume"
    assert said.count("Error: ") == 1 and mentions(said, message) and "Traceback" not in said
    assert not marked(f"{failing.LAUNCHER}={running.pid}\0")
    assert not [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*")]
    if last > STEPS:  # it was fast
        pytest.skip("the run was over before the kill")
    train(folder, "--resume", "--mesh", "data=2", "--steps", STEPS)
    np.testing.assert_allclose(losses(folder), losses(whole), rtol=FLOAT32)


@pytest.mark.parametrize("whom", ["launcher", "first", "last"])
def test_whoever_is_asked_to_end_all_end_with_a_checkpoint(tmp_path: Path, whom: str) -> None:
    folder = tmp_path / "run"
    with begun(folder, *RUN, "--steps", 10_000, "--mesh", "data=2") as running:
        if whom == "launcher":
            running.send_signal(signal.SIGINT)
        else:
            os.kill(of_rank(0 if whom == "first" else 1, running.pid), signal.SIGTERM)
        code, said = ended(running, 60)
    assert code == 0 and "asked to stop" in said and "Error" not in said
    found, problems = Store(folder).newest(Manifest.read(folder).config)
    assert found is not None and not problems and found[1].steps == log(folder)[-1]["step"]


def test_when_the_launcher_is_killed_no_process_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begun(folder, *RUN, "--steps", 10_000, "--mesh", "data=2") as running:
        running.kill()
        deadline = time.monotonic() + 60
        while marked(f"{failing.LAUNCHER}={running.pid}\0") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not marked(f"{failing.LAUNCHER}={running.pid}\0")
    found, problems = Store(folder).newest(Manifest.read(folder).config)
    assert found is not None and not problems


def test_torchrun_starts_the_same_run(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rosettaformer", "train"]
    arguments = [str(word) for word in ("--out", folder, *RUN, "--steps", 6, "--mesh", "data=2")]
    done = subprocess.run([*line, *arguments], env=environment(), capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    assert losses(folder) == losses(whole)[:6]
    assert done.stderr.count("all 6 steps are done") == 1
    refused = subprocess.run([*line, *arguments], env=environment(), capture_output=True, text=True, timeout=WAIT)
    messages = [line for line in refused.stderr.splitlines() if line.startswith("Error: ")]  # torchrun repeats them in its own report
    assert refused.returncode and len(messages) == 1 and f"{folder} holds a run: continue it with --resume" in messages[0]


@pytest.mark.parametrize(("backend", "mesh"), [("jax", "data=2,model=2"), ("tf", "data=2")])
def test_a_run_of_torch_goes_on_in_another_framework_on_a_mesh(tmp_path: Path, backend: str, mesh: str) -> None:
    """Without dropout, whose masks differ by framework."""
    pytest.importorskip({"jax": "flax", "tf": "keras"}[backend])
    folder, alone = tmp_path / "run", tmp_path / "alone"
    few: tuple[Any, ...] = ("--set", "dropout_rate=0", *fields("--loop", save_every=3, validate_every=100, sample=1))
    train(folder, "--backend", "torch", "--mesh", "data=2", *few, "--steps", 3)
    with process("train", "--out", folder, "--resume", "--backend", backend, "--mesh", mesh, "--steps", 6, env=environment()) as running:
        code, said = ended(running, WAIT)
    assert code == 0, said
    assert re.search(r"step 6: all 6 steps are done", said)
    train(alone, *few, "--steps", 6)
    np.testing.assert_allclose(losses(folder), losses(alone), rtol=FLOAT32)
    assert [entry["backend"] for entry in log(folder, "start")] == ["torch", backend]
