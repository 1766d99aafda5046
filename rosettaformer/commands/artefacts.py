"""The options of commands that judge artefacts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..judge.expectation.lowered import PRECISIONS
from .options import Choice

Names = tuple[str, ...]
OPTIONS = ("inputs", "outputs", "function", "allow_code")
_EXAMPLE = {"input": "ids=source, seen=target_mask", "output": "y=logits"}
expect_option = click.option(
    "--expect", type=Choice([*PRECISIONS]), callback=lambda context, option, value: value or "",
    help="An artefact has this precision: allow what that costs, and tell the error."
)  # fmt: skip


def artefact_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--input, --output, --function and --allow-code."""
    text = "An AOTInductor package is compiled code, which runs with your rights: open it."
    function = click.option("--allow-code", is_flag=True, help=text)(function)
    text = "Which of an artefact's functions, or signatures, is the whole model, if it has several and calls none forward."
    function = click.option("--function", default="", metavar="NAME", help=text)(function)
    for side in ("output", "input"):
        text = f"What an {side} of an artefact is, such as {_EXAMPLE[side]}; repeatable."
        function = click.option(f"--{side}", f"{side}s", multiple=True, metavar="NAME=MEANING", help=text)(function)
    return function


def words(checkpoint: Path, leave_out: Names, ignore: Names, inputs: Names, outputs: Names, function: str, allow_code: bool) -> Names:
    """Returns the words that give these options to another command."""
    given = {"--leave-out": leave_out, "--ignore": ignore, "--input": inputs, "--output": outputs}
    named = [(option, value) for option, values in given.items() for value in values]
    code = (*(("--function", function) if function else ()), *("--allow-code",) * allow_code)
    return ("--checkpoint", str(checkpoint), *code, *(word for pair in named for word in pair))
