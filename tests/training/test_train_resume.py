"""A run that is killed and resumed equals an uninterrupted run, and no kill leaves an unreadable checkpoint."""

import contextlib
import dataclasses
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import PORTS
from checkpoint_models import assert_same_bits
from invoke import refused
from messages import mentions
from model_folders import FOUR_NEEDS
from training_runs import TINY, fields, log, process, train

from reference_numpy.training import Trainer
from rosettaformer.files.checkpoints import canonical
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.corpus import Position
from rosettaformer.use.training.manifest import Manifest
from rosettaformer.use.training.run import resume
from rosettaformer.use.training.run_log import read_log
from rosettaformer.use.training.tokens import PADDING

KILLS = 10  # kills of the reference's run; for a framework's run, see --kills
STEPS = 60
EVERY = ("--steps", STEPS, *fields("--loop", save_every=4, validate_every=15, sample=4))


def assert_readable(folder: Path) -> None:
    """Asserts that every checkpoint of the run is readable, with optimizer and progress."""
    if not Manifest.exists(folder):
        return
    config, store = Manifest.read(folder).config, Store(folder)
    for path in store.paths():
        lone = Store(folder)
        lone.paths = lambda path=path: [path]  # type: ignore[method-assign]
        found, problems = lone.newest(config)
        assert found is not None and not problems
    for path in (store.best, store.average):
        if path.exists():
            canonical.load(path)


def steps_of(folder: Path) -> int:
    """Returns the number of steps in the log."""
    file = folder / "log.jsonl"
    return file.read_bytes().count(b'"event": "step"') if file.exists() else 0


@pytest.mark.conformance
@pytest.mark.parametrize("backend", FOUR_NEEDS)
def test_killed_again_and_again_the_loss_curve_is_that_of_the_uninterrupted_run(
    tmp_path: Path, backend: str, pytestconfig: pytest.Config
) -> None:
    pytest.importorskip(FOUR_NEEDS[backend])
    kills = KILLS if backend == "numpy" else pytestconfig.getoption("--kills")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = (*TINY, "--backend", backend, *EVERY)
    assert process("train", "--out", whole, *arguments).wait() == 0
    rng = random.Random(backend)
    for kill in range(kills):
        begun = Manifest.exists(killed)
        running = process("train", "--out", killed, *(("--resume",) if begun else arguments))
        done = steps_of(killed)
        wanted = min(done, STEPS - 5) + rng.randrange(0, 8)
        while running.poll() is None and steps_of(killed) < wanted:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert_readable(killed)
        assert kill or done == 0
    assert process("train", "--out", killed, *(("--resume",) if Manifest.exists(killed) else arguments)).wait() == 0
    assert_readable(killed)
    assert [entry["step"] for entry in log(killed)] == list(range(1, STEPS + 1))
    for event in ("step", "validation"):
        assert log(killed, event) == log(whole, event)
    (state, progress), (wanted, at) = (Store(run).newest(Manifest.read(run).config)[0] for run in (killed, whole))
    assert dataclasses.replace(progress, seconds=0) == dataclasses.replace(at, seconds=0)
    assert_same_bits(state, wanted)
    assert not [*killed.glob(".*.tmp"), *killed.glob("checkpoints/.*.tmp")]


@pytest.mark.parametrize("call", [pytest.param(call, marks=() if call in (3, 8) else pytest.mark.conformance) for call in range(1, 13)])
def test_killed_while_it_puts_a_checkpoint_on_the_disk(tmp_path: Path, call: int) -> None:
    """The process kills itself at its n-th fsync: before, during and after the renaming of files and folders."""
    script = (
        "import os, signal, sys; real, left = os.fsync, [int(sys.argv.pop(1))]\n"
        "def fsync(descriptor):\n"
        "    left[0] -= 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if left[0] == 0 else real(descriptor)\n"
        "os.fsync = fsync\n"
        "from rosettaformer.cli import main; main()"
    )
    folder = tmp_path / "run"
    few = (*TINY, "--steps", 2, *fields("--loop", save_every=1, sample=1))
    line = [sys.executable, "-c", script, str(call), "train", "--out", folder, *few]
    ended = subprocess.run([*map(str, line)], capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert_readable(folder)
    if Manifest.exists(folder):
        train(folder, "--resume")
    else:
        train(folder, "--steps", 2, *fields("--loop", save_every=1, sample=1))
    assert [entry["step"] for entry in log(folder)] == [1, 2]
    assert_readable(folder)
    assert not [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> None:
    """Calls a function within a step of the reference."""
    real = Trainer.train_step

    def step(trainer: Trainer, *batch: Any) -> float:
        if trainer.steps + 1 == number:
            action()
        return real(trainer, *batch)

    monkeypatch.setattr(Trainer, "train_step", step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step_with_a_checkpoint_and_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    at_step(monkeypatch, 5, lambda: signal.raise_signal(number))
    assert "asked to stop" in train(folder, "--steps", 20).err
    found, _ = Store(folder).newest(Manifest.read(folder).config)
    assert found is not None and found[1].steps == log(folder)[-1]["step"] == 5
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "loss.svg").exists()
    assert (folder / "average.safetensors").exists()


@pytest.mark.parametrize("backend", [pytest.param(name, marks=() if name == "torch" else pytest.mark.conformance) for name in PORTS])
def test_a_run_goes_on_in_another_backend(tmp_path: Path, backend: str) -> None:
    framework = pytest.importorskip(FOUR_NEEDS[backend])
    folder, alone = tmp_path / "run", tmp_path / "alone"
    for path in (folder, alone):
        train(path, "--set", "dropout_rate=0", "--steps", 10, "--loop", "sample=1")
    with framework.compiler.set_stance("force_eager") if backend == "torch" else contextlib.nullcontext():  # no graph is compiled
        train(folder, "--resume", "--backend", backend, "--steps", 20)
    train(alone, "--resume", "--steps", 20)
    assert [entry["backend"] for entry in log(folder, "start")] == ["numpy", backend]
    losses, others = ([entry["loss"] for entry in log(path)] for path in (folder, alone))
    assert losses[:10] == others[:10]
    np.testing.assert_allclose(losses, others, rtol=1e-4)  # float32 rounding, grown over ten steps
    assert Manifest.read(folder).free["backend"] == backend


def test_only_the_last_checkpoints_stay_and_their_mean_is_the_average(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, "--steps", 12, *fields("--loop", save_every=2, keep=3, average=2, sample=1))
    store = Store(folder)
    assert [path.name for path in store.paths()] == ["step-00000008", "step-00000010", "step-00000012"]
    last_two = [canonical.load(path).parameters for path in store.models()[-2:]]
    for name, value in canonical.load(store.average).parameters.items():
        mean = np.mean([parameters[name].astype(np.float64) for parameters in last_two], axis=0)
        np.testing.assert_array_equal(value, mean.astype(np.float32))


def test_patience_ends_the_run_and_best_is_the_model_of_the_lowest_loss(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ("--recipe", "warmup=1", "--steps", 400, *fields("--loop", validate_every=5, save_every=5, patience=2, sample=1, keep=100))
    train(folder, *arguments)
    losses = [entry["loss"] for entry in log(folder, "validation")]
    assert len(losses) < 80
    assert min(losses) == losses[-3]
    best = Store(folder).paths()[len(losses) - 3]
    assert (folder / "best.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()


def test_a_run_is_trained_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, said = tmp_path / "run", []
    at_step(monkeypatch, 2, lambda: said.append(refused("train", "--out", folder, "--resume")))
    train(folder, "--steps", 2, "--loop", "sample=1")
    assert mentions(said[0], "another … process")


def test_every_step_takes_the_next_batch_and_a_checkpoint_remembers_it(tmp_path: Path) -> None:
    """80 strings in batches of 10 to 12 rows: an epoch of eight batches is followed by the next. The logged number of tokens
    excludes padding.
    """
    folder = tmp_path / "run"
    said = train(folder, "--steps", 20, *fields("--loop", save_every=1, keep=20, sample=1)).err
    saved = [json.loads((path / "progress.json").read_text()) for path in Store(folder).paths()]
    assert [found["steps"] for found in saved] == list(range(1, 21))
    count = next(found["steps"] for found in saved if found["position"]["epoch"])
    assert [(found["position"]["epoch"], found["position"]["batch"]) for found in saved] == [divmod(step, count) for step in range(1, 21)]
    corpus, position, seconds, padded = resume(folder, None, {}, {}).corpus, Position(), 0.0, 0
    entries = [entry for entry in read_log(folder / "log.jsonl") if entry["event"] == "step"]
    for entry in entries:
        source, target = corpus.batch(position)
        real = int((source != PADDING).sum()), int((target[:, 1:] != PADDING).sum())
        assert (entry["source_tokens"], entry["tokens"]) == real
        seconds, padded = seconds + sum(real) / entry["tokens_per_second"], padded + source.size - real[0]
        position = corpus.after(position)
    assert seconds == pytest.approx(entries[-1]["seconds"], rel=1e-3, abs=1e-3)
    assert padded
    assert re.search(r"step 20: all 20 steps are done\n[\d,]+ tokens/s .*\n.*average\.safetensors", said)
