"""The training loop, which any backend plugs into."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import schedule

from . import evaluate
from .answers import Decoding
from .backends import Trainer
from .interruption import Interruption
from .log import Log
from .progress import Progress
from .report import Report
from .run import Run
from .store import Store
from .tokens import PADDING

__all__ = ["Loop"]


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
        loss = evaluate.loss_per_token(self.trainer, run.corpus.buckets, run.corpus.validation)
        sample = run.data.validation[: run.manifest.free["sample"]]
        scores = evaluate.scores(self.trainer, run.task, run.tokens, sample, self.decoding())
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
