"""A common interface to the modules of all frameworks.

`torch`, `keras`, `nnx` and `linen` have the same functions:

    paths(module)                  every module within a module, by path
    variables(module)              its parameters and buffers, by path
    calls(rows, enter, leave)      a context that reports calls of modules, and may change arguments
    gradients(...)                 gradients of the sum of cotangent * output
    eager()                        a context without compilation, in which all values are concrete
    device(name)                   the framework's device
    function(module)               the function that a call runs, with the module's arguments
    tensor, like, to_numpy         conversions between arrays and tensors
    is_tensor(value)               whether a value is a tensor

They do not depend on the reference and its components.
"""

import importlib
from types import ModuleType
from typing import Any

BACKENDS = {"torch": "torch", "keras": "tf", "nnx": "jax", "linen": "jax"}  # framework -> required backend
DEVICES = ("cpu", "cuda", "cuda-tf32")


def framework_of(module: Any) -> str:
    """Returns torch, keras, nnx, linen or "", by the module's classes, without importing them."""
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(module).__mro__}
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if any(name.startswith("flax.linen") for name in names):
        return "linen"
    if any(name.startswith("flax.nnx") for name in names):
        return "nnx"
    return "keras" if any(name.startswith("keras.") and name.endswith(".Layer") for name in names) else ""


def face(framework: str) -> ModuleType:
    """Imports and returns the interface of a framework."""
    return importlib.import_module(f".{framework}", __package__)
