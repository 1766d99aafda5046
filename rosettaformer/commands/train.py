"""`rosettaformer train`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from reference_numpy.sharding import Mesh

from ..common.backends import BACKENDS, imported, needs_of
from ..common.extras import require
from ..use.training import tasks
from ..use.training.backends import trainer
from ..use.training.options import FIXED, FREE
from .options import WORDS, Choice, Grouped, section

FILE = click.Path(resolve_path=True)
COUNT = click.IntRange(min=1)
TASK_OPTIONS = ("from_language", "to_language", "limit", "source", "target", "tsv", "skip_damaged", "length", "alphabet", "size",
                "fresh", "held_out")  # fmt: skip
PACKAGES = {"number-words": ("num2words",)}  # the extra packages of a task


def _default(name: str, none: str) -> str:
    """Returns the default of an option: in general, and for the tasks that have another one."""
    general = (FIXED | FREE).get(name)
    own: dict[Any, list[str]] = {}
    for task in tasks.TASKS:
        kind = tasks.kind(task)
        has = {field.name: field.default for field in dataclasses.fields(kind)} if name in TASK_OPTIONS else kind.defaults
        if has.get(name, general) != general:
            own.setdefault(has[name], []).append(task)
    if general is None and len(own) == 1 and name in TASK_OPTIONS:
        general, own = own.popitem()[0], {}
    shown = none if general is None or general is False or general == () else str(general)
    return "; ".join([shown] * (not own or name not in TASK_OPTIONS) + [f"{', '.join(names)}: {value}" for value, names in own.items()])


def _option(*names: str, help: str, none: str = "none", **attributes: Any) -> Callable[[Any], Any]:
    """Declares an option whose help ends with its default. none: the words for a default of None."""
    name = names[-1].partition("/")[0].removeprefix("--").replace("-", "_")
    return click.option(*names, help=f"{help} [default: {_default(name, none)}]", **attributes)


@click.command(cls=Grouped)
@section(
    "Run",
    click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The run's folder."),
    click.option("--resume", "resumed", is_flag=True, help="Continue the run in DIR; what is not given stays as it was."),
    _option("--backend", type=Choice(list(BACKENDS)), help="Backend to train with."),
    _option("--device", help="cpu, or what the backend calls another."),
    _option(
        "--mesh",
        metavar="data=N,model=N",
        none="one device",
        help="Devices that share a batch and a model; data=N,replicate keeps parameters whole; none: one device.",
    ),
    _option("--recompute/--no-recompute", default=None, none="off", help="Compute activations again in the backward pass."),
    _option("--seed", type=click.IntRange(min=0), help="Of parameters, dropout, order and split."),
)
@section(
    "Task",
    click.option("--task", help=f"{', '.join(tasks.TASKS)}."),
    _option("--from", "from_language", metavar="LANGUAGE", help="number-words: language of the sources."),
    _option("--to", "to_language", metavar="LANGUAGE", help="number-words: language of the targets."),
    _option("--limit", type=int, help="number-words: the largest number."),
    _option("--source", type=FILE, metavar="FILE", help="files: a source a line."),
    _option("--target", type=FILE, metavar="FILE", help="files: their targets, line by line."),
    _option("--tsv", type=FILE, metavar="FILE", help="files: instead of both, lines of a source, a tab and a target."),
    _option("--skip-damaged", is_flag=True, default=None, none="off", help="files: leave out lines that cannot be used."),
    _option("--length", type=int, help="copy, reverse: of the longest string."),
    _option("--alphabet", help="copy, reverse: the characters."),
    _option("--size", type=int, help="copy, reverse: strings an epoch."),
    _option("--fresh", is_flag=True, default=None, none="off", help="copy, reverse: other strings in every epoch."),
    _option("--held-out", type=int, help="Pairs for validation, and as many for test."),
)
@section(
    "Model",
    _option("--preset", none="a small model: d 128, 4 heads, 2+2 layers, f 512", help="A preset's model."),
    _option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable."),
    _option("--dropout", type=float, none="the preset's", help="The dropout rate."),
)
@section(
    "Data",
    _option("--vocabulary", type=click.IntRange(min=0), help="The most tokens; 0: bytes alone."),
    _option("--max-length", type=COUNT, help="Leave out pairs with more tokens on a side."),
    _option("--batch-tokens", type=COUNT, help="Approximate number of tokens in a batch, on the longer side."),
    _option("--buckets", type=COUNT, help="Shapes of batches at most; each is compiled."),
    _option("--microbatches", type=COUNT, help="Parts of a batch whose gradients are added up."),
)
@section(
    "Recipe",
    _option("--warmup", type=COUNT, help="Steps until the learning rate is largest."),
    _option("--smoothing", type=float, help="Of the labels."),
    _option("--clip", type=float, metavar="NORM", help="The largest global norm of the gradients."),
    _option("--weight-decay", type=float, help="Decoupled, of kernels and tables."),
)
@section(
    "End of the run",
    _option("--steps", type=COUNT, help="Stop after this many steps, counted from the run's beginning."),
    _option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this many minutes, counted from this call."),
    _option("--patience", type=COUNT, metavar="N", help="Stop when N validations bring no lower loss."),
)
@section(
    "Validation and checkpoints",
    _option("--validate-every", type=COUNT, metavar="STEPS", help="Validation loss, and scores of greedy answers to a sample."),
    _option("--sample", type=COUNT, metavar="N", help="Validation pairs that are answered."),
    _option("--save-every", type=COUNT, metavar="STEPS", help="A checkpoint."),
    _option("--keep", type=COUNT, metavar="N", help="The last N checkpoints stay."),
    _option("--average", type=COUNT, metavar="N", help="average.safetensors is the mean of the last N."),
)  # fmt: skip
@click.pass_context
def train(context: click.Context, out: Path, resumed: bool, task: str | None, **options: Any) -> None:
    """Train a model on a task, in any backend, and keep the run in DIR.

    Ctrl-C ends after the step with a checkpoint. --resume continues exactly, also after a kill, in another backend and on another mesh. DIR
    holds the canonical checkpoints (inspect, check --checkpoint and convert read them), log.jsonl, loss.png and loss.svg.
    """
    from ..common.meshes import failing, placing

    def advice() -> str:
        from ..use.training import launch

        return launch.way_on(out)

    with failing.recorded(*placing.started(), advice=advice), placing.left_well():
        _train(context.meta[WORDS], out, resumed, task, {name: value for name, value in options.items() if value not in (None, ())})


def _train(words: list[str], out: Path, resumed: bool, task: str | None, given: dict[str, Any]) -> None:
    task_options = {name: given.pop(name) for name in TASK_OPTIONS if name in given}
    if "mesh" in given:
        given["mesh"] = None if given["mesh"] == "none" else str(Mesh.parse(given["mesh"]))
    needed = ("tokenizers", "matplotlib", "filelock", *PACKAGES.get(str(task), ()))
    require("training", {"train": needed, **needs_of(given.get("backend", ""))})
    from ..common.meshes import placing
    from ..use.training import launch, options, run, session
    from ..use.training.run_log import Report

    if not resumed and task is None:
        raise ValueError("a new run needs a --task (or --resume to continue one)")
    free = run.free_options(out, task, given, resumed)
    require("training", needs_of(free["backend"]))
    mesh = options.mesh(free)
    if mesh and placing.to_start(free["backend"], mesh):
        imported("torch", "torch")
        launch.start(words, mesh, free["device"], out)
        return
    place = placing.place(free["backend"], free["device"], mesh)
    trainer(free["backend"])  # a broken framework is reported before data are made
    found = run.resume(out, task, task_options, given) if resumed else run.begin(out, str(task), task_options, given)
    report = Report(quiet=place.rank > 0)
    _describe(found, report)
    session.train(found, trainer(free["backend"]), report, place.device)


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
