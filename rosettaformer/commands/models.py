"""The options that commands on a folder's model share, and opening it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..backends import BACKENDS, MissingBackend, require
from .options import Choice, Missing, ignore_option, leave_out_option, section

__all__ = ["MODEL_OPTIONS", "folder_argument", "model_options", "open_both"]

MODEL_OPTIONS = ("backend", "dtype", "device", "leave_out", "ignore")  # the options of a command that `open_both` takes

_DTYPES = ("float64", "float32", "bfloat16", "float16", "int8")

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--backend, --dtype, --device, --leave-out and --ignore."""
    return section(
        "Model",
        click.option("--backend", type=Choice(list(BACKENDS)), default="torch", show_default=True, help="Backend that computes."),
        click.option("--dtype", type=Choice(list(_DTYPES)), default="float32", show_default=True, help="Parameters are rounded to it."),
        click.option("--device", default="cpu", show_default=True, help="cpu, or what the backend calls another."),
        leave_out_option,
        ignore_option,
    )(function)


def open_both(folder: Path, use: str, backend: str, dtype: str, device: str, **options: tuple[str, ...]) -> tuple[Any, Any]:
    """Returns the folder (`inference.folder.open_folder`) and its model. Raises Missing if a package or the backend is not installed."""
    try:
        require(f"the tokenizer of {folder}", "inference", "tokenizers")
        from ..inference.folder import open_folder
        from ..inference.models import open_model

        found = open_folder(folder, use, **options)
        return found, open_model(found.checkpoint, backend, dtype, device)
    except MissingBackend as error:
        raise Missing(str(error)) from None
