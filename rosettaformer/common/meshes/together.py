"""Runs an action in several processes, so that a failure in one ends all with its reason."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Group(Protocol):
    """The processes of a run. All of them must call `any` and `barrier`."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def any(self, flag: bool) -> bool: ...
    def barrier(self) -> None: ...


class OneProcess(ValueError):
    """An error in a single process other than the first."""


class Elsewhere(Exception):
    """Raised if another process has failed, which reports the reason."""


def together(group: Group, action: Callable[[], T]) -> T:
    """Returns the action's result; every process of the group must call this at the same point.

    If actions raise ValueError or OSError, the first failing process raises its error, and all
    others raise Elsewhere.
    """
    problem, result = None, None
    try:
        result = action()
    except (ValueError, OSError, Elsewhere) as error:
        problem = error
    if not group.any(problem is not None):
        return result  # type: ignore[return-value]
    first = next(rank for rank in range(group.size) if group.any(rank == group.rank and problem is not None))
    if first != group.rank or problem is None:
        raise Elsewhere(f"the process of rank {first} has failed")
    if first == 0:
        raise problem
    raise OneProcess(f"the process of rank {first}: {problem}") from problem


def led(group: Group, action: Callable[[], T]) -> T | None:
    """Runs the action only in the first process, else returns None. Raises like `together`."""
    return together(group, action if group.rank == 0 else lambda: None)


def decided(group: Group, flag: Any) -> bool:
    """Returns the first process's flag in every process."""
    return group.any(group.rank == 0 and bool(flag))
