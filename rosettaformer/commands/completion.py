"""Shell completion for options and arguments with known values, collected on demand."""

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def words(collect: Callable[[], Iterable[str]], also: str = "") -> Complete:
    """Returns a completer for comma-separated words. also: "file" or "dir" to complete paths too."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        before, comma, last = begun.rpartition(",")
        found = [CompletionItem(f"{before}{comma}{word}") for word in collect() if word.startswith(last)]
        return found + ([CompletionItem(begun, type=also)] if also else [])

    return complete


def families() -> Iterable[str]:
    from ..files.checkpoints.hugging_face import new

    return new.names()


def components() -> Iterable[str]:
    from ..judge.expectation.components import ASKED

    return ASKED


def cases() -> Iterable[str]:
    from ..judge.suite import all_cases

    return dict.fromkeys(case.id for case in all_cases(grad=True))


def known_bugs() -> Iterable[str]:
    from ..judge.catalogue import all_defects
    from ..judge.catalogue.sharded import all_faults

    return [*all_defects(), *all_faults()]


def ports() -> Iterable[str]:
    from ..common.backends import PORTS
    from ..judge.ports.port import ENTRY_POINTS

    return [*PORTS, *(point.name for point in entry_points(group=ENTRY_POINTS))]
