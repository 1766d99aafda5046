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
from ..judge.templates import TEMPLATES, like
from . import words
from .options import Choice, Grouped, Missing, examples, like_words, until_the_end

FRAMEWORKS = {"torch": "torch", "tf": "tf", "keras": "tf", "jax": "jax", "flax": "jax"}  # framework of a class -> framework of its port
PLAIN = {"torch": "torch", "flax": "jax", "keras": "tf", "numpy": ""}  # framework of a plain model -> its extra
KINDS = ("torch", "keras", "flax", "numpy", "command", "like")
PLACEHOLDER = "my_port.py"  # placeholder of the file name in the templates
SHEBANG = "#!/usr/bin/env python3"
LONGEST_SHEBANG = 120


@click.command(
    "new-port",
    cls=Grouped,
    epilog=examples("new-port like llama --framework torch", "new-port --from my_model.py:MyModel"),
)
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--from", "source", metavar="FILE:CLASS", help="Class to write a port of, or function that returns the model.")
@click.option("--component", default="", metavar="NAME", help="Component of the class, such as encoder_layer. [default: detected]")
@click.option(
    "--framework",
    type=Choice(list(dict.fromkeys((*PLAIN, *FRAMEWORKS)))),
    metavar="NAME",
    help=f"Framework of the class, or of the model that `like` writes: {', '.join(dict.fromkeys((*PLAIN, *FRAMEWORKS)))}.",
)
@click.option(
    "--with",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Constructor argument, a Python value or config.FIELD; repeatable.",
)
@click.option("--check/--no-check", "check", default=True, show_default=True, help="Check the new port.")
def new_port(
    kind: str | None, name: str | None, source: str | None, component: str, framework: str | None, given: tuple[str, ...], check: bool
) -> None:
    """Write a working port to start from.

    \b
    KIND is:
      torch, keras, flax, numpy  NAME.py with modules or functions of single components
      command                    NAME.py as a command, for another environment or language
      like                       FAMILY_port.py with a whole model of the family NAME, which calls
                                 transformers, or is plain code with --framework

    --from my_model.py:MyModel writes a port of your own class. It builds the class at small sizes
    and matches its parameters and arguments with the reference; open questions are marked TODO.
    FILE can be a module, as in torch.nn:TransformerEncoderLayer.
    """
    if source is not None:
        sys.exit(_propose(source, kind, name, component, framework, given, check))
    if component or given or (framework and kind != "like"):
        raise click.UsageError("--component and --with need --from; --framework needs --from or `new-port like`")
    if kind is None or name is None:
        raise click.UsageError("KIND and NAME, or --from, are required")
    Choice(KINDS).convert(kind, None, None)
    if kind == "like":
        sys.exit(_like(name, framework or "", check))
    path = Path(f"{name}.py")
    _refuse(name, path)
    _write(kind, path)
    click.echo(words.wrote(path))
    named = f"--command ./{path}" if kind == "command" else str(path)
    code = _check(f"{PREFIX}./{path}" if kind == "command" else str(path)) if check else 0
    click.echo(words.replace_code(path, named))
    sys.exit(code)


def _like(family: str, framework: str, check: bool) -> int:
    """Writes a port of a whole model and checks it. Returns the exit code."""
    from ..files.checkpoints import unsupported
    from ..files.checkpoints.hugging_face import new

    unsupported.refuse(family)
    Choice(new.names()).convert(family, None, None)
    both = new.family_of(family).encoder_decoder
    if framework:
        Choice([*PLAIN]).convert(framework, None, None)
    if framework and both:
        raise ValueError(f"--framework writes models with an encoder or a decoder; {family} has both")
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
        _write(like(both), path)
    click.echo(words.wrote(path))
    code = _check(str(path), like=family) if check else 0
    named = f"{path} --like {family}"
    click.echo(words.replace_code(path, named))
    return code


def _require(family: str, framework: str) -> None:
    """Raises Missing if the port imports a package that is not installed."""
    module = {"": "torch", "flax": "flax", "keras": "keras", "torch": "torch", "numpy": "numpy"}[framework]
    require("the port", {PLAIN[framework or "torch"]: [module]})
    if not framework and lacking(["transformers"]):
        plain = f"`rosettaformer new-port like {family} --framework torch` writes a port without it"
        raise Missing(f"the port needs transformers: {OTHERS['transformers']}\n{plain}")


def _propose(
    source: str, name: str | None, spare: str | None, component: str, framework: str | None, given: tuple[str, ...], check: bool
) -> int:
    """Writes the port of a class, and checks it if nothing is left open. Returns the exit code."""
    if spare is not None:
        raise click.UsageError(f"--from accepts one NAME; got {name} and {spare}")
    if framework and framework not in FRAMEWORKS:
        raise click.UsageError(f"--framework must be one of {', '.join(FRAMEWORKS)}; got {framework}")
    name = name or _named(source)
    path = Path(f"{name}.py")
    _refuse(name, path)
    if wrong := [text for text in given if not text.partition("=")[2]]:
        raise ValueError(f"--with must be NAME=VALUE; got {wrong[0]!r}")
    from ..judge.proposals import propose  # slow to import
    from ..judge.proposals import words as reasons

    values = {one: value for one, _, value in (text.partition("=") for text in given)}
    with Console(stderr=True).status(words.PROPOSING):
        proposal = propose(source, path.name, component, FRAMEWORKS.get(framework or "", ""), values)
    write_text(path, proposal.text)
    click.echo(words.wrote(path, f"{source.partition(':')[2]} as {proposal.component}"))
    for decision in proposal.decisions:
        if not decision.is_open:
            click.echo(printable(str(decision), 300))
    tried = [one.name for one in proposal.decisions if one.kind == "config" and one.why.startswith((reasons.MATCHES, reasons.NEAREST))]
    if tried:
        click.echo(words.chosen_by_trials(path, tried))
    whole = words.whole_model(proposal.family)
    if proposal.left:
        click.echo(words.open_questions(path))
        for decision in proposal.left:
            click.echo(printable(str(decision), 300))
        click.echo(words.then_check(path, whole))
        return 0
    code = _check(str(path), proposal.component) if check else 0
    if code == 0:  # otherwise the summary names the next command
        click.echo(words.then_check(path, whole))
    elif whole:
        click.echo(whole)
    return code


def _named(source: str) -> str:
    """Returns the default name of the port of FILE:CLASS: my_model_port for MyModel."""
    name = source.rpartition(":")[2].removesuffix(".py")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().strip("_") + "_port"


def _refuse(name: str, path: Path) -> None:
    """Raises ValueError on an invalid name, an installed module, or an existing file."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"NAME must be a Python identifier, such as my_port; got {name!r}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} already exists; remove it or choose another name")
    found = importlib.util.find_spec(name)
    if found is not None and found.origin is not None:
        raise ValueError(f"NAME must not be an installed module; got {name!r}")


def _write(kind: str, path: Path) -> None:
    text = (TEMPLATES / f"{kind}_port.py").read_text(encoding="utf-8").replace(PLACEHOLDER, path.name)
    interpreter = f"#!{sys.executable}"
    if " " not in interpreter and len(interpreter) < LONGEST_SHEBANG:  # this environment has what the command needs
        text = text.replace(SHEBANG, interpreter)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        if kind == "command":
            temporary.chmod(0o755)


def _check(port: str, component: str = "", like: str = "") -> int:
    """Checks a new port, prints the results and returns the exit code.

    A template runs the core cases in float32; a port of one component runs every case in every
    dtype.
    """
    console = Console(stderr=True)
    with console.status(words.CHECKING):
        if like:
            cases = [case for case in until_the_end(cases_for((), Selection(like=like, dtypes=("float32",)))) if case.core]
        else:
            cases = [case for case in all_cases() if (case.component == component if component else case.core)]
        results = runner.run(cases, [port], DTYPES if component else ["float32"])
    if any(result.status == Status.MISSING for result in results):
        click.echo(words.not_checked(results[0].message))
        return Missing.exit_code
    summary = Summary([result for result in results if result.status != Status.NOT_COVERED])
    matrix.render(Console(), summary, options=like_words(like))
    for result in results:
        if result.status == Status.NOT_STARTED:
            click.echo(result.message)
    return 0 if summary.conforms else 1
