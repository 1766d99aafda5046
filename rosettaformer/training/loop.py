"""The training loop, which any backend plugs into, and its end between two steps."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Self

from reference_numpy import schedule

from . import answers
from .answers import Decoding
from .backends import Trainer
from .manifest import Progress
from .report import Log, Report
from .run import Run
from .store import Store
from .tokens import PADDING

__all__ = ["Interruption", "Loop"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While it is entered, the first Ctrl-C or SIGTERM asks the run to end; the second ends the process as it would without this."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._restore()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block the signals wait: also for a compiler that a backend starts there, which would leave half a file behind."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


@dataclass
class Loop:
    """Trains until a limit is reached, patience ends, or someone asks to stop; then the newest checkpoint holds all that was done.

    Each step is logged before anything that follows from it; a validation comes after its step, and a checkpoint after both, so that a run
    resumed from the checkpoint does again exactly what the log no longer holds.
    """

    run: Run
    trainer: Trainer
    store: Store
    log: Log
    report: Report
    interruption: Interruption
    progress: Progress
    saved: int | None = None  # the step of the newest checkpoint
    began: float = field(default_factory=time.monotonic)

    def train(self) -> str:
        """Runs; says why it ended. Raises ValueError where the loss is not finite, and OSError where the disk fails."""
        free = self.run.manifest.free
        while not (reason := self._reason()):
            self._step()
            if self.progress.steps % free["validate_every"] == 0:
                self.progress = self.progress.validated(self._validate())
                if self.progress.stale == 0:
                    self.store.save_best(self.run.manifest.config, self.trainer.state())
            if self.progress.steps % free["save_every"] == 0:
                self._save()
        if self.saved != self.progress.steps:
            self._save()
        return reason

    def decoding(self) -> Decoding:
        return Decoding(self.run.manifest.limits)

    def _reason(self) -> str:
        free, done = self.run.manifest.free, self.progress
        if self.interruption.asked:
            return "asked to stop"
        if done.steps >= free["steps"]:
            return f"all {free['steps']} steps are done"
        if free["minutes"] is not None and self._seconds() >= 60 * free["minutes"]:
            return f"{free['minutes']:g} minutes have passed"
        if free["patience"] is not None and done.stale >= free["patience"]:
            return f"the validation loss has not improved in {done.stale} validations"
        return ""

    def _step(self) -> None:
        corpus, before = self.run.corpus, self._seconds()
        source, target = corpus.batch(self.progress.position)
        number = self.progress.steps + 1
        with self.interruption.held():
            loss = float(self.trainer.train_step(source, target))
        if not math.isfinite(loss):
            raise ValueError(f"training has diverged: the loss of step {number} is {loss} (a longer --warmup, or --clip 1?)")
        seconds = self.progress.seconds + self._seconds() - before
        tokens = int((target[:, 1:] != PADDING).sum())
        rate = float(schedule.noam(number, self.run.manifest.config.model_width, self.run.manifest.recipe.warmup))
        self.progress = self.progress.replace(steps=number, position=corpus.after(self.progress.position), seconds=seconds)
        self._write("step", {"loss": loss, "tokens": tokens, "learning_rate": rate})
        self.report.step(number, loss, tokens, self._share())

    def _validate(self) -> float:
        run = self.run
        loss = answers.loss_per_token(self.trainer, run.corpus.buckets, run.corpus.validation)
        sample = run.data.validation[: run.manifest.free["sample"]]
        scores = answers.scores(self.trainer, run.task, run.tokens, sample, self.decoding())
        values = {"loss": loss} | scores
        self._write("validation", values | {"sample": len(sample)})
        self.report.scores(f"step {self.progress.steps}, validation", values)
        return loss

    def _save(self) -> None:
        self.log.sync()
        self.store.save(self.run.manifest.config, self.trainer.state(), self.progress)
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
