"""What the commands have in common: groups and options that name the nearest word where one is unknown, and lists of values."""

from collections.abc import Callable
from typing import Any

import click

from reference_numpy.suggestions import known

__all__ = ["Choice", "Group", "listed"]

Names = tuple[str, ...]


class Group(click.Group):
    """A group of commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-"):
            _refuse(ctx.fail, "command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Choice(click.Choice):
    """The type of an option that takes one of a few words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse(lambda text: self.fail(text, param, ctx), "it", value, self.choices)
        return super().convert(value, param, ctx)


def _refuse(fail: Callable[[str], Any], what: str, value: str, words: Any) -> None:
    try:
        known(what, [value], words)
    except ValueError as error:
        fail(str(error))


def listed(name: str, help_text: str) -> Callable[[Any], Any]:
    """An option that takes several values: given several times, or separated by commas."""

    def split(ctx: click.Context, option: click.Parameter, values: Names) -> Names:
        return tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))

    text = help_text + " Repeat it, or separate by commas."
    return click.option(f"--{name}", f"{name}s", multiple=True, callback=split, help=text)
