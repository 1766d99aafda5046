"""The commonest alterations of a function: of what it is given, and of what it returns."""

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["on_arguments", "on_result"]


def on_arguments(**changes: Any) -> Callable:
    """The function with other arguments, by name: a value, or a function of the argument that was given or is the default."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = inspect.signature(original).bind(*args, **options)
        given.apply_defaults()
        given.arguments |= {name: change(given.arguments[name]) if callable(change) else change for name, change in changes.items()}
        return original(*given.args, **given.kwargs)

    return altered


def on_result(change: Callable[[Any], Any]) -> Callable:
    """The function whose result is changed."""
    return lambda original, *args, **options: change(original(*args, **options))
