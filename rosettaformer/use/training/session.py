"""Runs one call of `train`: trains until a limit or a signal, then averages, draws and tests."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import parameters, schedule

from ...common.meshes.together import OneProcess, decided, led, together
from . import answers, options, words
from .answers import Decoding
from .backends import Trainer
from .checkpoint_store import Store
from .holding import Interruption, alone
from .manifest import Manifest
from .progress import Progress
from .run import Run
from .run_log import Log, Report, Unlogged, draw_curves, read_log
from .tasks import Pair
from .tokens import PADDING

LOG, CURVES = "log.jsonl", ("loss.png", "loss.svg")


def train(run: Run, make_trainer: Callable[..., Trainer], report: Report, device: str) -> None:
    """Trains a run from its newest checkpoint, or from initial parameters, in every process.

    Raises ValueError if training diverges, the disk fails or another process trains this run, and
    Elsewhere if another process of the mesh fails. The last good checkpoint stays.
    """
    manifest, free = run.manifest, run.manifest.free
    seed = manifest.fixed["seed"]
    placed: dict[str, Any] = {"device": device, "mesh": options.mesh(free), "recompute": free["recompute"]}
    fresh = [parameters.initialise(manifest.config, seed, np.float32)]  # popped below, to free the memory
    trainer = make_trainer(manifest.config, manifest.recipe, fresh.pop(), seed=seed, **placed)
    group = trainer.group
    store = Store(run.folder, free["keep"], group)
    with contextlib.ExitStack() as held, Interruption() as interruption:
        led(group, lambda: held.enter_context(_alone(run.folder)))
        progress = _restored(run, trainer, store, report)
        log = together(group, lambda: Log(run.folder / LOG, progress.steps) if group.rank == 0 else Unlogged())
        with contextlib.closing(log), report.bar:
            loop = _Loop(run, trainer, store, log, report, interruption, progress, progress.steps or None)
            try:
                led(group, lambda: _begin(run, store, log, progress))
                together(group, lambda: _refuse_another(run))
                loop.finish(loop.train())
            except (ValueError, OSError) as error:
                raise loop.failure(error) from error


def _alone(folder: Path) -> contextlib.AbstractContextManager[object]:
    folder.mkdir(parents=True, exist_ok=True)
    return alone(folder)


def _begin(run: Run, store: Store, log: Log | Unlogged, progress: Progress) -> None:
    store.clean()
    run.manifest.write(run.folder, run.tokens)
    log.write({"event": "start", "step": progress.steps, "backend": run.manifest.free["backend"]})


def _refuse_another(run: Run) -> None:
    """Raises ValueError if this process's run differs from the first one's in the folder."""
    if Manifest.read(run.folder).fingerprint != run.manifest.fingerprint:
        raise ValueError(f"every process must have the same task, data and options; those of the run in {run.folder} differ")


def _restored(run: Run, trainer: Trainer, store: Store, report: Report) -> Progress:
    """Loads the newest checkpoint into the trainer, and returns the run's progress."""
    seed = run.manifest.fixed["seed"]

    def take(state: Mapping[str, np.ndarray], progress: Progress) -> None:
        if progress.seed != seed or not run.corpus.holds(progress.position, progress.steps):
            raise ValueError(f"its seed and its position do not fit the run's data; got {progress.seed} and {progress.position}")
        trainer.load_state(state, progress.steps)

    found, problems = store.newest(run.manifest.config, take)
    for problem in problems:
        report.say(words.older_checkpoint(problem))
    return found[1] if found else Progress(seed=seed)


@dataclass
class _Loop:
    """Trains until a limit, the end of patience, or a stop request, and saves a checkpoint.

    A step is logged before its validation, and both precede its checkpoint, so that a resumed run
    repeats exactly the steps that the log no longer has.
    """

    run: Run
    trainer: Trainer
    store: Store
    log: Log | Unlogged
    report: Report
    interruption: Interruption
    progress: Progress
    saved: int | None  # the step of the newest checkpoint
    began: float = field(default_factory=time.monotonic)
    stopped: bool = False  # a process was asked to stop
    shapes: set[tuple[int, ...]] = field(default_factory=set)  # batch shapes of completed steps

    def train(self) -> str:
        """Trains; returns why it ended. Raises ValueError if the loss is not finite, or OSError."""
        free = self.run.manifest.free
        while not (reason := self._reason()):
            self._step()
            if self.progress.steps % free["validate_every"] == 0:
                self.progress = self.progress.validated(self._validate())
                if decided(self.trainer.group, self.progress.stale == 0):
                    self.store.save_best(self.run.manifest.config, self.trainer.tensors())
            if self.progress.steps % free["save_every"] == 0:
                self._save()
        if self.saved != self.progress.steps:
            self._save()
        return reason

    def finish(self, reason: str) -> None:
        """Averages the checkpoints, draws the curves, and scores the test pairs unless stopped."""
        led(self.trainer.group, lambda: self._finish(reason))
        if not self.stopped:
            self._test()

    def _finish(self, reason: str) -> None:
        folder, count = self.run.folder, self.store.save_average(self.run.manifest.free["average"])
        draw_curves(read_log(folder / LOG), [folder / name for name in CURVES])
        self.report.say(words.ended(self.progress.steps, reason, self.report.speed, folder, count))

    def failure(self, error: Exception) -> ValueError:
        """Describes the error that ended a run."""
        place = f"the last good checkpoint is that of step {self.saved}" if self.saved else "there is no checkpoint yet"
        lost, cause = isinstance(error, ConnectionError), error.__cause__ if isinstance(error, OneProcess) else error
        what = f"could not write: {error}" if isinstance(cause, OSError) and not lost else str(error)
        kind = OneProcess if isinstance(error, OneProcess) else ValueError
        return kind(f"stopped after step {self.progress.steps}: {what}; {place}")

    def _test(self) -> None:
        """Scores the last and the averaged parameters on all test pairs."""
        pairs = self.run.data.test
        for name in ("last", "average"):
            if name == "average":
                self.trainer.load_state(self.store.averaged(), self.progress.steps)
            scores = self._scores(pairs)
            self.log.write({"event": "test", "step": self.progress.steps, "checkpoint": name, "pairs": len(pairs)} | scores)
            self.report.scores(f"test, {name} ({len(pairs)} pairs)", scores)

    def _scores(self, pairs: Sequence[Pair]) -> dict[str, float]:
        return answers.scores(self.trainer, self.run.tokens, pairs, Decoding(self.run.manifest.limits))

    def _reason(self) -> str:
        """Returns why the run ends now, the same in every process; empty if it goes on."""
        free, done, group = self.run.manifest.free, self.progress, self.trainer.group
        self.stopped = group.any(self.interruption.asked)
        if self.stopped:
            return words.ASKED
        if done.steps >= free["steps"]:
            return words.all_done(free["steps"])
        if free["minutes"] is not None and decided(group, self._seconds() >= 60 * free["minutes"]):
            return words.out_of_time(free["minutes"])
        if free["patience"] is not None and decided(group, done.stale >= free["patience"]):
            return words.no_better(done.stale)
        return ""

    def _step(self) -> None:
        corpus, before = self.run.corpus, self._seconds()
        source, target = corpus.batch(self.progress.position)
        number = self.progress.steps + 1
        with self.interruption.held():
            loss = float(self.trainer.train_step(source, target))
        if not math.isfinite(loss):
            raise ValueError(f"training has diverged: the loss of step {number} is {loss}. Try --recipe warmup=N or --recipe clip_norm=1")
        taken, real = self._seconds() - before, _real_tokens(source, target)
        rate = float(schedule.noam(number, self.run.manifest.config.model_width, self.run.manifest.recipe.warmup))
        self.progress = replace(
            self.progress, steps=number, position=corpus.after(self.progress.position), seconds=self.progress.seconds + taken
        )
        speed = {"tokens_per_second": round(sum(real.values()) / max(taken, 1e-9), 1)}
        self._write("step", {"loss": loss, **real, "learning_rate": rate, **speed})
        self.report.step(number, loss, sum(real.values()), self._share())
        shape = (*source.shape, target.shape[1])
        if shape not in self.shapes and options.compiles(self.run.manifest.free):
            self.report.say(words.compiled(shape, taken))
        self.shapes.add(shape)

    def _validate(self) -> float:
        run = self.run
        loss = answers.loss_per_token(self.trainer, run.corpus.buckets, run.corpus.validation)
        sample = run.data.validation[: run.manifest.free["sample"]]
        values = {"loss": loss} | self._scores(sample)
        self._write("validation", values | {"sample": len(sample)})
        self.report.scores(f"step {self.progress.steps}, validation", values)
        return loss

    def _save(self) -> None:
        led(self.trainer.group, self.log.sync)
        self.store.save(self.run.manifest.config, self.trainer.tensors(), self.progress)
        self.saved = self.progress.steps

    def _write(self, event: str, values: dict[str, Any]) -> None:
        self.log.write({"event": event, "step": self.progress.steps} | values | {"seconds": round(self.progress.seconds, 3)})

    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _share(self) -> float:
        free = self.run.manifest.free
        shares = [self.progress.steps / free["steps"]]
        if free["minutes"]:
            shares.append(self._seconds() / (60 * free["minutes"]))
        return min(max(shares), 1.0)


def _real_tokens(source: np.ndarray, target: np.ndarray) -> dict[str, int]:
    """Counts the real tokens of a batch: those of the source, and the labels in the target."""
    return {"source_tokens": int((source != PADDING).sum()), "tokens": int((target[:, 1:] != PADDING).sum())}
