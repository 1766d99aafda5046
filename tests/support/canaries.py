"""Canary tests: one for each private framework name that a port uses (`PRIVATE` in its `framework.py`)."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

PACKAGES = {"tf": "tensorflow"}  # name in the ports -> package


def resolved(name: str) -> Any:
    """Returns the object with a dotted name."""
    first, *rest = name.split(".")
    found: Any = importlib.import_module(PACKAGES.get(first, first))
    for part in rest:
        if not hasattr(found, part) and isinstance(found, ModuleType):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def sing(name: str, private: Mapping[str, str], check: Callable[[], None]) -> None:
    """Runs the canary of a name. Its failure names the package, its release, the private name, and the feature lost without it."""
    package = PACKAGES.get(name.partition(".")[0], name.partition(".")[0])
    try:
        check()
    except Exception as error:
        pytest.fail(f"{package} {version(package)} removed or changed {name}; without it {private[name]}: {error!r}")


def overridden(port: ModuleType) -> Iterator[tuple[str, str]]:
    """Yields (module, class, name) for each private name of a foreign base class that a class of the port overrides."""
    for found in pkgutil.walk_packages(port.__path__, f"{port.__name__}."):
        module = importlib.import_module(found.name)
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                others = [base for base in kind.__mro__ if base.__module__.partition(".")[0] != port.__name__]
                own = [name for name, value in vars(kind).items() if getattr(value, "__module__", "") == module.__name__]
                names = [name for name in own if name.startswith("_") and not name.endswith("__")]
                yield from ((found.name, f"{kind.__name__}.{name}") for name in names if any(name in vars(base) for base in others))
