"""The options of commands that judge artefacts."""

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
    help="An artefact has this precision: allow what that costs, and tell the error."
)  # fmt: skip


def artefact_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--tensor, --function and --allow-code."""
    text = "An AOTInductor package is compiled code, which runs with your rights: open it."
    function = click.option("--allow-code", is_flag=True, help=text)(function)
    text = "Which of an artefact's functions, or signatures, is the whole model, if it has several and calls none forward."
    function = click.option("--function", default="", metavar="NAME", help=text)(function)
    text = "What an input or output of an artefact is, such as ids=source, seen=target_mask, y=logits; repeatable."
    return click.option("--tensor", "tensors", multiple=True, metavar="NAME=MEANING", help=text)(function)


def words(checkpoint: Path, ignore: Names, tensors: Names, function: str, allow_code: bool) -> Names:
    """Returns the words that give these options to another command."""
    given = {"--ignore": ignore, "--tensor": tensors}
    named = [(option, value) for option, values in given.items() for value in values]
    code = (*(("--function", function) if function else ()), *("--allow-code",) * allow_code)
    return ("--checkpoint", str(checkpoint), *code, *(word for pair in named for word in pair))
