"""Caches expectations for several ports, for a diagnosis after a check, and for tests."""

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case
from ..stored import Stored
from . import tolerance

LARGE = 1 << 24  # bytes of outputs above which a case is not cached


class Store:
    """A cache of `tolerance.expect`, except for results of more than `LARGE` bytes.

    Several threads may use it; one computes at a time. computed: the number of cache misses.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tolerance.Expectation]] = {}
        self._lock = threading.Lock()
        self.computed = 0

    def expect(self, case: Case) -> dict[str, tolerance.Expectation]:
        """Returns the expectations of a case cast to its dtype; do not modify them."""
        key = digest(case)
        with self._lock:
            if key in self._held:
                return self._held[key]
            found = tolerance.expect(case)
            self.computed += 1
            if sum(one.reference.nbytes for one in found.values()) <= LARGE:
                self._held[key] = found
            return found


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
