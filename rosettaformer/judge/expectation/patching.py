"""Replaces functions of the reference: the only way to do so.

The functions of `reference_numpy` call their siblings through modules, so that each of them can be replaced from outside. An altered
function takes the function that it replaces first, then that function's arguments. A function replaced twice is wrapped twice: the last
replacement is called first. From the inside out these are orders of the arithmetic (`orders.order`), alterations in their order
(`alteration.injected`), the paths that a run follows (`paths.Paths.followed`), and the choices of a search (`choices.chosen_by`).
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

Replaces = Mapping[str, Callable]  # `module.function` of reference_numpy, or `module.Class.method` -> the altered function


@contextlib.contextmanager
def patched(replaces: Replaces) -> Iterator[None]:
    """Puts these altered functions into the reference. Each shows the signature of the function that it replaces."""
    with contextlib.ExitStack() as stack:
        for name, altered in replaces.items():
            owner, attribute = _owner(name)
            original = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, _instead(altered, original, isinstance(owner, type)))
        yield


def within(replaces: Replaces) -> Callable:
    """Returns the altered function that runs the function it replaces with these other functions in the reference."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        with patched(replaces):
            return original(*args, **options)

    return altered


def _owner(name: str) -> tuple[Any, str]:
    """Returns the module or class that holds a function, and the function's name there."""
    path, _, attribute = name.rpartition(".")
    module, _, last = path.rpartition(".")
    if last.lstrip("_")[:1].isupper():
        return getattr(module_of(module), last), attribute
    return module_of(path), attribute


def _instead(altered: Callable, original: Callable, method: bool) -> Callable:
    bound = functools.partial(altered, original)
    # a class binds functions to its objects, and no other callables
    call = (lambda *args, **options: bound(*args, **options)) if method else bound
    return functools.update_wrapper(call, original)


def module_of(name: str) -> ModuleType:
    """Returns the module of that name in `reference_numpy`; a dotted name is a full module path."""
    return importlib.import_module(name if "." in name else f"reference_numpy.{name}")
