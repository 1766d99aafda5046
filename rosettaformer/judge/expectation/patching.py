"""Replaces functions of the reference; nothing else does.

The functions of `reference_numpy` call each other through modules, so that each can be replaced
from outside. An altered function takes the original function first, then its arguments. A function
replaced twice is wrapped twice, and the last replacement is called first. From the inside out the
wrappers are summation orders (`orders.order`), alterations (`alteration.injected`), the paths of a
run (`paths.Paths.followed`), and the choices of a search (`choices.chosen_by`).
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

Replaces = Mapping[str, Callable]  # `module.function` of reference_numpy, or `module.Class.method` -> the altered function


@contextlib.contextmanager
def patched(replaces: Replaces) -> Iterator[None]:
    """Replaces functions of the reference with altered ones, which keep the original signatures."""
    with contextlib.ExitStack() as stack:
        for name, altered in replaces.items():
            owner, attribute = _owner(name)
            original = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, _instead(altered, original, isinstance(owner, type)))
        yield


def within(replaces: Replaces) -> Callable:
    """Returns an altered function that calls the original with these other functions replaced."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        with patched(replaces):
            return original(*args, **options)

    return altered


def signature(function: Callable) -> inspect.Signature:
    """Returns the signature of a function, replaced or not; it is computed once."""
    own = inspect.unwrap(function, stop=lambda one: hasattr(one, "__signature__"))
    return getattr(own, "__signature__", None) or _signature(own)


_signature = functools.cache(inspect.signature)


def _owner(name: str) -> tuple[Any, str]:
    """Returns the module or class of a function, and its name there."""
    path, _, attribute = name.rpartition(".")
    module, _, last = path.rpartition(".")
    if last.lstrip("_")[:1].isupper():
        return getattr(module_of(module), last), attribute
    return module_of(path), attribute


def _instead(altered: Callable, original: Callable, method: bool) -> Callable:
    bound = functools.partial(altered, original)
    # classes bind only plain functions to their objects
    call = (lambda *args, **options: bound(*args, **options)) if method else bound
    return functools.update_wrapper(call, original)


def module_of(name: str) -> ModuleType:
    """Returns a module of `reference_numpy`, or by a full dotted path."""
    return importlib.import_module(name if "." in name else f"reference_numpy.{name}")
