"""A trained model's searches in int8 (INT8)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.strategy import Strategy

from ..backends import BACKENDS, imported

__all__ = ["Int8Searches"]


class Int8Searches:
    """The searches of a `Trainer` with int8 projections. Raises ValueError for the NumPy backend, and on any device but the CPU."""

    def __init__(self, backend: str, config: TransformerConfig, parameters: Mapping[str, np.ndarray], device: str = "cpu") -> None:
        if backend == "numpy" or device != "cpu":
            raise ValueError(f"dtype int8 needs backend torch, tf or jax, and device cpu; got backend {backend}, device {device}")
        port, decoding, self._weights = (imported(backend, f"{BACKENDS[backend]}.{name}") for name in ("port", "decoding", "weights"))
        model = port.components["transformer"](config, np.dtype(np.float32))
        self._weights.load(model, {name: array.astype(np.float32) for name, array in parameters.items()}, config)
        self._searcher = decoding.Searcher(model, "int8")

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        return self._arrays(self._searcher.greedy_search(self._weights.from_numpy(source), strategy))

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        return self._arrays(self._searcher.beam_search(self._weights.from_numpy(source), strategy))

    def _arrays(self, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: self._weights.to_numpy(tensor) for name, tensor in found.items()}
