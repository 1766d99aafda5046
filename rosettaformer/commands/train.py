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
from . import words
from .options import WORDS, Grouped, backend_option, examples, recipe_option, section

COUNT = click.IntRange(min=1)
FILES = ("source", "target", "tsv")  # task fields that are paths
PACKAGES = {"number-words": ("num2words",)}  # task -> extra packages


def _default(name: str, none: str) -> str:
    """Returns the default of an option, and the defaults of tasks that differ. none: text for None."""
    general = (FIXED | FREE).get(name)
    own: dict[Any, list[str]] = {}
    for task in tasks.TASKS:
        if (value := tasks.kind(task).defaults.get(name, general)) != general:
            own.setdefault(value, []).append(task)
    shown = none if general is None or general is False or general == () else str(general)
    return "; ".join([shown, *(f"{', '.join(names)}: {value}" for value, names in own.items())])


def _option(*names: str, help: str, none: str = "none", **attributes: Any) -> Callable[[Any], Any]:
    """Declares an option whose help ends with its default. none: text for a default of None."""
    name = names[-1].partition("/")[0].removeprefix("--").replace("-", "_")
    return click.option(*names, help=f"{help} [default: {_default(name, none)}]", **attributes)


def _fields() -> str:
    """Returns the fields of all tasks and of each task, with their defaults, for the help."""
    every = {field.name: f"{field.name}={field.default}" for field in dataclasses.fields(tasks.Task) if field.name != "seed"}
    every |= {name: f"{name}={FIXED[name]}" for name in OF_DATA}
    own: dict[str, list[str]] = {}
    for task in tasks.TASKS:
        fields = (field for field in dataclasses.fields(tasks.kind(task)) if field.name not in (*every, "seed"))
        own.setdefault(", ".join(f"{field.name}={field.default}" for field in fields), []).append(task)
    return "; ".join([f"All: {', '.join(every.values())}", *(f"{', '.join(names)}: {texts}" for texts, names in own.items())])


def _loop() -> str:
    return ", ".join(f"{name}={_default(name, 'none')}" for name in OF_LOOP)


@click.command(
    cls=Grouped, epilog=examples("train --task copy --out run --steps 500", "train --out run --resume --backend jax --minutes 10")
)
@section(
    "Run",
    click.option("--task", metavar="NAME", help=f"Task of a new run: {', '.join(tasks.TASKS)}."),
    click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run."),
    click.option("--resume", "resumed", is_flag=True, help="Continue the run in DIR, with its options unless others are given."),
    backend_option(help=f"Backend to train with, such as jax or torch:cuda. [default: {FREE['backend']}]"),
    _option("--steps", type=COUNT, metavar="N", help="Stop after N steps in total."),
    _option("--minutes", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Stop after N minutes of this call."),
    _option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed for parameters, dropout, order and split."),
)
@section(
    "Model and data",
    _option("--preset", metavar="NAME", none="small model, d 128, 4 heads, 2+2 layers, f 512", help="Preset of the model."),
    _option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Field of the config; repeatable."),
    click.option("--data", multiple=True, metavar="FIELD=VALUE", help=f"Field of the data; repeatable. {_fields()}."),
    recipe_option,
)
@section(
    "Devices",
    _option("--mesh", metavar="data=N,model=N", none="one device", help="Device mesh; data=N,replicate keeps parameters whole."),
    _option("--recompute/--no-recompute", default=None, none="off", help="Recompute activations in the backward pass."),
)
@section(
    "Validation and checkpoints",
    click.option(
        "--loop", multiple=True, metavar="FIELD=VALUE",
        help="Field of the training loop; repeatable: steps between validations (validate_every) and checkpoints (save_every), pairs "
        "to decode (sample), checkpoints to keep and to average (keep, average), and validations without improvement before "
        f"stopping (patience). [default: {_loop()}]",
    ),
)  # fmt: skip
@click.pass_context
def train(context: click.Context, out: Path, resumed: bool, task: str | None, **options: Any) -> None:
    """Train a model on a built-in task or your own files.

    Ctrl-C stops after the current step and writes a checkpoint. --resume continues exactly, also
    after a crash, in another backend or on another mesh. DIR contains canonical checkpoints (for
    inspect, check --checkpoint and convert), log.jsonl, loss.png and loss.svg.
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
        raise ValueError("a new run needs --task; --resume continues an existing run")
    free = run.free_options(out, task, given, resumed)
    require("training", needs_of(free["backend"]))
    mesh = options.mesh(free)
    if mesh and placing.to_start(free["backend"], mesh):
        imported("torch", "torch")
        launch.start(words, mesh, free["device"], out)
        return
    place = placing.place(free["backend"], free["device"], mesh)
    trainer(free["backend"])  # report a broken framework before preparing the data
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
        report.say(words.too_long(*found.corpus.left_out))
    pairs, batches = len(found.corpus.first_epoch), [f"{shape.rows} x {shape.source}/{shape.target}" for shape in shapes]
    sizes = parameters.count(manifest.config), manifest.config.source_vocabulary
    report.say(words.training(manifest.free["backend"], *sizes, pairs, batches))
