"""The `rosettaformer` command."""

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
    """Turns SIGTERM and SIGHUP into SystemExit inside the block, to clean up child processes."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # signal handlers need the main thread
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
    "Test a port": {
        "check": "Check ports against the reference.",
        "diagnose": "Name the bug in a port and suggest a fix.",
        "explain": "Explain a known bug and measure its error.",
        "compare": "Compare any two models, layer by layer.",
        "report": "Write an HTML report on one model in several implementations.",
        "oracle": "Check the installed transformers against the reference.",
    },
    "Write a port": {
        "new-port": "Write a working port to start from.",
        "new-checkpoint": "Write a small random Hugging Face checkpoint.",
        "guide": "Build the porting guide, a static web site.",
        "list": "List families, components, dtypes, cases, known bugs and ports.",
        "doctor": "Show which ports can run on this machine.",
        "vectors": "Export or verify golden test vectors.",
    },
    "Convert checkpoints": {
        "inspect": "Show what a checkpoint contains and what is wrong with it.",
        "convert": "Convert a checkpoint to another format.",
        "export": "Export a model to ONNX, torch.export, SavedModel, LiteRT or StableHLO.",
    },
    "Run and train models": {
        "generate": "Generate text with a decoder-only model.",
        "classify": "Classify lines of text with a BERT model.",
        "fill-mask": "Predict masked tokens with a BERT model.",
        "embed": "Embed lines of text with a BERT model.",
        "attention": "Write an HTML page of a model's attention weights.",
        "train": "Train a model on a built-in task or your own files.",
        "compare-training": "Compare training runs of several backends with the reference.",
        "plan": "Estimate the memory and traffic of a distributed training step.",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
MISTAKE, INTERRUPTED = 2, 130
LONGEST = 10_000  # maximum length of a message, in characters


class _Gone(Exception):
    """The reader of standard output has closed it."""


@contextlib.contextmanager
def _read() -> Iterator[None]:
    """Raises _Gone on BrokenPipeError and discards further output.

    click would exit with 1, which means that a port differs.
    """
    try:
        yield
    except BrokenPipeError as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _Gone from error


class _LazyGroup(Group):
    """Imports each command on first use, so that `--help` and small commands start fast."""

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


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rosettaformer")
def cli() -> None:
    """Test ports of Transformer models against a NumPy reference, and name their bugs.

    Exit codes: 0 conforms, 1 differs, 2 invalid usage or input, 3 backend not installed.
    """


@terminable()
def main(arguments: Any = None, command: click.Command = cli, name: str = "rosettaformer") -> None:
    """Runs a command and exits with its code.

    ValueError (invalid user input), OSError and MemoryError become one message on standard error
    and exit code 2. Ctrl-C exits with 130 and a closed output with 141, following the shell's
    convention for signals.
    """
    try:
        with _plain_warnings():
            code = _run(arguments, command, name)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (ValueError, OSError, MemoryError) as error:
        click.echo(f"Error: {printable(str(error), LONGEST, lines=True) or 'out of memory'}", err=True)
        code = MISTAKE
    sys.exit(code)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Prints warnings without their source location."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *others: f"Warning: {printable(str(message), LONGEST)}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(arguments: Any, command: click.Command, name: str) -> int:
    """Runs the command, flushes standard output, and returns the exit code."""
    try:
        with _read():
            try:
                code = command.main(arguments, prog_name=name, standalone_mode=False)
            except MissingBackend as error:
                raise Missing(str(error)) from None
            except SystemExit as ended:
                if isinstance(ended.__context__, BrokenPipeError):  # rich turns BrokenPipeError into SystemExit
                    raise ended.__context__ from None
                code = ended.code
            sys.stdout.flush()
    except click.Abort:
        return INTERRUPTED
    except _Gone:
        return GONE
    return code if isinstance(code, int) else 0
