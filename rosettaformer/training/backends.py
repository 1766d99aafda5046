"""The four implementations as training backends: each has a `Trainer` with the same interface, imported on demand."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.strategy import Strategy
from reference_numpy.suggestions import known

from ..backends import BACKENDS, imported, transformer
from ..meshes.together import Group


class Searches(Protocol):
    """A model that answers with token ids and scores as arrays."""

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...
    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...


class Trainer(Searches, Protocol):
    """A model in training: its parameters, its optimiser's state, and the step that changes both.

    On a mesh every process of the group calls the same methods with the same whole batches. tensors: the state's arrays by name, one after
    another; in several processes every one takes all of them.
    """

    steps: int

    @property
    def group(self) -> Group: ...

    def train_step(self, source: np.ndarray, target: np.ndarray, keep: Mapping[str, Any] | None = None) -> Any: ...
    def loss(self, source: np.ndarray, target: np.ndarray) -> tuple[float, int]: ...
    def state(self) -> dict[str, np.ndarray]: ...
    def tensors(self) -> Iterator[tuple[str, np.ndarray]]: ...
    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None: ...


def parameters_of(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Extracts the parameters, by canonical name, from `Trainer.state`."""
    prefix = "parameters."
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def trainer(backend: str) -> Callable[..., Trainer]:
    """Returns the Trainer of a backend. Raises MissingBackend if its framework is broken or missing, with the command that installs it."""
    known("backend", [backend], BACKENDS)
    return imported(backend, f"{BACKENDS[backend]}.training").Trainer


class Int8Searches:
    """The searches of a `Trainer` with int8 projections. Raises ValueError for the NumPy backend, and on any device but the CPU."""

    def __init__(self, backend: str, config: TransformerConfig, parameters: Mapping[str, np.ndarray], device: str = "cpu") -> None:
        if backend == "numpy" or device != "cpu":
            raise ValueError(f"dtype int8 needs backend torch, tf or jax, and device cpu; got backend {backend}, device {device}")
        decoding, self._weights = (imported(backend, f"{BACKENDS[backend]}.{name}") for name in ("decoding", "weights"))
        model = transformer(backend, config, {name: array.astype(np.float32) for name, array in parameters.items()})
        self._searcher = decoding.Searcher(model, "int8")

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        return self._arrays(self._searcher.greedy_search(self._weights.from_numpy(source), strategy))

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        return self._arrays(self._searcher.beam_search(self._weights.from_numpy(source), strategy))

    def _arrays(self, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: self._weights.to_numpy(tensor) for name, tensor in found.items()}
