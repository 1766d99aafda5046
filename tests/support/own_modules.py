"""Adapters of ports from tests or docs/ports.md, and a norm in each framework whose parameters have unusual names and axes."""

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from expectations import expect

from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.ports.port import NotCovered


def blocks(file: str) -> list[str]:
    """Returns the Python blocks of a page in docs/."""
    text = (Path(__file__).parents[2] / "docs" / file).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def document(name: str) -> str:
    """The port of that name that docs/ports.md links to."""
    return (Path(__file__).parents[1] / "ports" / "documented" / f"{name}.py").read_text(encoding="utf-8")


def verdict(case: Case, answer: Callable[[Case], Any]) -> str:
    """Returns "pass" if every output conforms, "differs" otherwise, and "not covered" if there is no output."""
    try:
        outputs = answer(case)
    except NotCovered:
        return "not covered"
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    return "pass" if all(compare(one, outputs[name]).excess <= 1 for name, one in expect(case).items()) else "differs"


def adapter(framework: str, **port: Any) -> Any:
    """Returns the adapter of a port with these attributes."""
    module = {"torch": "torch", "tf": "tensorflow", "jax": "flax"}[framework]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    found = importlib.import_module(f"rosettaformer.judge.ports.adapters.{framework}")
    return found.Adapter(SimpleNamespace(framework=framework, **port))


def norm(kind: str, width: int, epsilon: float, dtype: Any, axes: int) -> Any:
    """Returns a norm whose gamma and beta have this number of axes, all but the last of size 1; takes `t d` for one axis, else `b t d`."""
    shape = (*[1] * (axes - 1), width)

    def normed(x: Any, gamma: Any, beta: Any) -> Any:
        assert x.ndim == max(axes, 2)
        centred = x - x.mean(-1, keepdims=True)
        return centred / ((centred**2).mean(-1, keepdims=True) + epsilon) ** 0.5 * gamma + beta

    if kind == "tf":
        import keras

        class Keras(keras.layers.Layer):
            def __init__(self) -> None:
                super().__init__(dtype=dtype.name)
                self.gamma, self.beta = (self.add_weight(shape=shape) for _ in range(2))

            def call(self, x: Any, training: bool = True) -> Any:
                if training:
                    raise ValueError("it is not evaluated")
                assert x.ndim == max(axes, 2)
                mean, variance = keras.ops.moments(x, -1, keepdims=True)
                return (x - mean) / keras.ops.sqrt(variance + epsilon) * self.gamma + self.beta

        return Keras()
    import jax.numpy as jnp
    from flax import linen, nnx

    class Nnx(nnx.Module):
        def __init__(self) -> None:
            self.gamma, self.beta = (nnx.Param(jnp.zeros(shape, dtype)) for _ in range(2))

        def __call__(self, x: Any) -> Any:
            return normed(x, self.gamma, self.beta)

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return normed(x, *(self.param(name, linen.initializers.zeros, shape, dtype) for name in ("gamma", "beta")))

    return Nnx() if kind == "nnx" else Linen()
