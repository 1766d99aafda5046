"""The commonest alterations of a function: of its arguments, and of its result."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["bound", "on_arguments", "on_call", "on_result"]


def bound(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """All arguments of a call by name, defaults among them."""
    given = inspect.signature(original).bind(*args, **options)
    given.apply_defaults()
    return dict(given.arguments)


def on_call(change: Callable[..., Mapping[str, Any]]) -> Callable:
    """The function with other arguments: those that `change` returns by name, given all of them, defaults among them, by name."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = inspect.signature(original).bind(*args, **options)
        given.apply_defaults()
        given.arguments |= change(**given.arguments)
        return original(*given.args, **given.kwargs)

    return altered


def on_arguments(**changes: Any) -> Callable:
    """The function with these arguments: each is a value, or a function of the argument that is given."""
    return on_call(lambda **given: {name: change(given[name]) if callable(change) else change for name, change in changes.items()})


def on_result(change: Callable[[Any], Any]) -> Callable:
    """The function whose result is changed."""
    return lambda original, *args, **options: change(original(*args, **options))
