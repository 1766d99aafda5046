"""What several processes do at once, so that one that fails ends all and says why."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Group(Protocol):
    """The processes of a run; `any` and `barrier` are for all of them to call."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def any(self, flag: bool) -> bool: ...
    def barrier(self) -> None: ...


class OneProcess(ValueError):
    """What went wrong in one process, which is not the first, and in no other."""


class Elsewhere(Exception):
    """Another process has failed and says why."""


def together(group: Group, action: Callable[[], T]) -> T:
    """Returns the action's result; every process of the group must call this at the same place.

    Where actions raise ValueError or OSError, the first process whose action did raises its error, and the others Elsewhere.
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
    """Returns the result of the action, which only the first process does; None in the others. Raises like `together`."""
    return together(group, action if group.rank == 0 else lambda: None)


def decided(group: Group, flag: Any) -> bool:
    """Whether the first process sets the flag, the same in every process."""
    return group.any(group.rank == 0 and bool(flag))
