"""`rosettaformer plan`: memory and traffic of a training step on several devices, on paper."""

import json
from pathlib import Path
from typing import Any

import click

from reference_numpy import TransformerConfig, preset
from reference_numpy.presets import PRESETS
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh

from ..common.reading import parse_settings
from ..use.scaling import plan as planned
from ..use.scaling.step import ENGINES, ITEMS, Step
from ..use.scaling.strategies import STRATEGIES, problem
from .options import Choice, Grouped, section, wide_console

WIDTH = 160  # width of the tables outside a terminal
COUNT = click.IntRange(min=1)


@click.command(cls=Grouped)
@section(
    "Model",
    click.option("--preset", type=Choice(list(PRESETS)), help="A preset's model."),
    click.option("--checkpoint", type=click.Path(path_type=Path), metavar="FILE", help="The model of a checkpoint, or of a folder."),
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the preset's config; repeatable."),
)
@section(
    "Devices",
    click.option("--mesh", metavar="MESH", help="Such as data=8,model=4, or data=8,replicate."),
    click.option("--devices", type=COUNT, help="Compare the strategies on this number of devices."),
    click.option("--memory", type=click.FloatRange(min=0, min_open=True), default=80, show_default=True, help="GiB of a device."),
)
@section(
    "Step",
    click.option("--rows", type=COUNT, required=True, help="Rows of the whole batch."),
    click.option("--length", type=COUNT, required=True, help="Tokens of a row that a stack computes."),
    click.option("--source-length", type=COUNT, help="Those of the encoder. [default: --length]"),
    click.option("--dtype", type=Choice(list(ITEMS)), default="float32", show_default=True, help="Of all numbers."),
    click.option("--recompute", is_flag=True, help="Compute a layer's activations again in the backward pass."),
    click.option("--backend", type=Choice(list(ENGINES)), default="torch", show_default=True, help="Whose engine it is."),
    click.option("--microbatches", type=COUNT, default=1, show_default=True, help="Parts of a batch whose gradients are added up."),
    click.option("--clip", is_flag=True, help="Clip the gradients by their norm."),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes.")
def plan(
    preset: str | None, checkpoint: Path | None, settings: tuple[str, ...], mesh: str | None, devices: int | None, memory: float,
    rows: int, length: int, source_length: int | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Say what a training step needs of each device, before there is one: memory by what it is for, and bytes of every collective.

    docs/scaling.md has the formulas, and what compiled programs and traces show beside them. Bytes of a collective are those of the
    larger of what a device gives and gets.
    """
    if (mesh is None) == (devices is None):
        raise ValueError("a plan is of a --mesh, or of all strategies on --devices; give one")
    config = _config(preset, checkpoint, settings)
    recipe = PAPER.replace(microbatches=options.pop("microbatches"), clip_norm=1.0 if options.pop("clip") else None)
    given: dict[str, Any] = {
        "config": config,
        "rows": rows,
        "source": source_length or length,
        "target": length,
        "recipe": recipe,
    } | options
    console = wide_console(WIDTH, markup=False, highlight=False)
    if mesh is not None:
        found = planned.plan(Step(mesh=Mesh.parse(mesh), **given))
        if as_json:
            click.echo(json.dumps(found))
        else:
            console.print(*planned.tables(found, memory))
        return
    meshes = {name: make(config, int(devices or 1)) for name, make in STRATEGIES.items()}
    all_found = {name: problem(config, each) or planned.plan(Step(mesh=each, **given)) for name, each in meshes.items()}
    if as_json:
        click.echo(json.dumps({name: {"problem": found} if isinstance(found, str) else found for name, found in all_found.items()}))
    else:
        console.print(planned.compared(all_found, memory))


def _config(named: str | None, checkpoint: Path | None, settings: tuple[str, ...]) -> TransformerConfig:
    """Returns the model's config. Raises ValueError if none is named, or two are."""
    if (named is None) == (checkpoint is None):
        raise ValueError("a plan is of a --preset or of a --checkpoint; give one")
    if checkpoint is None:
        return preset(str(named), **parse_settings(settings))
    if settings:
        raise ValueError("--set changes a --preset; got it with --checkpoint")
    from ..files.checkpoints import view

    return view(checkpoint).config
