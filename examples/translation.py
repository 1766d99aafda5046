"""Trains a small model to translate numbers from Spanish to English words, and uses it.

    python examples/translation.py runs/numbers "doscientos veintidós" "cuatro mil uno"

The first run trains for a few minutes; later runs only translate. Ctrl-C stops training after the
current step and writes a checkpoint, from which the next run continues.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rosettaformer.use.training import answers, backends, run, session
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.manifest import Manifest, read_tokens
from rosettaformer.use.training.run_log import Report


def train(folder: Path, backend: str, numbers: dict[str, Any], **options: Any) -> None:
    """Trains the run in the folder until it is finished.

    numbers: options of the task number-words. options: those of `rosettaformer train`.
    """
    if Manifest.exists(folder):
        found = run.resume(folder, None, {}, {"backend": backend})
    else:
        found = run.begin(folder, "number-words", numbers, {"backend": backend, **options})
    session.train(found, backends.trainer(backend), Report(), "cpu")


def is_trained(folder: Path) -> bool:
    """Whether the run in the folder has finished training."""
    models = Store(folder).paths()
    return bool(models) and models[-1].name == f"step-{Manifest.read(folder).free['steps']:08}"


def translate(folder: Path, backend: str, texts: Sequence[str], beam: int) -> list[str]:
    """Returns the texts' translations by the average of the run's last checkpoints."""
    manifest = Manifest.read(folder)
    tokens = read_tokens(folder, manifest)
    model = Store(folder).load(manifest.config, "average")
    trainer = backends.trainer(backend)(manifest.config, manifest.recipe, model.parameters, device="cpu")
    decoding = answers.Decoding(manifest.limits, width=beam)
    return [tokens.text(found.tokens) for found in answers.answer(trainer, tokens.source(texts), decoding)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder for the run")
    parser.add_argument("texts", nargs="*", help="numbers to translate, in Spanish words")
    parser.add_argument("--backend", default="torch", choices=list(backends.BACKENDS))
    parser.add_argument("--beam", type=int, default=4, help="number of beams; 1 means greedy search")
    given = parser.parse_args(arguments)
    if not Manifest.exists(given.run) or not is_trained(given.run):
        train(given.run, given.backend, {})
    for text in translate(given.run, given.backend, given.texts, given.beam):
        print(text)


if __name__ == "__main__":
    main()
