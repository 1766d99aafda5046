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
from . import completion, words
from .options import (
    OUT,
    Grouped,
    examples,
    exit_code,
    listed,
    one_of,
    recipe_option,
    require_picture,
    seconds,
    section,
    seed_of,
    wide_console,
)
from .progress import Working

PRESET, DROPOUT = "tiny", 0.1
WIDTH = 120  # width of tables outside a terminal


@click.command(cls=Grouped, epilog=examples("compare-training", "compare-training paper_base --backend torch --steps 5"))
@click.argument("model", default=PRESET, shell_complete=completion.words(lambda: PRESETS, "file"))
@section(
    "Run",
    listed("backend", "Backends: torch, tf, jax, numpy, or a Python file that defines Trainer. [default: torch, tf, jax]"),
    click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Number of parameter updates."),
    one_of("--dtype", "DTYPE", ("float64", "float32"), "float64", "Dtype of the run: float64 or float32."),
    one_of("--mode", "MODE", ("compiled", "eager"), "compiled", "Mode of a step: compiled or eager."),
    seconds("--limit", 600.0, "Time limit for one step, including compilation.", least=1),
)
@section(
    "Model",
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Field of the config; repeatable."),
    recipe_option,
    seed_of("Seed for parameters, batches and dropout."),
)
@section(
    "Output",
    click.option("--json", "json_file", type=OUT, help="JSON file for every number; - prints it instead of the text."),
    click.option("--picture", type=OUT, metavar="FILE", help="Plot of the curves: .png, .svg or .pdf."),
)
def compare_training(
    model: str, backends: tuple[str, ...], steps: int, dtype: str, mode: str, settings: tuple[str, ...], recipe: tuple[str, ...],
    seed: int, limit: float, json_file: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Compare training runs of several backends with the reference.

    Every backend trains MODEL, a preset or a canonical checkpoint, for a few steps on the same
    batches and dropout masks. [default: tiny]

    In float64, the loss and every parameter may differ from the reference by 1e-9; in float32, the
    tolerance of each step is derived from reference runs in other summation orders. Dropout is 0.1
    wherever the config has 0, unless --set changes it.

    Exit codes: 0 equal, 1 a backend differs or fails, 2 invalid usage or input, 3 backend missing.
    """
    _refuse(backends, [path for path in (json_file, picture) if path])
    require_picture(picture, "--picture")
    require("compare-training", needs_of(*backends))
    config, values = _start(model, settings, seed, dtype)
    chosen = comparison.RECIPE.replace(**parse_settings(recipe, Recipe))
    experiment = comparison.Experiment(config, chosen, values, steps, seed)
    with Working("training", steps, words.USUAL_TRAINING, "steps") as working:
        losses, runs = comparison.compare(experiment, backends or tuple(PORTS), mode == "compiled", limit, working.to)
    if json_file:
        files.write_json(json_file, comparison_report.to_dict(experiment, losses, runs))
    if picture:
        comparison_report.draw(picture, losses, runs)
    if str(json_file) != "-":
        comparison_report.render(wide_console(WIDTH), losses, runs)
    sys.exit(exit_code([run.status for run in runs], "together", bool(backends)))


def _refuse(backends: Iterable[str], written: list[Path]) -> None:
    """Raises ValueError on unknown backends and on files that cannot be written."""
    for name in backends:
        if not (name.endswith(".py") and Path(name).is_file()):
            known("backend", [name], BACKENDS, "or a Python file that defines Trainer")
    files.require(written)


def _start(model: str, settings: Iterable[str], seed: int, dtype: str) -> tuple[TransformerConfig, dict[str, Any]]:
    """Returns the config with dropout, and the initial parameters in the dtype of the run."""
    changes = parse_settings(settings)
    if not Path(model).exists():
        known("preset", [model], PRESETS, "or an existing checkpoint")
    loaded = canonical.load(model) if Path(model).exists() else None
    config = loaded.config if loaded else preset(model)
    config = config.replace(**({rate: DROPOUT for rate in DROPOUT_RATES if not getattr(config, rate)} | changes))
    config.need_objective()
    if not loaded:
        return config, parameters.initialise(config, seed, dtype)
    parameters.match(loaded.parameters, parameters.shapes(config))
    return config, {name: array.astype(dtype) for name, array in loaded.parameters.items()}
