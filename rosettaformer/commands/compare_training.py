"""`rosettaformer compare-training`."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.presets import PRESETS
from reference_numpy.recipe import Recipe
from reference_numpy.suggestions import known

from ..common.backends import BACKENDS, PORTS, needs_of
from ..common.extras import require
from ..common.reading import parse_settings
from ..files.checkpoints import canonical
from ..judge.expectation.components import DROPOUT_RATES
from ..judge.report import files
from ..use.training import comparison, comparison_report
from . import completion
from .options import OUT, Choice, exit_code, listed, recipe_option, require_picture, wide_console
from .progress import Working

PRESET, DROPOUT = "tiny", 0.1
WIDTH = 120  # width of the tables outside a terminal


@click.command()
@click.argument("model", default=PRESET, shell_complete=completion.words(lambda: PRESETS, "file"))
@listed("backend", "Only these: torch, tf, jax, numpy, or a Python file that defines Trainer.")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Updates of the parameters.")
@click.option("--dtype", type=Choice(["float64", "float32"]), default="float64", show_default=True, help="Of the whole run.")
@click.option("--mode", type=Choice(["compiled", "eager"]), default="compiled", show_default=True, help="How a step runs.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable.")
@recipe_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the fresh parameters, batches and keep masks.")
@click.option("--limit", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for one step, compiling included.")
@click.option("--json", "json_file", type=OUT, help="Write every number; - prints it instead.")
@click.option("--picture", type=OUT, metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")
def compare_training(
    model: str, backends: tuple[str, ...], steps: int, dtype: str, mode: str, settings: tuple[str, ...], recipe: tuple[str, ...],
    seed: int, limit: float, json_file: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Train every backend for a few steps beside the reference, on the same batches and keep masks, and say whether they stay together.

    MODEL is a canonical checkpoint, or a preset, of fresh parameters; by default tiny. Dropout is 0.1 at every site that the config leaves
    at 0, unless --set says otherwise. In float64 the loss and every parameter may be 1e-9 of the reference's away; in float32 what is
    allowed is derived, step by step, from the reference's own runs in other summation orders.

    Exit codes: 0 together, 1 a backend leaves or fails, 2 wrong usage, 3 backend missing.
    """
    _refuse(backends, [path for path in (json_file, picture) if path])
    require_picture(picture, "--picture")
    require("compare-training", needs_of(*backends))
    config, values = _start(model, settings, seed, dtype)
    chosen = comparison.RECIPE.replace(**parse_settings(recipe, Recipe))
    experiment = comparison.Experiment(config, chosen, values, steps, seed)
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


def _start(model: str, settings: Iterable[str], seed: int, dtype: str) -> tuple[TransformerConfig, dict[str, Any]]:
    """Returns the config with dropout, and the initial parameters in the run's dtype."""
    changes = parse_settings(settings)
    if not Path(model).exists():
        known("preset", [model], PRESETS, "or a checkpoint that exists")
    loaded = canonical.load(model) if Path(model).exists() else None
    config = loaded.config if loaded else preset(model)
    config = config.replace(**({rate: DROPOUT for rate in DROPOUT_RATES if not getattr(config, rate)} | changes))
    config.need_objective()
    if not loaded:
        return config, parameters.initialise(config, seed, dtype)
    parameters.match(loaded.parameters, parameters.shapes(config))
    return config, {name: array.astype(dtype) for name, array in loaded.parameters.items()}
