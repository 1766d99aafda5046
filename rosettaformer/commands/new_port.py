"""`rosettaformer new-port`."""

import importlib.util
import keyword
import re
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from ..common.atomic import replacing, write_text
from ..common.extras import OTHERS, lacking, require
from ..common.processes import printable
from ..judge import runner
from ..judge.case import DTYPES
from ..judge.ports.command import PREFIX
from ..judge.report import matrix
from ..judge.selection import Selection, cases_for
from ..judge.status import Status
from ..judge.suite import all_cases
from ..judge.summary import Summary
from ..judge.templates import TEMPLATES
from .options import Choice, Missing, like_words, until_the_end

FRAMEWORKS = {"torch": "torch", "tf": "tf", "keras": "tf", "jax": "jax", "flax": "jax"}  # of a class, as a port names them
PLAIN = {"torch": "torch", "flax": "jax", "keras": "tf", "numpy": ""}  # of a whole model in plain code: its extra
KINDS = ("torch", "keras", "flax", "numpy", "command", "like")
PLACEHOLDER = "my_port.py"  # the templates' placeholder for the name
SHEBANG = "#!/usr/bin/env python3"
LONGEST_SHEBANG = 120


@click.command("new-port")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--from", "source", metavar="FILE:CLASS", help="Propose the port of this class, or of what this function returns.")
@click.option("--component", default="", help="What the class is, such as encoder_layer. [default: what its parameters show]")
@click.option(
    "--framework",
    type=Choice(list(dict.fromkeys((*PLAIN, *FRAMEWORKS)))),
    help="The framework of the class, or of the model that `like` writes. [default: the class shows it; transformers]",
)
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

    new-port like FAMILY writes FAMILY_port.py, a port of a whole model, which is checked by its logits: check FAMILY_port.py --like FAMILY.
    With --framework torch, flax, keras or numpy it is a small model in plain code, to extend; without, it calls transformers.

    new-port --from my_model.py:MyModel [NAME] proposes the port of your own class, as my_model_port.py without NAME: it builds the class
    at small sizes and matches its parameters and arguments with those of the reference. What it cannot decide is marked TODO in the file.
    FILE may be an importable module, as in torch.nn:TransformerEncoderLayer.
    """
    if source is not None:
        sys.exit(_propose(source, kind, name, component, framework, given, check))
    if component or given or (framework and kind != "like"):
        raise click.UsageError("--component and --with need --from; --framework needs --from or the kind like")
    if kind is None or name is None:
        raise click.UsageError("a kind and a name are needed, or --from")
    Choice(KINDS).convert(kind, None, None)
    if kind == "like":
        sys.exit(_like(name, framework or "", check))
    path = Path(f"{name}.py")
    _refuse(name, path)
    _write(kind, path)
    click.echo(f"wrote {path}")
    named = f"--command ./{path}" if kind == "command" else str(path)
    code = _check(f"{PREFIX}./{path}" if kind == "command" else str(path)) if check else 0
    click.echo(f"\nPut your own code in {path}, then:\n  rosettaformer check {named}\n  rosettaformer diagnose {named}")
    sys.exit(code)


def _like(family: str, framework: str, check: bool) -> int:
    """Writes the port of a whole model of a family, and checks it; returns the exit code."""
    from ..files.checkpoints import unsupported
    from ..files.checkpoints.hugging_face import new

    unsupported.refuse(family)
    Choice(new.names()).convert(family, None, None)
    if framework:
        Choice([*PLAIN]).convert(framework, None, None)
    path = Path(f"{re.sub(r'[^a-z0-9]', '_', family)}_port.py")
    _refuse(path.stem, path)
    if check:
        _require(family, framework)
    if framework:
        from ..judge.proposals.whole_models import written

        with tempfile.TemporaryDirectory() as folder:
            new.write(family, Path(folder, family))
            write_text(path, written(Path(folder, family), framework, path.name))
    else:
        _write("like", path)
    click.echo(f"wrote {path}")
    code = _check(str(path), like=family) if check else 0
    named = f"{path} --like {family}"
    click.echo(f"\nPut your own code in {path}, then:\n  rosettaformer check {named}\n  rosettaformer diagnose {named}")
    return code


def _require(family: str, framework: str) -> None:
    """Raises Missing if a package that the port of a family imports is not installed."""
    module = {"": "torch", "flax": "flax", "keras": "keras", "torch": "torch", "numpy": "numpy"}[framework]
    require("the port", {PLAIN[framework or "torch"]: [module]})
    if not framework and lacking(["transformers"]):
        plain = f"new-port like {family} --framework torch writes a model that does not need it"
        raise Missing(f"the port needs transformers: {OTHERS['transformers']}; {plain}")


def _propose(
    source: str, name: str | None, spare: str | None, component: str, framework: str | None, given: tuple[str, ...], check: bool
) -> int:
    """Writes the port of a class, and checks it if nothing is left to decide; returns the exit code."""
    if spare is not None:
        raise click.UsageError(f"--from takes one name; got {name} and {spare}")
    if framework and framework not in FRAMEWORKS:
        raise click.UsageError(f"--framework of --from must be one of {', '.join(FRAMEWORKS)}; got {framework}")
    name = name or _named(source)
    path = Path(f"{name}.py")
    _refuse(name, path)
    if wrong := [text for text in given if not text.partition("=")[2]]:
        raise ValueError(f"--with must be NAME=VALUE; got {wrong[0]!r}")
    from ..judge.proposals import propose  # the judge, which the other kinds do not need

    values = {one: value for one, _, value in (text.partition("=") for text in given)}
    with Console(stderr=True).status("building and trying"):
        proposal = propose(source, path.name, component, FRAMEWORKS.get(framework or "", ""), values)
    write_text(path, proposal.text)
    click.echo(f"wrote {path}: {source.partition(':')[2]} as {proposal.component}")
    for decision in proposal.decisions:
        if not decision.is_open:
            click.echo(printable(str(decision), 300))
    whole = f"The whole model: rosettaformer new-port like {proposal.family}; check {proposal.family}_port.py --like {proposal.family}"
    whole = f"\n{whole}" * bool(proposal.family)
    if proposal.left:
        click.echo(f"left to decide, where {path} says TODO:")
        for decision in proposal.left:
            click.echo(printable(str(decision), 300))
        click.echo(f"\nThen:\n  rosettaformer check {path}{whole}")
        return 0
    code = _check(str(path), proposal.component) if check else 0
    if code == 0:  # if it differs, the summary says what comes next
        click.echo(f"\nNext:\n  rosettaformer check {path}{whole}")
    elif whole:
        click.echo(whole)
    return code


def _named(source: str) -> str:
    """Returns the name of the port of FILE:CLASS, after the class: my_model_port for MyModel."""
    name = source.rpartition(":")[2].removesuffix(".py")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().strip("_") + "_port"


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
            cases = [case for case in until_the_end(cases_for((), Selection(like=like, dtypes=("float32",)))) if case.core]
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
