"""Runs snippets, converts values to plain data, and fits distributions to initial parameters."""

import ast
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...common.processes import words

# framework -> the imports that its snippets assume
IMPORTS = {
    "numpy": (
        "import math",
        "import numpy as np",
        "from reference_numpy import attention, dropout, embedding, feed_forward, layout, loss, mask, normalization, optimizer",
        "from reference_numpy import positional_encoding, preset, rotary, schedule, softmax",
        "from reference_numpy.scores import Scores",
        "from reference_numpy.values import Heads",
    ),
    "pytorch": ("import numpy as np", "import torch", "import torch.nn.functional as F", "from torch import nn"),
    "keras": ("import numpy as np", "import tensorflow as tf", "import keras", "from keras import ops"),
    "flax": ("import numpy as np", "import jax", "import jax.numpy as jnp", "from flax import nnx", "import optax"),
}


def namespace(framework: str) -> dict[str, Any]:
    """Imports the framework and returns the names that its imports define."""
    if framework == "keras":
        importlib.import_module("impl_tf.framework")  # chooses the backend of Keras
    names: dict[str, Any] = {"fitted": fitted, "refused": refused, "outcome": outcome, "defaults": defaults}
    for line in IMPORTS[framework]:
        exec(line, names)
    return names


def execute(code: str, names: dict[str, Any], origin: str = "<snippet>") -> Any:
    """Runs the statements in the namespace; returns the value of the last one if it is an
    expression, otherwise None.
    """
    tree = ast.parse(code, origin)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, origin, "exec"), names)
        return None
    del tree.body[-1]
    exec(compile(tree, origin, "exec"), names)
    return eval(compile(ast.Expression(last.value), origin, "eval"), names)


def refuted(claims: str, names: dict[str, Any], origin: str) -> Iterator[str]:
    """Yields each assertion that fails, with the actual value, and each other statement that
    raises.
    """
    for node in ast.parse(claims, origin).body:
        try:
            if isinstance(node, ast.Assert):
                value = plain(eval(compile(ast.Expression(node.test), origin, "eval"), names))
            else:
                exec(compile(ast.Module([node], []), origin, "exec"), names)
                continue
        except Exception as error:
            value = words(error)
        if value is not True:
            yield f"the claim must be True: {ast.unparse(node).removeprefix('assert ')}; got {value}"


def given(statements: str) -> dict[str, Any]:
    """Returns the names that the statements define; they see only NumPy."""
    execute(statements, names := {"np": np})
    return {name: value for name, value in names.items() if name not in ("np", "__builtins__")}


def native(framework: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs with arrays converted to the framework."""
    if framework == "numpy":
        return dict(given)
    convert = {
        "pytorch": ("torch", "from_numpy"),
        "keras": ("tensorflow", "convert_to_tensor"),
        "flax": ("jax.numpy", "asarray"),
    }[framework]
    function = getattr(importlib.import_module(convert[0]), convert[1])
    return {name: function(value.copy()) if isinstance(value, np.ndarray) else value for name, value in given.items()}


def plain(value: Any) -> Any:
    """Returns the value as plain data: numbers, strings, None, and lists and mappings of them.

    Arrays become nested lists, dtypes their names. Raises ValueError for any other value.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.dtype | type) or type(value).__name__ in ("dtype", "DType"):
        return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value).removeprefix("torch.")
    if hasattr(value, "detach"):
        value = value.detach().float().numpy() if str(value.dtype) == "torch.bfloat16" else value.detach().numpy()
    if isinstance(value, tuple | list) or type(value).__name__ in ("TensorShape", "Size"):
        return [plain(item) for item in value]
    array = np.asarray(value)
    if array.dtype.kind == "V" or str(array.dtype) in ("bfloat16",):
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"a snippet's value must be plain data or an array; got {type(value).__name__}")
    return array.tolist()


def alike(one: Any, other: Any, absolute: float = 0.0) -> bool:
    """Returns whether two values agree up to float32 rounding.

    absolute: absolute tolerance for numbers.
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other, [absolute] * len(one)))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key], absolute) for key in one)
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(other, numbers) and isinstance(one, bool) == isinstance(other, bool):
        return (math.isnan(one) and math.isnan(other)) or one == other or math.isclose(one, other, rel_tol=2e-5, abs_tol=absolute)
    return type(one) is type(other) and one == other


def refused(action: Callable[[], Any], error: type[Exception] = Exception) -> bool:
    """Returns whether the action raises the error."""
    try:
        action()
    except error:
        return True
    return False


def outcome(action: Callable[[], Any], error: type[Exception] = Exception) -> Any:
    """Returns the value of the action, or "refused" if it raises the error."""
    try:
        return action()
    except error:
        return "refused"


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the arguments of a function or class with their defaults, or "required"."""
    made = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]  # a metaclass hides the arguments
    found = inspect.signature(made).parameters.items()
    return {name: "required" if one.default is one.empty else one.default for name, one in found}


def fitted(kernel_io: np.ndarray, fan_out: int | None = None) -> str:
    """Returns the formula of a kernel's initial values, such as `Glorot uniform, U(±√(6/(fan_in +
    fan_out)))`, and the measured standard deviation.

    kernel_io: a kernel of axes inputs, outputs. fan_out: if it differs from the number of outputs.
    A formula fits if its deviation is within 4 % of the measured one; the closest is returned.
    """
    inputs, outputs = kernel_io.shape[0], fan_out or kernel_io.shape[1]
    deviation, largest = float(kernel_io.std()), float(np.abs(kernel_io).max())
    shape = "uniform" if largest < 1.8 * deviation else "truncated normal" if largest < 2.35 * deviation else "normal"
    formulas = {
        "1/√(3 fan_in), which is U(±1/√fan_in)": (3 * inputs) ** -0.5,
        "√(2/(fan_in + fan_out)), Glorot": (2 / (inputs + outputs)) ** 0.5,
        "√(2/(fan_in + 3 fan_out)), Glorot of the fused kernel": (2 / (inputs + 3 * outputs)) ** 0.5,
        "1/√fan_in, LeCun": inputs**-0.5,
        "1/√width": kernel_io.shape[1] ** -0.5,
        "1": 1.0,
        "0.05/√3, which is U(±0.05)": 0.05 / 3**0.5,
    }
    name, expected = min(formulas.items(), key=lambda item: abs(math.log(item[1] / deviation)))
    return f"{shape}, deviation {name}" if abs(math.log(expected / deviation)) < 0.04 else f"{shape}, deviation {deviation:.3g}"
