"""`rosettaformer new-port`."""

import importlib.util
import keyword
import sys
from pathlib import Path

import click
from rich.console import Console

from ..atomic import replacing
from ..conformance import runner
from ..conformance.cases import all_cases
from ..conformance.ports.command import PREFIX
from ..conformance.report import matrix
from ..conformance.report.summary import Summary
from .options import Choice, Missing

__all__ = ["new_port"]

KINDS = ("torch", "keras", "flax", "numpy", "command")
TEMPLATES = Path(__file__).parent.parent / "templates"
PLACEHOLDER = "my_port.py"  # what the templates call themselves
SHEBANG = "#!/usr/bin/env python3"
LONGEST_SHEBANG = 120


@click.command("new-port")
@click.argument("kind", type=Choice(KINDS))
@click.argument("name")
@click.option("--check/--no-check", "check", default=True, show_default=True, help="Check the new port at once.")
def new_port(kind: str, name: str, check: bool) -> None:
    """Write NAME.py, a port that runs and conforms, to put your own code in; and check it.

    Kinds: modules of torch, keras or flax; functions in numpy; or a command, which may live in another environment or language.
    """
    path = Path(f"{name}.py")
    _refuse(name, path)
    _write(kind, path)
    click.echo(f"wrote {path}")
    named = f"--command ./{path}" if kind == "command" else str(path)
    code = _check(f"{PREFIX}./{path}" if kind == "command" else str(path)) if check else 0
    click.echo(f"\nPut your own code in {path}, then:\n  rosettaformer check {named}\n  rosettaformer diagnose {named}")
    sys.exit(code)


def _refuse(name: str, path: Path) -> None:
    """Raises ValueError on names that Python cannot import, or takes for another module, and on files that exist."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"the name of a port must be a Python name, such as my_port; got {name!r}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists, and is not overwritten")
    found = importlib.util.find_spec(name)
    if found is not None and found.origin is not None:
        raise ValueError(f"the name of a port must not be that of an installed module; got {name!r}")


def _write(kind: str, path: Path) -> None:
    text = (TEMPLATES / f"{kind}_port.py").read_text(encoding="utf-8").replace(PLACEHOLDER, path.name)
    interpreter = f"#!{sys.executable}"
    if " " not in interpreter and len(interpreter) < LONGEST_SHEBANG:  # an environment that is known to have what the command needs
        text = text.replace(SHEBANG, interpreter)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        if kind == "command":
            temporary.chmod(0o755)


def _check(port: str) -> int:
    """Prints what the core cases of the components that the port covers come to; the exit code."""
    console = Console(stderr=True)
    with console.status("checking"):
        results = runner.run([case for case in all_cases() if case.core], [port], ["float32"])
    if any(result.status == "missing" for result in results):
        click.echo(f"not checked: the framework is missing: {results[0].message}")
        return Missing.exit_code
    summary = Summary([result for result in results if result.status != "not covered"])
    matrix.render(Console(), summary)
    return 0 if summary.conforms else 1
