"""`rosettaformer new-port`."""

import importlib.util
import keyword
import sys
from pathlib import Path

import click
from rich.console import Console

from ..atomic import replacing, write_text
from ..conformance import runner
from ..conformance.case import DTYPES
from ..conformance.cases import all_cases
from ..conformance.ports.command import PREFIX
from ..conformance.report import matrix
from ..conformance.report.summary import Summary
from ..conformance.status import Status
from ..processes import printable
from .options import Choice, Missing, like_cases, like_words

FRAMEWORKS = ("torch", "tf", "jax")
KINDS = ("torch", "keras", "flax", "numpy", "command", "like")
TEMPLATES = Path(__file__).parent.parent / "templates"
PLACEHOLDER = "my_port.py"  # the templates' placeholder for the name
SHEBANG = "#!/usr/bin/env python3"
LONGEST_SHEBANG = 120


@click.command("new-port")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--from", "source", metavar="FILE:CLASS", help="Propose the port of this class, or of what this function returns.")
@click.option("--component", default="", help="What the class is, such as encoder_layer. [default: what its parameters show]")
@click.option("--framework", type=Choice(FRAMEWORKS), help="The framework of the class. [default: the one that it shows]")
@click.option(
    "--with",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A constructor argument, as a Python value or config.FIELD. Repeat it for others.",
)
@click.option("--check/--no-check", "check", default=True, show_default=True, help="Check the new port at once.")
def new_port(
    kind: str | None, name: str | None, source: str | None, component: str, framework: str | None, given: tuple[str, ...], check: bool
) -> None:
    """Write NAME.py, a port that runs and conforms, to put your own code in; and check it.

    Kinds: modules of torch, keras or flax; functions in numpy; or a command, which may live in another environment or language.

    new-port like FAMILY writes FAMILY_port.py, a port of a whole model that is judged by its logits: check FAMILY_port.py --like FAMILY.

    new-port --from my_model.py:Model [NAME] proposes the port of your own class, as my_model_port.py without NAME: it builds the class at
    small sizes and matches its parameters and arguments with those of the reference. What it cannot decide is marked TODO in the file. FILE
    may be an importable module, as in torch.nn:TransformerEncoderLayer.
    """
    if source is not None:
        sys.exit(_propose(source, kind, name, component, framework, given, check))
    if component or framework or given:
        raise click.UsageError("--component, --framework and --with need --from")
    if kind is None or name is None:
        raise click.UsageError("a kind and a name are needed, or --from")
    Choice(KINDS).convert(kind, None, None)
    if kind == "like":
        sys.exit(_like(name, check))
    path = Path(f"{name}.py")
    _refuse(name, path)
    _write(kind, path)
    click.echo(f"wrote {path}")
    named = f"--command ./{path}" if kind == "command" else str(path)
    code = _check(f"{PREFIX}./{path}" if kind == "command" else str(path)) if check else 0
    click.echo(f"\nPut your own code in {path}, then:\n  rosettaformer check {named}\n  rosettaformer diagnose {named}")
    sys.exit(code)


def _like(family: str, check: bool) -> int:
    """Writes the port of a whole model of a family, and checks it; returns the exit code."""
    from ..checkpoints import unsupported
    from ..checkpoints.hugging_face import new

    unsupported.refuse(family)
    Choice(new.names()).convert(family, None, None)
    path = Path(f"{family.replace('.', '_').replace('-', '_')}_port.py")
    _refuse(path.stem, path)
    _write("like", path)
    click.echo(f"wrote {path}")
    code = _check(str(path), like=family) if check else 0
    named = f"{path} --like {family}"
    click.echo(f"\nPut your own code in {path}, then:\n  rosettaformer check {named}\n  rosettaformer diagnose {named}")
    return code


def _propose(
    source: str, name: str | None, spare: str | None, component: str, framework: str | None, given: tuple[str, ...], check: bool
) -> int:
    """Writes the port of a class, and checks it if nothing is left to decide; returns the exit code."""
    if spare is not None:
        raise click.UsageError(f"--from takes one name; got {name} and {spare}")
    where = source.partition(":")[0]
    name = name or f"{Path(where).stem if where.endswith('.py') else where.rpartition('.')[2]}_port"
    path = Path(f"{name}.py")
    _refuse(name, path)
    if wrong := [text for text in given if not text.partition("=")[2]]:
        raise ValueError(f"--with must be NAME=VALUE; got {wrong[0]!r}")
    from ..proposals import propose  # the judge, which the other kinds do not need

    values = {one: value for one, _, value in (text.partition("=") for text in given)}
    with Console(stderr=True).status("building and trying"):
        proposal = propose(source, path.name, component, framework or "", values)
    write_text(path, proposal.text)
    click.echo(f"wrote {path}: {source.partition(':')[2]} as {proposal.component}")
    for note in proposal.notes:
        click.echo(printable(note, 300))
    if proposal.left:
        click.echo(f"left to decide, where {path} says TODO:\n" + "\n".join(f"  {one}" for one in proposal.left))
        click.echo(f"\nThen:\n  rosettaformer check {path}")
        return 0
    code = _check(str(path), proposal.component) if check else 0
    if code == 0:  # if it differs, the summary says what comes next
        click.echo(f"\nNext:\n  rosettaformer check {path}")
    return code


def _refuse(name: str, path: Path) -> None:
    """Raises ValueError on names that Python cannot import or would confuse with another module, and on files that exist."""
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


def _check(port: str, component: str = "", like: str = "") -> int:
    """Prints how the port fares and returns the exit code.

    A template runs the core cases in float32; a port of one component what `rosettaformer check` runs: every case in every dtype.
    """
    console = Console(stderr=True)
    with console.status("checking"):
        if like:
            cases = [case for case in like_cases(like, 0, ("float32",)) if case.core]
        else:
            cases = [case for case in all_cases() if (case.component == component if component else case.core)]
        results = runner.run(cases, [port], DTYPES if component else ["float32"])
    if any(result.status == Status.MISSING for result in results):
        click.echo(f"not checked: the framework is missing: {results[0].message}")
        return Missing.exit_code
    summary = Summary([result for result in results if result.status != Status.NOT_COVERED])
    matrix.render(Console(), summary, options=like_words(like))
    for result in results:
        if result.status == Status.NOT_STARTED:
            click.echo(result.message)
    return 0 if summary.conforms else 1
