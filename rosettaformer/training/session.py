"""One call of `train`: a trainer for the run, the loop, and what follows when it ends."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from reference_numpy import parameters

from ..checkpoints import canonical
from . import answers
from .backends import Trainer
from .loop import Interruption, Loop
from .manifest import Progress
from .report import Log, Report, draw_curves, read_log
from .run import Run
from .store import Store, average

__all__ = ["train"]

LOG, CURVES = "log.jsonl", ("loss.png", "loss.svg")


def train(run: Run, make_trainer: Callable[..., Trainer], report: Report) -> None:
    """Trains the run from its newest checkpoint, or from fresh parameters.

    Raises ValueError where training diverges, where the disk fails and where another call trains this run; the last good checkpoint stays.
    """
    manifest, store = run.manifest, Store(run.folder, run.manifest.free["keep"])
    seed = manifest.fixed["seed"]
    values = parameters.initialise(manifest.config, seed, np.float32)
    trainer = make_trainer(manifest.config, manifest.recipe, values, seed=seed, device=manifest.free["device"])
    run.folder.mkdir(parents=True, exist_ok=True)
    with _alone(run.folder), Interruption() as interruption:
        progress, saved = _restored(run, trainer, store, report)
        with Log(run.folder / LOG, progress.steps) as log, report:
            store.clean()
            run.write()
            loop = Loop(run, trainer, store, log, report, interruption, progress, saved)
            try:
                log.write({"event": "start", "step": progress.steps, "backend": run.manifest.free["backend"]})
                reason = loop.train()
                _finish(loop, reason)
            except (ValueError, OSError) as error:
                raise ValueError(_failure(loop, error)) from error


def _restored(run: Run, trainer: Trainer, store: Store, report: Report) -> tuple[Progress, int | None]:
    """How far the run has come, which the trainer then has too, and the step of its newest checkpoint."""
    seed = run.manifest.fixed["seed"]

    def take(state: Mapping[str, np.ndarray], progress: Progress) -> None:
        if progress.seed != seed or not run.corpus.holds(progress.position, progress.steps):
            raise ValueError(f"its seed and its position in the data must be the run's; got {progress.seed} and {progress.position}")
        trainer.load_state(state, progress.steps)

    found, problems = store.newest(run.manifest.config, take)
    for problem in problems:
        report.say(f"{problem}; an older one is taken")
    return (found[1], found[1].steps) if found else (Progress(seed=seed), None)


def _finish(loop: Loop, reason: str) -> None:
    """After the last step: the average, the picture, and, where the run is done, the scores on the test pairs."""
    run, store, report = loop.run, loop.store, loop.report
    paths = store.models()[-run.manifest.free["average"] :]
    mean = average(paths)
    canonical.save(store.average, mean.config, mean.parameters)
    draw_curves(read_log(run.folder / LOG), [run.folder / name for name in CURVES])
    report.say(
        f"step {loop.progress.steps}: {reason}; the checkpoints are in {run.folder}, average.safetensors is the mean of {len(paths)}"
    )
    if not loop.interruption.asked:
        _test(loop, mean.parameters)


def _test(loop: Loop, averaged: Mapping[str, np.ndarray]) -> None:
    """Scores the last parameters and the averaged ones on all test pairs."""
    run, state = loop.run, loop.trainer.state()
    for name, values in (("last", {}), ("average", {f"parameters.{key}": value for key, value in averaged.items()})):
        loop.trainer.load_state(state | values, loop.progress.steps)
        scores = answers.scores(loop.trainer, run.task, run.tokens, run.data.test, loop.decoding())
        loop.log.write({"event": "test", "step": loop.progress.steps, "checkpoint": name, "pairs": len(run.data.test)} | scores)
        loop.report.scores(f"test, {name} ({len(run.data.test)} pairs)", scores)


def _alone(folder: Path) -> AbstractContextManager[object]:
    """Refuses a second call on the same run. The system ends the lock with the process, however that ends."""
    try:
        return FileLock(folder / "lock", blocking=False).acquire()
    except Timeout:
        raise ValueError(f"another process trains the run in {folder}") from None


def _failure(loop: Loop, error: Exception) -> str:
    place = f"the last good checkpoint is that of step {loop.saved}" if loop.saved else "there is no checkpoint yet"
    what = f"could not write: {error}" if isinstance(error, OSError) else str(error)
    return f"stopped after step {loop.progress.steps}: {what}; {place}"
