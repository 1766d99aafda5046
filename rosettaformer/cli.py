"""The command `rosettaformer`."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from .commands.options import Group, Missing
from .common import compile_cache
from .common.extras import MissingBackend
from .common.processes import GONE, printable


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exception within the block, so that everything this process has started is ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # elsewhere Python allows no handlers
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, leave)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


SECTIONS = {
    "Judge": {
        "check": "Check ports against the reference and print the matrix.",
        "diagnose": "Say what is wrong with a port, and how to fix it.",
        "explain": "Explain a defect of the catalogue, and measure its error.",
        "compare": "Compare any two models on the same weights and inputs, layer by layer.",
        "report": "Write one page about one model in four implementations.",
    },
    "Port": {
        "new-port": "Write a port that runs at once, to put your own code in.",
        "new-checkpoint": "Write a small random model of a family, as a folder of Hugging Face.",
        "guide": "Write the porting guide: a site to open in a browser, measured now.",
        "list": "List families, components, dtypes; or config fields, cases, defects, ports.",
        "doctor": "What is installed: ports, versions, devices, matmul precision.",
        "vectors": "Export golden vectors, or verify them.",
    },
    "Files": {
        "inspect": "Show what a checkpoint holds, or everything that is wrong with it.",
        "convert": "Convert a checkpoint from one format to another.",
        "export": "Write a checkpoint's model as ONNX, torch.export, SavedModel, LiteRT or StableHLO.",
    },
    "Use": {
        "generate": "Continue texts, or answer chats, with a folder of GPT-2, Llama or others, in any backend.",
        "classify": "Classify lines with a BERT folder, in any backend.",
        "fill-mask": "Fill the masks in texts with a BERT folder, in any backend.",
        "embed": "One vector for every line, by a BERT folder, in any backend.",
        "attention": "Show what every head of a folder's model attends to, as a page.",
        "train": "Train a model on a task, in any backend; resume it in any.",
        "compare-training": "Train every backend beside the reference, and say whether they stay together.",
        "plan": "Say what a training step needs of every device of a mesh: memory and traffic.",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
MISTAKE, INTERRUPTED = 2, 130
LONGEST = 10_000  # characters of a message


class _Gone(Exception):
    """Raised when nobody reads the output any more."""


@contextlib.contextmanager
def _read() -> Iterator[None]:
    """Raises _Gone for BrokenPipeError, which click turns into exit code 1, a difference; further output is discarded."""
    try:
        yield
    except BrokenPipeError as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _Gone from error


class _LazyGroup(Group):
    """Imports a command when it is called, so that `--help` and light commands stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        return getattr(importlib.import_module(f"rosettaformer.commands.{name}"), name)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _read():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _read(), compile_cache.kept():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rosettaformer")
def cli() -> None:
    """One Transformer, written four times, provably the same; and the judge of any port.

    Exit codes: 0 conforms, 1 differs, 2 wrong usage or bad input, 3 backend missing.
    """


@terminable()
def main(arguments: Any = None, command: click.Command = cli, name: str = "rosettaformer") -> None:
    """Runs a command under its name; a user's mistake is one message on standard error and exit code 2.

    Mistakes are ValueError, raised by everything that reads user input, and OSError and MemoryError, raised by the system. Ctrl-C exits
    with 130, and a closed output with 141, as a shell reports a command ended by a signal.
    """
    try:
        with _plain_warnings():
            code = _run(arguments, command, name)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (ValueError, OSError, MemoryError) as error:
        click.echo(f"Error: {printable(str(error), LONGEST, lines=True) or 'there is not enough memory'}", err=True)
        code = MISTAKE
    sys.exit(code)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows warnings without the place in the source that they come from."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *others: f"Warning: {printable(str(message), LONGEST)}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(arguments: Any, command: click.Command, name: str) -> int:
    """Returns the command's exit code, with all of its output written."""
    try:
        with _read():
            try:
                code = command.main(arguments, prog_name=name, standalone_mode=False)
            except MissingBackend as error:
                raise Missing(str(error)) from None
            except SystemExit as ended:
                if isinstance(ended.__context__, BrokenPipeError):  # rich's answer to BrokenPipeError
                    raise ended.__context__ from None
                code = ended.code
            sys.stdout.flush()
    except click.Abort:
        return INTERRUPTED
    except _Gone:
        return GONE
    return code if isinstance(code, int) else 0
