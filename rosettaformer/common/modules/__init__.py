"""The modules of each framework behind one face: `torch`, `keras`, `nnx` and `linen` have the same functions under the same names.

    paths(module)                  every module within a module, by path
    variables(module)              its parameters and buffers, by path
    calls(rows, enter, leave)      a context in which the calls of these modules are reported, and may be given other arguments
    gradients(...)                 of the sum of cotangent * output
    eager()                        a context in which nothing is compiled, so that what passes through modules has values
    device(name)                   the framework's device
    function(module)               what is called, whose arguments are the module's
    tensor, like, to_numpy         tensors of arrays, and arrays of tensors
    is_tensor(value)               whether something is a tensor

They know nothing of the reference and of its components.
"""

import importlib
from types import ModuleType
from typing import Any

BACKENDS = {"torch": "torch", "keras": "tf", "nnx": "jax", "linen": "jax"}  # framework -> the backend that it needs
DEVICES = ("cpu", "cuda", "cuda-tf32")


def framework_of(module: Any) -> str:
    """torch, keras, nnx or linen, by the classes of the module, which are not imported; empty if it is of none."""
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(module).__mro__}
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if any(name.startswith("flax.linen") for name in names):
        return "linen"
    if any(name.startswith("flax.nnx") for name in names):
        return "nnx"
    return "keras" if any(name.startswith("keras.") and name.endswith(".Layer") for name in names) else ""


def face(framework: str) -> ModuleType:
    """The file of a framework, which imports it."""
    return importlib.import_module(f".{framework}", __package__)
