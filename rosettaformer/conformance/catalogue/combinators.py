"""The commonest alterations of a function: of its arguments, and of its result."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def bound(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """The arguments of a call by name, including defaults."""
    given = inspect.signature(original).bind(*args, **options)
    given.apply_defaults()
    return dict(given.arguments)


def on_call(change: Callable[..., Mapping[str, Any]]) -> Callable:
    """Changes arguments: `change` takes all by name, including defaults, and returns the new ones by name."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = inspect.signature(original).bind(*args, **options)
        given.apply_defaults()
        given.arguments |= change(**given.arguments)
        return original(*given.args, **given.kwargs)

    return altered


def on_arguments(**changes: Any) -> Callable:
    """Replaces these arguments, each by a value or by a function of the argument that is given."""
    return on_call(lambda **given: {name: change(given[name]) if callable(change) else change for name, change in changes.items()})


def on_result(change: Callable[[Any], Any]) -> Callable:
    """Changes the result."""
    return lambda original, *args, **options: change(original(*args, **options))
