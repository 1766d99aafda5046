"""The three ports behind one face, and all four implementations behind another, for tests that say the same of each."""

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference_numpy import TransformerConfig
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.reference import components

PORTS = ("torch", "tf", "jax")
FOUR = ("numpy", *PORTS)
_NEEDS = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}


class Backend:
    """A port: builds its modules, loads and exports parameters, calls on NumPy arrays."""

    def __init__(self, name: str) -> None:
        pytest.importorskip(_NEEDS[name], reason=f"{_NEEDS[name]} is not installed")
        self.name = name
        self.port = importlib.import_module(f"impl_{name}.port")
        self.weights = importlib.import_module(f"impl_{name}.weights")
        self.adapter = importlib.import_module(f"rosettaformer.conformance.ports.adapters.{name}").Adapter(self.port)

    def dtype(self, name: str) -> Any:
        """The framework's dtype of that name."""
        if self.name == "torch":
            return getattr(importlib.import_module("torch"), name)
        if self.name == "tf":
            return importlib.import_module("tensorflow").as_dtype(name)
        return np.dtype(getattr(ml_dtypes, name, name))

    def build(self, component: str, config: TransformerConfig, dtype: str = "float32") -> Any:
        """A module in evaluation mode; in JAX float64 needs enable_x64 around it."""
        module = self.port.components[component](config, self.dtype(dtype))
        if self.name == "torch" and hasattr(module, "to"):
            module = module.to(self.dtype(dtype)).eval()
        if self.name == "jax" and hasattr(module, "eval"):
            module.eval()
        return module


def answerer(name: str) -> Callable[[Case], dict[str, Any]]:
    """What gives the answers to a case by name: the truth, `numpy`, or a port."""
    if name == "numpy":
        return components.answer
    adapter = Backend(name).adapter
    return lambda case: components.named_outputs(adapter.run(case))
