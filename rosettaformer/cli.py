"""The command `rosettaformer`."""

import importlib
import sys
from typing import Any

import click

from .termination import terminable

__all__ = ["main"]

COMMANDS = {
    "doctor": "What is installed: ports, versions, devices, matmul precision.",
    "check": "Check ports against the truth and print the matrix.",
    "diagnose": "Say what is wrong with a port, and how to mend it.",
    "explain": "Explain a defect of the catalogue, and measure its error.",
    "new-port": "Write a port that runs at once, to put your own code in.",
    "vectors": "Export golden vectors, or verify them.",
    "convert": "Convert a checkpoint from one format to another.",
    "inspect": "Show what a checkpoint holds, or everything that is wrong with it.",
    "train": "Train a model on a task, in any backend; resume it in any.",
    "translate": "Translate lines with a run's model, in any backend.",
    "compare-training": "Train every backend beside the truth, and say whether they stay together.",
    "bench": "Time ours beside every peer: passes, training steps, searches.",
}
MISTAKE, MISSING = 2, 3


class _LazyGroup(click.Group):
    """Imports a command when it is called, so that `--help` and light commands stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        return getattr(importlib.import_module(f"rosettaformer.commands.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_LazyGroup)
@click.version_option(package_name="rosettaformer")
def cli() -> None:
    """One Transformer, written four times, provably the same; and the judge of any port.

    Exit codes: 0 conforms, 1 differs, 2 wrong usage or bad input, 3 backend missing.
    """


@terminable()
def main(arguments: Any = None) -> None:
    """Runs the command; a user's mistake is one message on standard error and exit code 2."""
    try:
        cli.main(arguments, prog_name="rosettaformer")
    except (ValueError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(MISTAKE)
