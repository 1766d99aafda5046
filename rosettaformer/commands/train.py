"""`rosettaformer train`."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh

from ..common.backends import imported, needs_of
from ..common.extras import require
from ..common.reading import parse_settings
from ..use.training import tasks
from ..use.training.backends import trainer
from ..use.training.options import FIXED, FREE, OF_DATA, OF_LOOP
from .options import WORDS, Grouped, backend_option, recipe_option, section

COUNT = click.IntRange(min=1)
FILES = ("source", "target", "tsv")  # fields of a task that are paths
PACKAGES = {"number-words": ("num2words",)}  # the extra packages of a task


def _default(name: str, none: str) -> str:
    """Returns the default of an option: in general, and for the tasks that have another one."""
    general = (FIXED | FREE).get(name)
    own: dict[Any, list[str]] = {}
    for task in tasks.TASKS:
        if (value := tasks.kind(task).defaults.get(name, general)) != general:
            own.setdefault(value, []).append(task)
    shown = none if general is None or general is False or general == () else str(general)
    return "; ".join([shown, *(f"{', '.join(names)}: {value}" for value, names in own.items())])


def _option(*names: str, help: str, none: str = "none", **attributes: Any) -> Callable[[Any], Any]:
    """Declares an option whose help ends with its default. none: the words for a default of None."""
    name = names[-1].partition("/")[0].removeprefix("--").replace("-", "_")
    return click.option(*names, help=f"{help} [default: {_default(name, none)}]", **attributes)


def _fields() -> str:
    """Returns the words of a help for the fields of every task and of all, with their defaults."""
    every = {field.name: f"{field.name}={field.default}" for field in dataclasses.fields(tasks.Task) if field.name != "seed"}
    every |= {name: f"{name}={FIXED[name]}" for name in OF_DATA}
    own: dict[str, list[str]] = {}
    for task in tasks.TASKS:
        fields = (field for field in dataclasses.fields(tasks.kind(task)) if field.name not in (*every, "seed"))
        own.setdefault(", ".join(f"{field.name}={field.default}" for field in fields), []).append(task)
    return "; ".join([f"All: {', '.join(every.values())}", *(f"{', '.join(names)}: {texts}" for texts, names in own.items())])


def _loop() -> str:
    return ", ".join(f"{name}={_default(name, 'none')}" for name in OF_LOOP)


@click.command(cls=Grouped)
@section(
    "Run",
    click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The run's folder."),
    click.option("--resume", "resumed", is_flag=True, help="Continue the run in DIR; what is not given stays as it was."),
    backend_option(help=f"Backend to train with, on the CPU or such as torch:cuda. [default: {FREE['backend']}]"),
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
    click.option("--data", multiple=True, metavar="FIELD=VALUE", help=f"A field of the data; repeatable. {_fields()}."),
)
@section(
    "Model",
    _option("--preset", none="a small model: d 128, 4 heads, 2+2 layers, f 512", help="A preset's model."),
    _option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable."),
    recipe_option,
)
@section(
    "End of the run",
    _option("--steps", type=COUNT, help="Stop after this many steps, counted from the run's beginning."),
    _option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this many minutes, counted from this call."),
    click.option(
        "--loop", multiple=True, metavar="FIELD=VALUE",
        help="When it validates, saves and stops; repeatable: validate_every and save_every so many steps, answer so many pairs (sample), "
        "keep the last checkpoints, write the average of the last, and stop when so many validations bring no lower loss (patience). "
        f"[default: {_loop()}]",
    ),
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
    told = parse_settings(
        given.pop("data", ()), {name: kind for task in tasks.TASKS for name, kind in tasks.fields(task).items()} | OF_DATA
    )
    given |= parse_settings(given.pop("loop", ()), OF_LOOP, "field of the loop")
    given |= {name: told.pop(name) for name in OF_DATA if name in told} | parse_settings(given.pop("recipe", ()), Recipe)
    told |= {name: os.path.abspath(told[name]) for name in FILES if name in told}
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
    found = run.resume(out, task, told, given) if resumed else run.begin(out, str(task), told, given)
    report = Report(quiet=place.rank > 0)
    _describe(found, report)
    session.train(found, trainer(free["backend"]), report, place.device)


def _describe(found: Any, report: Any) -> None:
    from reference_numpy import parameters

    manifest, shapes = found.manifest, found.corpus.buckets.shapes
    for note in found.data.notes:
        report.say(note)
    if any(found.corpus.left_out):
        report.say("longer than max_length: {} training and {} validation pairs".format(*found.corpus.left_out))
    report.say(
        f"{manifest.free['backend']}: {parameters.count(manifest.config):,} parameters, {manifest.config.source_vocabulary} tokens, "
        f"{len(found.corpus.first_epoch):,} pairs in batches of "
        + ", ".join(f"{shape.rows} x {shape.source}/{shape.target}" for shape in shapes)
    )
