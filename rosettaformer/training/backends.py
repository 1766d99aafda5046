"""The four implementations as backends of training: each has a `Trainer` with the same face, imported when it is asked for."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from reference_numpy.strategy import Strategy
from reference_numpy.suggestions import known

from ..conformance.ports.port import PORTS, MissingBackend, unavailable
from ..extras import install

__all__ = ["BACKENDS", "MissingBackend", "Trainer", "parameters_of", "require", "trainer"]

BACKENDS = {"torch": "impl_torch.training", "tf": "impl_tf.training", "jax": "impl_jax.training", "numpy": "reference_numpy.training"}


class Trainer(Protocol):
    """A model in training: its parameters, its optimiser's state, and the step that changes both."""

    steps: int

    def train_step(self, source: np.ndarray, target: np.ndarray, keep: Mapping[str, Any] | None = None) -> Any: ...
    def loss(self, source: np.ndarray, target: np.ndarray) -> tuple[float, int]: ...
    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...
    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]: ...
    def state(self) -> dict[str, np.ndarray]: ...
    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None: ...


def parameters_of(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters by canonical name, of what `Trainer.state` gives."""
    prefix = "parameters."
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def trainer(backend: str) -> Callable[..., Trainer]:
    """The Trainer of a backend. Raises MissingBackend where its framework is missing, with the line that installs it, or broken."""
    known("backend", [backend], BACKENDS)
    # What TensorFlow says of itself on standard error, and that every shape of a batch is a graph of its own, is not news.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        return importlib.import_module(BACKENDS[backend]).Trainer
    except ModuleNotFoundError as error:
        if backend not in PORTS or (error.name or "").startswith(("impl_", "reference_numpy")):
            raise
        raise MissingBackend(f"the backend {backend} needs {error.name}: {PORTS[backend][2]}") from None
    except Exception as error:
        if reason := unavailable(error):
            raise MissingBackend(f"the backend {backend} cannot be used: {reason}") from None
        raise


def require(*packages: str) -> None:
    """Raises MissingBackend, before any work, where one of the packages that training needs is missing."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise MissingBackend(f"training needs {', '.join(missing)}: {install('train')}")
