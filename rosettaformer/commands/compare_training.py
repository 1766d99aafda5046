"""`rosettaformer compare-training`."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import Recipe
from reference_numpy.suggestions import known

from ..common.backends import BACKENDS, PORTS, needs_of
from ..common.extras import require
from ..common.reading import parse_settings
from ..files.checkpoints import canonical
from ..judge.expectation.components import DROPOUT_RATES
from ..judge.report import files
from ..use.training import comparison, comparison_report
from .options import OUT, Choice, exit_code, listed, require_picture, wide_console
from .progress import Working

PRESET, DROPOUT = "tiny", 0.1
WIDTH = 120  # width of the tables outside a terminal


@click.command()
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path, exists=True))
@listed("backend", "Only these: torch, tf, jax, numpy, or a Python file that defines Trainer.")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Updates of the parameters.")
@click.option("--dtype", type=Choice(["float64", "float32"]), default="float64", show_default=True, help="Of the whole run.")
@click.option("--mode", type=Choice(["compiled", "eager"]), default="compiled", show_default=True, help="How a step runs.")
@click.option("--preset", "preset_name", help=f"Start from fresh parameters of this preset. [default: {PRESET}]")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable.")
@click.option("--recipe", "choices", multiple=True, metavar="FIELD=VALUE", help="A field of the recipe, such as warmup; repeatable.")
@click.option("--microbatches", type=click.IntRange(min=1), default=1, show_default=True, help="Parts of a batch.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the fresh parameters, batches and keep masks.")
@click.option("--limit", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for one step, compiling included.")
@click.option("--json", "json_file", type=OUT, help="Write every number; - prints it instead.")
@click.option("--picture", type=OUT, metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")
def compare_training(
    checkpoint: Path | None, backends: tuple[str, ...], steps: int, dtype: str, mode: str, preset_name: str | None,
    settings: tuple[str, ...], choices: tuple[str, ...], microbatches: int, seed: int, limit: float, json_file: Path | None,
    picture: Path | None,
) -> None:  # fmt: skip
    """Train every backend for a few steps beside the reference, on the same batches and keep masks, and say whether they stay together.

    The start is the canonical CHECKPOINT, or fresh parameters of a preset. Dropout is 0.1 at every site that the config leaves at 0, unless
    --set says otherwise. In float64 the loss and every parameter may be 1e-9 of the reference's away; in float32 what is allowed is
    derived, step by step, from the reference's own runs in other summation orders.

    Exit codes: 0 together, 1 a backend leaves or fails, 2 wrong usage, 3 backend missing.
    """
    _refuse(backends, [path for path in (json_file, picture) if path])
    require_picture(picture, "--picture")
    require("compare-training", needs_of(*backends))
    config, values = _start(checkpoint, preset_name, settings, seed, dtype)
    recipe = comparison.RECIPE.replace(**({"microbatches": microbatches} | parse_settings(choices, Recipe)))
    experiment = comparison.Experiment(config, recipe, values, steps, seed)
    with Working("training", steps, "about a minute for each backend", "steps") as working:
        losses, runs = comparison.compare(experiment, backends or tuple(PORTS), mode == "compiled", limit, working.to)
    if json_file:
        files.write_json(json_file, comparison_report.to_dict(experiment, losses, runs))
    if picture:
        comparison_report.draw(picture, losses, runs)
    if str(json_file) != "-":
        comparison_report.render(wide_console(WIDTH), losses, runs)
    sys.exit(exit_code([run.status for run in runs], "together", bool(backends)))


def _refuse(backends: Iterable[str], written: list[Path]) -> None:
    """Raises ValueError before anything is run."""
    for name in backends:
        if not (name.endswith(".py") and Path(name).is_file()):
            known("backend", [name], BACKENDS, "or a Python file that defines Trainer")
    files.require(written)


def _start(
    checkpoint: Path | None, preset_name: str | None, settings: Iterable[str], seed: int, dtype: str
) -> tuple[TransformerConfig, dict[str, Any]]:
    """Returns the config with dropout, and the initial parameters in the run's dtype."""
    if checkpoint and preset_name:
        raise ValueError(f"a CHECKPOINT has its own config; it takes no --preset, got {preset_name}")
    changes = parse_settings(settings)
    loaded = canonical.load(checkpoint) if checkpoint else None
    config = loaded.config if loaded else preset(preset_name or PRESET)
    config = config.replace(**({rate: DROPOUT for rate in DROPOUT_RATES if not getattr(config, rate)} | changes))
    config.need_objective()
    if not loaded:
        return config, parameters.initialise(config, seed, dtype)
    parameters.match(loaded.parameters, parameters.shapes(config))
    return config, {name: array.astype(dtype) for name, array in loaded.parameters.items()}
