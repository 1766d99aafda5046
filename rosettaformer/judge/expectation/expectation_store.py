"""Caches expectations for several ports, for a diagnosis after a check, for later runs and for
tests.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import reference_numpy

from ...common import atomic, compile_cache
from ..case import Case, numpy_dtype
from ..stored import Stored
from . import tolerance

LARGE = 1 << 24  # bytes of outputs above which a case is not cached
SOURCES = (Path(reference_numpy.__file__).parent, Path(__file__).parents[1])  # code that expectations depend on


class Store:
    """A cache of `tolerance.expect`, except for results of more than `LARGE` bytes.

    Several threads may use it; one computes at a time. folder: also keeps them there. computed: the number of cache misses.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._held: dict[str, tolerance.Expectations] = {}
        self._lock = threading.Lock()
        self._folder = folder
        self.computed = 0

    def expect(self, case: Case) -> tolerance.Expectations:
        """Returns the expectations of a case cast to its dtype; do not modify them."""
        key = digest(case)
        with self._lock:
            if key in self._held:
                return self._held[key]
            path = self._folder / f"{key}.npz" if self._folder else None
            found = _read(path) if path else None
            if found is None:
                found = tolerance.expect(case)
                self.computed += 1
                if path and _size(found) <= LARGE:
                    _write(path, found)
            if _size(found) <= LARGE:
                self._held[key] = found
            return found


def shared() -> Store:
    """A store that keeps expectations in the user's cache, by the code that computes them; none if caching
    is off.
    """
    place = compile_cache.folder()
    return Store(place / "expectations" / code() if place else None)


@functools.cache
def code() -> str:
    """Identifies the code that computes expectations."""
    found = hashlib.sha256(np.__version__.encode())
    for path in sorted(path for folder in SOURCES for path in folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _size(found: tolerance.Expectations) -> int:
    return sum(one.reference.nbytes for one in found.values())


def _read(path: Path) -> tolerance.Expectations | None:
    """The expectations in a file; None if there is no such file or it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile), np.load(path) as arrays:
        about = json.loads(str(arrays["about"]))
        return {
            name: tolerance.Expectation(reference=arrays[f"{place}"], **fields | {"dtype": numpy_dtype(fields["dtype"])})
            for place, (name, fields) in enumerate(about)
        }
    return None


def _write(path: Path, found: tolerance.Expectations) -> None:
    fields = [field.name for field in dataclasses.fields(tolerance.Expectation) if field.name != "reference"]
    about = [(name, {field: getattr(one, field) for field in fields} | {"dtype": one.dtype.name}) for name, one in found.items()]
    arrays: dict[str, Any] = {f"{place}": one.reference for place, one in enumerate(found.values())}
    with contextlib.suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, about=json.dumps(about), **arrays)


def digest(case: Case) -> str:
    """Returns the SHA-256 of everything that an expectation depends on."""
    found = hashlib.sha256(repr(_asked(case)).encode())
    stored = case.parameters.digest if isinstance(case.parameters, Stored) else ""
    found.update(stored.encode())
    for kind in (case.inputs, {} if stored else case.parameters):
        for name, value in sorted(_flat(kind), key=lambda item: item[0]):
            array = np.asarray(value)
            found.update(repr((name, type(value).__name__, array.dtype.name, array.shape)).encode())
            found.update(array.tobytes() if array.dtype != object else repr(value).encode())
        found.update(b"|")
    return found.hexdigest()


def _asked(case: Case) -> tuple[Any, ...]:
    part = (case.compared, case.outputs) if case.compared or case.outputs else ()
    return case.component, case.config.to_dict(), case.dtype, case.device, *part


def _flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the values with their names, and the items of tuples with their indices."""
    nested = ((f"{name}.{place}", item) for name, value in values.items() if isinstance(value, tuple) for place, item in enumerate(value))
    return [*((name, value) for name, value in values.items() if not isinstance(value, tuple)), *nested]
