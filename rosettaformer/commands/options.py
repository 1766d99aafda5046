"""Options, help sections, and checks that several commands share."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ..common.backends import BACKENDS, needs_of
from ..common.extras import require
from ..common.pictures import SUFFIXES
from . import completion

Names = tuple[str, ...]
MOST_DEVICES = 64  # maximum size of a mesh; each device may need a process
BATCH_SIZE = click.IntRange(1, 4096)
OUT = click.Path(path_type=Path, dir_okay=False)  # an output file
IN = click.Path(path_type=Path, exists=True)


class Missing(click.ClickException):
    """A required framework or package is not installed."""

    exit_code = 3


class Group(click.Group):
    """A group of commands that suggests the nearest name for an unknown one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-"):
            _refuse(ctx.fail, "command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


WORDS = "rosettaformer.words"  # key in the context: the arguments of a Grouped command, for the processes that it starts


class Grouped(click.Command):
    """A command whose help lists its options by section; some sections accept only one option.

    Options without a section join the last one.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        left = super().parse_args(ctx, args)
        given: dict[str, list[str]] = {}
        for option in self.get_params(ctx):
            if hasattr(option, "one") and ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
                given.setdefault(option.one, []).append(option.opts[0])
        if several := next((names for names in given.values() if len(names) > 1), []):
            raise click.UsageError(f"{' and '.join(several)} cannot be used together")
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        for option in sorted(options, key=lambda option: not hasattr(option, "section")):
            if record := option.get_help_record(ctx):
                title = getattr(option, "section", next(reversed(rows), "Options"))
                rows.setdefault(title, []).append((record[0], _without_range(record[1])))
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _without_range(text: str) -> str:
    """Returns the help of an option without the range of its values, which errors report."""
    return re.sub(r"(; )?([\d.]+<=?)?\bx[<>]=?[\d.]+", "", text).replace("  []", "").replace("[; ", "[").replace(".  [", ". [")


def section(title: str, *options: Callable[[Any], Any], one: bool = False) -> Callable[[Any], Any]:
    """Lists the options under this title in the help of a Grouped command.

    one: the options are mutually exclusive.
    """

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            before = len(getattr(function, "__click_params__", ()))
            function = option(function)
            for parameter in function.__click_params__[before:]:
                parameter.section = f"{title} (choose one)" if one else title
                if one:
                    parameter.one = title
        return function

    return decorate


def examples(*lines: str) -> str:
    """Returns the epilog of a help: commands to copy, one per line."""
    return "\b\n" + "\n".join(["Examples:", *(f"  rosettaformer {line}" for line in lines)])


class Choice(click.Choice):
    """The type of an option with a fixed set of values."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse(lambda text: self.fail(text, param, ctx), "it", value, self.choices)
        return super().convert(value, param, ctx)


def _refuse(fail: Callable[[str], Any], what: str, value: str, words: Any) -> None:
    try:
        known(what, [value], words)
    except ValueError as error:
        fail(str(error))


def listed(name: str, help_text: str, words: Callable[[], Iterable[str]] = tuple) -> Callable[[Any], Any]:
    """Declares a repeatable option that also takes comma-separated values.

    words: the values that a shell completes.
    """

    def split(ctx: click.Context, option: click.Parameter, values: Names) -> Names:
        return tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))

    complete = completion.words(words)
    return click.option(
        f"--{name}", f"{name}s", multiple=True, callback=split, metavar="NAME[,NAME]", help=help_text, shell_complete=complete
    )


ignore_option = click.option(
    "--ignore", multiple=True, metavar="NAME", help="Head, tensor or config.json entry to treat as absent; repeatable."
)


recipe_option = click.option(
    "--recipe",
    multiple=True,
    metavar="FIELD=VALUE",
    help=f"Field of the training recipe, such as warmup=400; repeatable: {', '.join(field.name for field in fields(Recipe))}.",
)


text_option = click.option(
    "--text", "texts", multiple=True, metavar="TEXT",
    help="Input text. Given twice: two segments (encoder-only), or source and target (encoder-decoder).",
)  # fmt: skip


def one_or_two(texts: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the text and its partner, each None if absent. Raises ValueError on more than two."""
    if len(texts) > 2:
        raise ValueError(f"--text can be given once, or twice for a pair; got {len(texts)}")
    return (*texts, None, None)[0], (*texts, None, None)[1]


def seed_of(text: str) -> Any:
    """Declares --seed."""
    return click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help=text)


def seconds(name: str, default: float, text: str, least: float = 0.1) -> Any:
    """Declares a time limit."""
    return click.option(name, type=click.FloatRange(min=least), default=default, show_default=True, metavar="SECONDS", help=text)


def one_of(name: str, metavar: str, values: Iterable[str], default: str, text: str) -> Any:
    """Declares an option with a fixed set of values."""
    return click.option(name, type=Choice([*values]), default=default, show_default=True, metavar=metavar, help=text)


def expression_option(what: str, words: Callable[[], Iterable[str]]) -> Any:
    """Declares -k. what: the things that match. words: the values that a shell completes."""
    text = f"{what} that match EXPR, as in pytest, such as 'softmax and not vjp'."
    return click.option("-k", "expression", metavar="EXPR", shell_complete=completion.words(words), help=text)


class _Like(click.Option):
    """--like, whose help lists the families; their modules are imported only to show it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from ..files.checkpoints.hugging_face import new

        self.help = f"Logits of a whole model: a random checkpoint of FAMILY, or the one in DIR. {families(new.names())}."
        return super().get_help_record(ctx)


def families(names: Iterable[str]) -> str:
    """Returns the list of families for a help text."""
    return f"FAMILY is {' or '.join(', '.join(names).rsplit(', ', 1))}"


def _meshes(ctx: click.Context, option: click.Parameter, values: Names) -> tuple[Mesh, ...]:
    meshes = tuple(dict.fromkeys(map(Mesh.parse, values)))
    if large := [mesh for mesh in meshes if mesh.devices > MOST_DEVICES]:
        raise ValueError(f"--mesh must have at most {MOST_DEVICES} devices; got {large[0].devices} ({large[0]})")
    return meshes


mesh_option = click.option(
    "--mesh", "meshes", multiple=True, callback=_meshes, metavar="data=N,model=N",
    help="Device mesh; data=N,replicate keeps parameters whole; repeatable.",
)  # fmt: skip


like_option = click.option(
    "--like", metavar="FAMILY|DIR", default="", cls=_Like, shell_complete=completion.words(completion.families, "dir")
)
checkpoint_option = click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Whole model with these weights: a canonical file or Hugging Face checkpoint.",
)
seed_option = seed_of("Seed for the random weights.")
memory_option = click.option(
    "--memory", type=click.FloatRange(min=0.1), metavar="GB",
    help="Memory limit for whole models. [default: 1.3 + 12 bytes per parameter]",
)  # fmt: skip


def until_the_end(context: AbstractContextManager[Any]) -> Any:
    """Enters a context manager for the rest of the command and returns its value."""
    return click.get_current_context().with_resource(context)


def announced(cases: list[Any]) -> list[Any]:
    """Returns the cases, after printing which cases are skipped for lack of memory."""
    from ..judge.suite.fitting import left_out

    if text := left_out(cases):
        click.echo(text, err=True)
    return cases


def like_words(
    like: str, seed: int = 0, meshes: Sequence[Mesh] = (), memory: float | None = None, dtypes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the arguments for --like, --seed, --memory, --mesh and any non-default --dtype."""
    given = {"--like": like, "--seed": seed, "--memory": memory}
    words = tuple(word for option, value in given.items() if value for word in (option, str(value)))
    further = ("--dtype", ",".join(dtypes)) * bool(like and {*dtypes} - {"float32"})
    return (*words, *further, *(word for mesh in meshes for word in ("--mesh", str(mesh))))


def require_picture(path: Path | None, option: str) -> None:
    """Raises ValueError on an unknown file suffix, and MissingBackend without matplotlib."""
    if path and path.suffix not in SUFFIXES:
        raise ValueError(f"the picture must be a {', '.join(SUFFIXES)} file; got {path}")
    if path:
        require(option, {"report": ("matplotlib",)})


def exit_code(statuses: Collection[str], good: str, named: bool) -> int:
    """Returns 1 if a backend failed, 3 if a named one or every one is missing, otherwise 0."""
    if set(statuses) - {good, "missing"}:
        return 1
    return Missing.exit_code if "missing" in statuses and (named or good not in statuses) else 0


def wide_console(width: int, **options: Any) -> Console:
    """Returns a console for standard output; outside a terminal it is `width` columns wide."""
    console = Console(**options)
    if not console.is_terminal:
        console.width = width
    return console


MODEL_OPTIONS = ("backend", "dtype", "device", "ignore", "mesh")  # the options that `open_both` takes

_DTYPES = ("float64", "float32", "bfloat16", "float16", "int8")
_ROUNDED = f"Dtype of the parameters: {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}."

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


def backend_option(device: str | None = None, **attributes: Any) -> Callable[[Any], Any]:
    """Declares --backend NAME[:DEVICE], which sets `backend` and `device`. device: the default."""

    def split(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
        name, _, said = (value or "").partition(":")
        ctx.params["device"] = said or device
        return None if value is None else Choice(list(BACKENDS)).convert(name, option, ctx)

    complete = completion.words(lambda: BACKENDS)
    return click.option("--backend", callback=split, metavar="NAME[:DEVICE]", shell_complete=complete, **attributes)


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --backend, --dtype and --ignore."""
    return section(
        "Model",
        backend_option("cpu", default="torch", show_default=True, help="Backend to run on, such as jax or torch:cuda."),
        one_of("--dtype", "DTYPE", _DTYPES, "float32", _ROUNDED),
        ignore_option,
    )(function)


def require_model(folder: Path, *backend: str) -> None:
    """Raises MissingBackend if transformers or the backend is not installed."""
    require(f"the model of {folder}", {"inference": ("transformers",), **needs_of(*backend)})


def open_both(folder: Path, use: str, backend: str, dtype: str, device: str, mesh: Any = None, **options: Any) -> tuple[Any, Any]:
    """Returns the opened folder and its model (see `open_folder` and `open_model`).

    Raises MissingBackend if a package or the backend is missing.
    """
    require_model(folder, backend)
    from ..use.inference.folder import open_folder
    from ..use.inference.models import open_model

    found = open_folder(folder, use, **options)
    return found, open_model(found.checkpoint, backend, dtype, device, mesh)
