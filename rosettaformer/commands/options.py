"""What commands share: options and their groups, a folder's model and its options, suggestions for unknown words, missing packages."""

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
MOST_DEVICES = 64  # of a mesh that a port is judged on: each may be a process
BATCH_SIZE = click.IntRange(1, 4096)
OUT = click.Path(path_type=Path, dir_okay=False)  # a file that is written
IN = click.Path(path_type=Path, exists=True)


class Missing(click.ClickException):
    """A framework or a package that a command needs is not installed."""

    exit_code = 3


class Group(click.Group):
    """A group of commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-"):
            _refuse(ctx.fail, "command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


WORDS = "rosettaformer.words"  # the words of a Grouped command in its context, with which it is started in other processes


class Grouped(click.Command):
    """A command whose help shows its options under the titles of their sections, and of some sections takes one option alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        left = super().parse_args(ctx, args)
        given: dict[str, list[str]] = {}
        for option in self.get_params(ctx):
            if hasattr(option, "one") and ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
                given.setdefault(option.one, []).append(option.opts[0])
        if several := next((names for names in given.values() if len(names) > 1), []):
            raise click.UsageError(f"{' and '.join(several)} exclude each other; give one")
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        for option in sorted(options, key=lambda option: not hasattr(option, "section")):
            if record := option.get_help_record(ctx):
                rows.setdefault(getattr(option, "section", "Other options"), []).append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str, *options: Callable[[Any], Any], one: bool = False) -> Callable[[Any], Any]:
    """Puts the options under that title in the help of a Grouped command. one: they exclude each other."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            before = len(getattr(function, "__click_params__", ()))
            function = option(function)
            for parameter in function.__click_params__[before:]:
                parameter.section = f"{title} (one of these)" if one else title
                if one:
                    parameter.one = title
        return function

    return decorate


class Choice(click.Choice):
    """The type of an option with a few allowed words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse(lambda text: self.fail(text, param, ctx), "it", value, self.choices)
        return super().convert(value, param, ctx)


def _refuse(fail: Callable[[str], Any], what: str, value: str, words: Any) -> None:
    try:
        known(what, [value], words)
    except ValueError as error:
        fail(str(error))


def listed(name: str, help_text: str, words: Callable[[], Iterable[str]] = tuple) -> Callable[[Any], Any]:
    """Declares an option with several values: given several times, or separated by commas. words: what a shell completes."""

    def split(ctx: click.Context, option: click.Parameter, values: Names) -> Names:
        return tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))

    text = help_text + " Repeat it, or separate by commas."
    complete = completion.words(words)
    return click.option(f"--{name}", f"{name}s", multiple=True, callback=split, help=text, shell_complete=complete)


ignore_option = click.option(
    "--ignore", multiple=True, metavar="NAME", help="A head, a tensor or an entry of config.json to take for absent; repeatable."
)


recipe_option = click.option(
    "--recipe",
    multiple=True,
    metavar="FIELD=VALUE",
    help=f"A field of the training recipe, such as warmup=400; repeatable: {', '.join(field.name for field in fields(Recipe))}.",
)


text_option = click.option(
    "--text", "texts", multiple=True, metavar="TEXT",
    help="What the model reads; given twice, a pair: two segments of an encoder-only model, source and target of an encoder-decoder.",
)  # fmt: skip


def one_or_two(texts: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the text and the second one of a pair; None for each that is not given. Raises ValueError if there are more."""
    if len(texts) > 2:
        raise ValueError(f"--text is given once, or twice for a pair; got {len(texts)}")
    return (*texts, None, None)[0], (*texts, None, None)[1]


class _Like(click.Option):
    """--like, whose help lists the families; their modules are imported only where the help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from ..files.checkpoints.hugging_face import new

        self.help = f"Judge the whole model by its logits: of a new random folder of a family, or of a folder. {families(new.names())}."
        return super().get_help_record(ctx)


def families(names: Iterable[str]) -> str:
    """Returns the sentence of a help that lists the families."""
    return f"FAMILY is {' or '.join(', '.join(names).rsplit(', ', 1))}"


def _meshes(ctx: click.Context, option: click.Parameter, values: Names) -> tuple[Mesh, ...]:
    meshes = tuple(dict.fromkeys(map(Mesh.parse, values)))
    if large := [mesh for mesh in meshes if mesh.devices > MOST_DEVICES]:
        raise ValueError(f"a port is judged on at most {MOST_DEVICES} devices; got {large[0].devices} of the mesh {large[0]}")
    return meshes


mesh_option = click.option(
    "--mesh", "meshes", multiple=True, callback=_meshes, metavar="data=N,model=N",
    help="Several devices, as a mesh: parts of the batch, parts of every layer; data=N,replicate keeps parameters whole. Repeatable.",
)  # fmt: skip


like_option = click.option(
    "--like", metavar="FAMILY|DIR", default="", cls=_Like, shell_complete=completion.words(completion.families, "dir")
)
checkpoint_option = click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Judge the whole model on these weights: a canonical file, or a folder.",
)
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random weights of --like FAMILY.")
memory_option = click.option(
    "--memory", type=click.FloatRange(min=0.1), metavar="GB",
    help="For a model's cases, in GB, the port's process included. [default: 1.3, and 12 bytes a parameter]",
)  # fmt: skip


def until_the_end(context: AbstractContextManager[Any]) -> Any:
    """Enters the context, which is left when the command ends, and returns what it gives."""
    return click.get_current_context().with_resource(context)


def announced(cases: list[Any]) -> list[Any]:
    """Returns the cases; says which of them are left out for want of memory."""
    from ..judge.suite.fitting import left_out

    if text := left_out(cases):
        click.echo(text, err=True)
    return cases


def like_words(
    like: str, seed: int = 0, meshes: Sequence[Mesh] = (), memory: float | None = None, dtypes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the words that give --like, --seed, --memory, --mesh and, of dtypes that are not asked without it, --dtype."""
    given = {"--like": like, "--seed": seed, "--memory": memory}
    words = tuple(word for option, value in given.items() if value for word in (option, str(value)))
    further = ("--dtype", ",".join(dtypes)) * bool(like and {*dtypes} - {"float32"})
    return (*words, *further, *(word for mesh in meshes for word in ("--mesh", str(mesh))))


def require_picture(path: Path | None, option: str) -> None:
    """Raises ValueError if the file's suffix names no format, and MissingBackend if pictures cannot be drawn."""
    if path and path.suffix not in SUFFIXES:
        raise ValueError(f"the picture must be a file {', '.join(SUFFIXES)}; got {path}")
    if path:
        require(option, {"report": ("matplotlib",)})


def exit_code(statuses: Collection[str], good: str, named: bool) -> int:
    """Returns 1 if one is neither good nor missing; Missing's exit code if a named one is missing, or none is good."""
    if set(statuses) - {good, "missing"}:
        return 1
    return Missing.exit_code if "missing" in statuses and (named or good not in statuses) else 0


def wide_console(width: int, **options: Any) -> Console:
    """Returns standard output, wide enough outside a terminal that no table is cut."""
    console = Console(**options)
    if not console.is_terminal:
        console.width = width
    return console


MODEL_OPTIONS = ("backend", "dtype", "device", "ignore", "mesh")  # the options of a command that `open_both` takes

_DTYPES = ("float64", "float32", "bfloat16", "float16", "int8")

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


def backend_option(device: str | None = None, **attributes: Any) -> Callable[[Any], Any]:
    """--backend NAME or NAME:DEVICE, which gives a command its backend and its device. device: by default."""

    def split(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
        name, _, said = (value or "").partition(":")
        ctx.params["device"] = said or device
        return None if value is None else Choice(list(BACKENDS)).convert(name, option, ctx)

    complete = completion.words(lambda: BACKENDS)
    return click.option("--backend", callback=split, metavar="NAME[:DEVICE]", shell_complete=complete, **attributes)


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--backend with its device, --dtype and --ignore."""
    return section(
        "Model",
        backend_option("cpu", default="torch", show_default=True, help="Backend that computes, on the CPU or such as torch:cuda."),
        click.option("--dtype", type=Choice(list(_DTYPES)), default="float32", show_default=True, help="Parameters are rounded to it."),
        ignore_option,
    )(function)


def require_model(folder: Path, *backend: str) -> None:
    """Raises MissingBackend if what reads the tokenizer of a folder, or the backend, is not installed."""
    require(f"the model of {folder}", {"inference": ("transformers",), **needs_of(*backend)})


def open_both(folder: Path, use: str, backend: str, dtype: str, device: str, mesh: Any = None, **options: Any) -> tuple[Any, Any]:
    """Returns the folder (`inference.folder.open_folder`) and its model (`inference.models.open_model`).

    Raises MissingBackend if a package or the backend is missing.
    """
    require_model(folder, backend)
    from ..use.inference.folder import open_folder
    from ..use.inference.models import open_model

    found = open_folder(folder, use, **options)
    return found, open_model(found.checkpoint, backend, dtype, device, mesh)
