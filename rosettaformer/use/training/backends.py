"""The backends for training: each has a `Trainer` with the same interface, imported on demand."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from reference_numpy.strategy import Strategy
from reference_numpy.suggestions import known

from ...common.backends import BACKENDS, imported
from ...common.meshes.together import Group


class Trainer(Protocol):
    """A model in training: its parameters, its optimizer, the training step, and decoding.

    On a mesh, every process of the group calls the same methods with the same whole batches.
    tensors: yields the state's arrays by name; every process must consume all of them.
    """

    steps: int

    @property
    def group(self) -> Group: ...

    def train_step(self, source: np.ndarray, target: np.ndarray, keep: Mapping[str, Any] | None = None) -> Any: ...
    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...
    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...
    def loss(self, source: np.ndarray, target: np.ndarray) -> tuple[float, int]: ...
    def state(self) -> dict[str, np.ndarray]: ...
    def tensors(self) -> Iterator[tuple[str, np.ndarray]]: ...
    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None: ...


def parameters_of(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Extracts the parameters from `Trainer.state`, by canonical name."""
    prefix = "parameters."
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def trainer(backend: str) -> Callable[..., Trainer]:
    """Returns a backend's Trainer. Raises MissingBackend if its framework is missing or broken."""
    known("backend", [backend], BACKENDS)
    return imported(backend, f"{BACKENDS[backend]}.training").Trainer
