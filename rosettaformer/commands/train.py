"""`rosettaformer train`."""

import sys
from pathlib import Path
from typing import Any

import click

from ..cli import MISSING
from ..training.backends import BACKENDS, MissingBackend, require, trainer
from .options import Choice

__all__ = ["train"]

FILE = click.Path(resolve_path=True)
COUNT = click.IntRange(min=1)
TASK_OPTIONS = ("from_language", "to_language", "limit", "source", "target", "tsv", "skip_damaged", "catalogues", "length", "alphabet",
                "size", "fresh", "held_out")  # fmt: skip


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The run's folder.")
@click.option("--resume", "resumed", is_flag=True, help="Continue the run in DIR; what is not given stays as it was.")
@click.option("--backend", type=Choice(list(BACKENDS)), help="Who trains. [default: torch]")
@click.option("--device", help="cpu, or what the backend calls another. [default: cpu]")
@click.option("--task", help="number-words, copy, reverse, files or gettext.")
@click.option("--from", "from_language", metavar="LANGUAGE", help="number-words, gettext: of the sources.")
@click.option("--to", "to_language", metavar="LANGUAGE", help="number-words, gettext: of the targets.")
@click.option("--limit", type=int, help="number-words: the largest number. [default: 9999]")
@click.option("--source", type=FILE, metavar="FILE", help="files: a source a line.")
@click.option("--target", type=FILE, metavar="FILE", help="files: their targets, line by line.")
@click.option("--tsv", type=FILE, metavar="FILE", help="files: instead of both, lines of a source, a tab and a target.")
@click.option("--skip-damaged", is_flag=True, default=None, help="files: leave out lines that cannot be used.")
@click.option("--catalogues", type=FILE, multiple=True, metavar="DIR", help="gettext: look for LANGUAGE/LC_MESSAGES/*.mo here; repeatable.")
@click.option("--length", type=int, help="copy, reverse: of the longest string.")
@click.option("--alphabet", help="copy, reverse: the characters.")
@click.option("--size", type=int, help="copy, reverse: strings an epoch.")
@click.option("--fresh", is_flag=True, default=None, help="copy, reverse: other strings in every epoch.")
@click.option("--held-out", type=int, help="Pairs for validation, and as many for test. [default: 500]")
@click.option("--preset", help="A preset's model instead of the small one: d 128, 4 heads, 2+2 layers, f 512.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable.")
@click.option("--vocabulary", type=click.IntRange(min=0), help="The most tokens; 0: bytes alone.")
@click.option("--max-length", type=COUNT, help="Leave out pairs with more tokens on a side.")
@click.option("--batch-tokens", type=COUNT, help="About so many tokens of the longer side a batch.")
@click.option("--buckets", type=COUNT, help="Shapes of batches at most; each is compiled.")
@click.option("--microbatches", type=COUNT, help="Parts of a batch whose gradients are added up.")
@click.option("--warmup", type=COUNT, help="Steps until the learning rate is largest.")
@click.option("--dropout", type=float, help="The dropout rate.")
@click.option("--smoothing", type=float, help="Of the labels.")
@click.option("--clip", type=float, metavar="NORM", help="The largest global norm of the gradients.")
@click.option("--weight-decay", type=float, help="Decoupled, of kernels and tables.")
@click.option("--seed", type=click.IntRange(min=0), help="Of parameters, dropout, order and split.")
@click.option("--steps", type=COUNT, help="Stop after so many, counted from the run's beginning.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after so many, counted from this call.")
@click.option("--patience", type=COUNT, metavar="N", help="Stop when N validations bring no lower loss.")
@click.option("--validate-every", type=COUNT, metavar="STEPS", help="Validation loss, and scores of greedy answers to a sample.")
@click.option("--sample", type=COUNT, metavar="N", help="Validation pairs that are answered.")
@click.option("--save-every", type=COUNT, metavar="STEPS", help="A checkpoint.")
@click.option("--keep", type=COUNT, metavar="N", help="The last N checkpoints stay.")
@click.option("--average", type=COUNT, metavar="N", help="average.safetensors is the mean of the last N.")
def train(out: Path, resumed: bool, task: str | None, **options: Any) -> None:
    """Train a model on a task, in any backend, and keep the run in DIR.

    Ctrl-C ends after the step with a checkpoint. --resume continues exactly, also after a kill and in another backend. DIR holds the
    canonical checkpoints (inspect, check --checkpoint, convert and translate read them), log.jsonl, loss.png and loss.svg.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    task_options = {name: given.pop(name) for name in TASK_OPTIONS if name in given}
    try:
        require("tokenizers", "matplotlib", "sacrebleu", *(["num2words"] if task == "number-words" else []))
        _train(out, resumed, task, task_options, given)
    except MissingBackend as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(MISSING)


def _train(out: Path, resumed: bool, task: str | None, task_options: dict[str, Any], given: dict[str, Any]) -> None:
    from ..training import run, session
    from ..training.report import Report

    if not resumed and task is None:
        raise ValueError("a new run needs a --task (or --resume to continue one)")
    if "backend" in given:
        trainer(given["backend"])  # missing is said before data are made
    found = run.resume(out, task, task_options, given) if resumed else run.begin(out, str(task), task_options, given)
    report = Report()
    _describe(found, report)
    session.train(found, trainer(found.manifest.free["backend"]), report)


def _describe(found: Any, report: Any) -> None:
    from reference_numpy import parameters

    manifest, shapes = found.manifest, found.corpus.buckets.shapes
    for note in found.data.notes:
        report.say(note)
    if any(found.corpus.left_out):
        report.say("longer than --max-length: {} training and {} validation pairs".format(*found.corpus.left_out))
    report.say(
        f"{manifest.free['backend']}: {parameters.count(manifest.config):,} parameters, {manifest.config.source_vocabulary} tokens, "
        f"{len(found.corpus.first_epoch):,} pairs in batches of "
        + ", ".join(f"{shape.rows} x {shape.source}/{shape.target}" for shape in shapes)
    )
