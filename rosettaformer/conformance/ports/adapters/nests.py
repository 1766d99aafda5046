"""What modules take and give: nests of mappings, tuples and lists."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["leaves", "mapped"]


def leaves(value: Any) -> Iterator[Any]:
    """What a nest of mappings, tuples and lists holds, in order."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nest with every leaf mapped, in the order of `leaves`."""
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(item, function) for item in value])
    return function(value)
