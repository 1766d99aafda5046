"""`rosettaformer doctor`."""

import json
import platform
from importlib.metadata import version

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..common.backends import PORTS
from ..common.outputs import versioned
from ..judge.runner import describe_ports
from ..judge.status import Kind
from . import words
from .options import Grouped, examples


@click.command(cls=Grouped, epilog=examples("doctor", "doctor --json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(as_json: bool) -> None:
    """Show which ports can run on this machine.

    Lists versions, devices, matmul precision and modes, and how to install a missing framework.
    """
    ports = describe_ports(list(PORTS))
    base = {"python": platform.python_version(), "machine": platform.machine(), "numpy": version("numpy")}
    if as_json:
        said = {name: {"state": kind, "about": about} for name, (kind, about) in ports.items()}
        click.echo(json.dumps(versioned("doctor", {"base": base, "ports": said})))
        return
    table = Table(title=words.environment(**base), title_justify="left")
    for column in ("port", "versions", "devices", "matmul precision", "modes"):
        table.add_column(column, overflow="fold")
    for name, (kind, about) in ports.items():
        if kind == Kind.READY:
            versions = ", ".join(f"{package} {number}" for package, number in about["version"].items())
            table.add_row(name, versions, ", ".join(about["devices"]), about["precision"], ", ".join(about["modes"]))
        else:
            table.add_row(name, f"[red]{kind}[/]")
    console = Console()
    console.print(table)
    for name, (kind, about) in ports.items():
        if kind != Kind.READY:
            console.print(f"{name} is {kind}: {escape(about)}", highlight=False, soft_wrap=True)
