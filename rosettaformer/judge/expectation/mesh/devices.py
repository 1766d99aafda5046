"""The devices of a mesh, as threads in lockstep, and their exchange of values."""

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_numpy.sharding import Mesh, chunks

_HERE = threading.local()


class Stopped(Exception):
    """Another device failed."""


class _Exchange:
    """Exchanges one value per device among all devices; the last one to arrive wakes the others."""

    def __init__(self, count: int) -> None:
        self._count, self._arrived, self.stopped = count, 0, False
        self._values: list[Any] = [None] * count
        self._guard, self._waiting = threading.Lock(), [threading.Lock() for _ in range(count)]
        for lock in self._waiting:
            lock.acquire()

    def all(self, index: int, value: Any) -> list[Any]:
        """Returns the values of all devices. Raises Stopped if a device failed."""
        with self._guard:
            if self.stopped:
                raise Stopped
            values = self._values
            values[index] = value
            self._arrived += 1
            last = self._arrived == self._count
            if last:
                self._values, self._arrived = [None] * self._count, 0
        if last:
            self._wake(index)
        else:
            self._waiting[index].acquire()
        if self.stopped:
            raise Stopped
        return values

    def stop(self) -> None:
        """Ends every wait permanently."""
        with self._guard:
            self.stopped = True
            self._wake(-1)

    def _wake(self, index: int) -> None:
        for other, lock in enumerate(self._waiting):
            if other != index and lock.locked():
                lock.release()


@dataclass(frozen=True)
class Device:
    """One device of a mesh.

    row, column: its position in the mesh. names: the names of parameters by the ids of their
    arrays. whole: the tables that `model` does not split: "embeddings", "logits". operations:
    everything beyond the arithmetic. notes: private notes of its thread.
    """

    mesh: Mesh
    row: int
    column: int
    names: Mapping[int, str]
    exchange: _Exchange = field(repr=False)
    operations: Any = field(default=None, repr=False)
    whole: Collection[str] = ()
    notes: dict[str, Any] = field(default_factory=dict, repr=False)

    def all(self, axis: str, value: Any) -> list[Any]:
        """Returns the values of the devices along an axis of the mesh, in order."""
        values = self.exchange.all(self.row * self.mesh.model + self.column, value)
        if axis == "model":
            return values[self.row * self.mesh.model :][: self.mesh.model]
        return values[self.column :: self.mesh.model]

    def sum(self, axis: str, value: Any) -> Any:
        """Returns the sum of the values along an axis of the mesh."""
        return functools.reduce(operator.add, self.all(axis, value))

    def gather(self, axis: str, value: np.ndarray, along: int) -> np.ndarray:
        """Returns the values along an axis of the mesh, concatenated along one of theirs."""
        return np.concatenate(self.all(axis, value), axis=along)

    def index(self, axis: str) -> int:
        """Returns the device's index along an axis of the mesh."""
        return self.row if axis == "data" else self.column

    def part(self, size: int, axis: str = "model") -> slice:
        """Returns the device's part of an axis of this size."""
        return chunks(size, self.mesh.sizes[axis])[self.index(axis)]

    def path(self, array: Any, end: str) -> str:
        """Returns the path of the component with this array as parameter `end`, or "logits"."""
        name = self.names.get(id(array), "")
        return name.removesuffix(end).rstrip(".") if name else "logits"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context in which this thread computes as outside of a run."""
    device, _HERE.device = current(), None
    try:
        yield
    finally:
        _HERE.device = device


def current() -> Device | None:
    """Returns the device of this thread; None outside of a run."""
    return getattr(_HERE, "device", None)


def run(
    mesh: Mesh, names: Mapping[int, str], function: Callable[[Device], Any], operations: Any = None,
    whole: Collection[str] = (),
) -> list[Any]:  # fmt: skip
    """Returns the function's results on all devices. Raises the first device's error."""
    exchange = _Exchange(mesh.devices)
    rest = names, exchange, operations, whole
    devices = [Device(mesh, index // mesh.model, index % mesh.model, *rest) for index in range(mesh.devices)]
    results: list[Any] = [None] * mesh.devices
    errors: list[BaseException] = []

    def work(index: int) -> None:
        _HERE.device = devices[index]
        try:
            with np.errstate(all="ignore"):
                results[index] = function(devices[index])
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            exchange.stop()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(mesh.devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
