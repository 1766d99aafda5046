"""What commands share that judge artefacts: their options, and the cases of the checkpoint that they were made of."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from ..common.extras import require
from ..common.reading import read_object
from ..files import checkpoints
from ..files.artefacts import meanings
from ..files.artefacts.kinds import KINDS, SUFFIXES, kind_of
from ..files.artefacts.settings import Settings, told
from ..judge.case import Case
from ..judge.expectation.lowered import PRECISIONS
from ..judge.ports.command import PREFIX
from ..judge.suite.artefact import artefact_cases
from ..judge.suite.fitting import GIGA, fitting
from .options import Choice, announced

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


def artefacts_in(ports: Iterable[str]) -> list[str]:
    """Returns the ports that are artefacts. Raises ValueError if there are others too, and if a file does not exist;
    MissingBackend if what runs one is not installed.
    """
    ports = list(ports)
    files = [port for port in ports if not port.startswith(PREFIX)]  # a command's line may end like a file
    found = [port for port in files if kind_of(Path(port)) or Path(port).suffix in SUFFIXES]
    if absent := [port for port in found if not Path(port).exists()]:
        raise ValueError(f"there is no file {absent[0]}")
    if found and len(found) < len(ports):
        other = next(port for port in ports if port not in found)
        raise ValueError(f"artefacts are judged on cases of their own; {other} is no artefact, and is checked by itself")
    for port in found:
        kind = KINDS[kind_of(Path(port)) or SUFFIXES[Path(port).suffix]]
        require(kind.title, {kind.extra: kind.needs})
    return found


def cases_of(
    artefacts: Sequence[str], checkpoint: Path | None, leave_out: Names, ignore: Names, inputs: Names, outputs: Names,
    function: str, allow_code: bool, expect: str = "",
    memory: float | None = None,
) -> list[Case]:  # fmt: skip
    """Returns the cases of the checkpoint; until the command ends, processes are told what they need to know of the artefacts.

    inputs, outputs, function, allow_code: see `artefact_options`; memory: see `like_options`.
    Raises ValueError without a checkpoint, and on one that cannot be read.
    """
    if checkpoint is None:
        what = KINDS[kind_of(Path(artefacts[0])) or SUFFIXES[Path(artefacts[0]).suffix]].title
        wanted = "--checkpoint says which they are, a canonical file or a Hugging Face folder"
        raise ValueError(f"{artefacts[0]} is {what}, with weights of its own: {wanted}")
    found = checkpoints.view(checkpoint, checkpoints.own_format(checkpoint), leave_out=leave_out, ignore=ignore)
    settings = Settings(
        found.config.to_dict(),
        read_object(file) if (file := checkpoint / "config.json").is_file() else {},
        meanings.parse(inputs, "--input"),
        meanings.parse(outputs, "--output"),
        function,
        allow_code,
        expect,
        str(checkpoint),
        leave_out,
        ignore,
    )
    click.get_current_context().with_resource(told(settings))
    return announced(fitting(artefact_cases(checkpoint, found), memory and memory * GIGA))


def refuse_without_artefacts(**options: Any) -> None:
    """Raises ValueError if an option is given that means something for artefacts alone."""
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"--{given[0].removesuffix('s').replace('_', '-')} is of artefacts; no port is one")


def words(checkpoint: Path, leave_out: Names, ignore: Names, inputs: Names, outputs: Names, function: str, allow_code: bool) -> Names:
    """Returns the words that give these options to another command."""
    given = {"--leave-out": leave_out, "--ignore": ignore, "--input": inputs, "--output": outputs}
    named = [(option, value) for option, values in given.items() for value in values]
    code = (*(("--function", function) if function else ()), *("--allow-code",) * allow_code)
    return ("--checkpoint", str(checkpoint), *code, *(word for pair in named for word in pair))
