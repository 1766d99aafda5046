"""Options for exported models, such as ONNX files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..judge.expectation.lowered import PRECISIONS
from .options import Choice

Names = tuple[str, ...]
OPTIONS = ("tensors", "function", "allow_code")
expect_option = click.option(
    "--expect", type=Choice([*PRECISIONS]), callback=lambda context, option, value: value or "",
    metavar="DTYPE", help="Precision of the exported model: int8, float16 or bfloat16."
)  # fmt: skip


def artefact_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --tensor, --function and --allow-code."""
    text = "Allow AOTInductor packages, which run native code."
    function = click.option("--allow-code", is_flag=True, help=text)(function)
    text = "Function or signature of the whole model. [default: forward]"
    function = click.option("--function", default="", metavar="NAME", help=text)(function)
    text = "Meaning of an input or output, such as ids=source; repeatable."
    return click.option("--tensor", "tensors", multiple=True, metavar="NAME=MEANING", help=text)(function)


def artefact_words(checkpoint: Path, ignore: Names, tensors: Names, function: str, allow_code: bool) -> Names:
    """Returns the arguments that pass these options on to another command."""
    given = {"--ignore": ignore, "--tensor": tensors}
    named = [(option, value) for option, values in given.items() for value in values]
    code = (*(("--function", function) if function else ()), *("--allow-code",) * allow_code)
    return ("--checkpoint", str(checkpoint), *code, *(word for pair in named for word in pair))
