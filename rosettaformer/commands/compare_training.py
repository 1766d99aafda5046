"""`rosettaformer compare-training`."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import Recipe
from reference_numpy.suggestions import known

from ..checkpoints import canonical
from ..checkpoints.choices import parse_settings
from ..checkpoints.reading import parse_json
from ..cli import MISSING
from ..conformance.ports.port import PORTS
from ..conformance.report import files
from ..extras import install
from ..training import same_run, same_run_report
from ..training.backends import BACKENDS
from .options import Choice

__all__ = ["compare_training"]

RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate")
PRESET, DROPOUT = "tiny", 0.1
SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 120  # of the tables where there is no terminal


@click.command()
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--backend", "backends", multiple=True,
    help="Only these: torch, tf, jax, numpy, or a Python file that defines Trainer. Repeat it, or separate by commas.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Updates of the parameters.")
@click.option("--dtype", type=Choice(["float64", "float32"]), default="float64", show_default=True, help="Of the whole run.")
@click.option("--mode", type=Choice(["compiled", "eager"]), default="compiled", show_default=True, help="How a step runs.")
@click.option("--preset", "preset_name", help=f"Start from fresh parameters of this preset. [default: {PRESET}]")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable.")
@click.option("--recipe", "choices", multiple=True, metavar="FIELD=VALUE", help="A field of the recipe, such as warmup; repeatable.")
@click.option("--microbatches", type=click.IntRange(min=1), default=1, show_default=True, help="Parts of a batch.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the fresh parameters, batches and keep masks.")
@click.option("--limit", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for one step, compiling included.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write every number; - prints it instead.")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")
def compare_training(
    checkpoint: Path | None, backends: tuple[str, ...], steps: int, dtype: str, mode: str, preset_name: str | None,
    settings: tuple[str, ...], choices: tuple[str, ...], microbatches: int, seed: int, limit: float, json_file: Path | None,
    picture: Path | None,
) -> None:  # fmt: skip
    """Train every backend for a few steps beside the truth, on the same batches and keep masks, and say whether they stay together.

    The start is the canonical CHECKPOINT, or fresh parameters of a preset. Dropout is 0.1 at every site that the config leaves at 0, unless
    --set says otherwise. In float64 the loss and every parameter may be 1e-9 of the truth's away; in float32 what is allowed is derived,
    step by step, from the truth's own runs in other orders of additions.

    Exit codes: 0 together, 1 a backend leaves or fails, 2 wrong usage, 3 backend missing.
    """
    named = tuple(dict.fromkeys(name for given in backends for name in given.split(",") if name))
    _refuse(named, [path for path in (json_file, picture) if path], picture)
    config, values = _start(checkpoint, preset_name, settings, seed, dtype)
    experiment = same_run.Experiment(config, _recipe(choices, microbatches), values, steps, seed)
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("training", total=steps)
        losses, runs = same_run.compare(
            experiment, named or tuple(PORTS), mode == "compiled", limit, lambda step: progress.update(task, completed=step)
        )
    if json_file:
        files.write_json(json_file, same_run_report.to_dict(experiment, losses, runs))
    if picture:
        same_run_report.draw(picture, losses, runs)
    if str(json_file) != "-":
        console = Console()
        if not console.is_terminal:
            console.width = WIDTH
        same_run_report.render(console, losses, runs)
    sys.exit(_exit_code([run.status for run in runs], bool(named)))


def _exit_code(statuses: list[str], named: bool) -> int:
    if any(status not in ("together", "missing") for status in statuses):
        return 1
    return MISSING if "missing" in statuses and (named or "together" not in statuses) else 0


def _refuse(named: Iterable[str], written: list[Path], picture: Path | None) -> None:
    """Raises ValueError before anything is run, and ends with exit code 3 where pictures cannot be drawn."""
    for name in named:
        if not (name.endswith(".py") and Path(name).is_file()):
            known("backend", [name], BACKENDS, "or a Python file that defines Trainer")
    files.require(written)
    if picture and picture.suffix not in SUFFIXES:
        raise ValueError(f"the picture must be a file {', '.join(SUFFIXES)}; got {picture}")
    if picture and importlib.util.find_spec("matplotlib") is None:
        click.echo(f"Error: --picture needs matplotlib: {install('report')}", err=True)
        sys.exit(MISSING)


def _start(
    checkpoint: Path | None, preset_name: str | None, settings: Iterable[str], seed: int, dtype: str
) -> tuple[TransformerConfig, dict[str, Any]]:
    """The config with dropout, and the parameters of the first step in the run's dtype."""
    if checkpoint and preset_name:
        raise ValueError(f"a CHECKPOINT has its own config; it takes no --preset, got {preset_name}")
    changes = parse_settings(settings)
    loaded = canonical.load(checkpoint) if checkpoint else None
    config = loaded.config if loaded else preset(preset_name or PRESET)
    config = config.replace(**({rate: DROPOUT for rate in RATES if not getattr(config, rate)} | changes))
    if not config.decoder_layers:
        raise ValueError("training needs at least one decoder layer; got decoder_layers=0")
    if not loaded:
        return config, parameters.initialise(config, seed, dtype)
    parameters.match(loaded.parameters, parameters.shapes(config))
    return config, {name: array.astype(dtype) for name, array in loaded.parameters.items()}


def _recipe(choices: Iterable[str], microbatches: int) -> Recipe:
    """The default recipe with these fields changed; values are numbers or none."""
    changes: dict[str, Any] = {}
    for text in choices:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ValueError(f"a choice of the recipe must be FIELD=VALUE; got {text!r}")
        try:
            changes[name] = None if value.lower() == "none" else parse_json(value)
        except ValueError:
            raise ValueError(f"{name} must be a number or none; got {value!r}") from None
    return same_run.RECIPE.replace(**({"microbatches": microbatches} | changes))
