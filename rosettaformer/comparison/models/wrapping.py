"""A built model as one of its framework."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...backends import imported
from ...modules import BACKENDS, framework_of
from .base import Model


def wrapped(built: Any, make: Callable[[], Any], text: str, call: str = "") -> Model:
    """Returns the model that was built as one of its framework: a module, a method of one, or a partial function of one. call: the method
    that is called, empty for the model itself.

    Raises ValueError if it is of no framework.
    """
    if isinstance(built, functools.partial) and built.args and framework_of(built.args[0]):
        return wrapped(built.args[0], lambda: make().args[0], text, call)
    if inspect.ismethod(built):
        return wrapped(built.__self__, lambda: make().__self__, text, built.__name__)
    framework = framework_of(built)
    if not framework:
        required = "a torch.nn.Module, a Keras layer or model, an nnx.Module or a linen Module"
        raise ValueError(f"{text} must build {required}; it built {type(built).__module__}.{type(built).__name__}")
    module = imported(BACKENDS[framework], f"{__package__}.{framework}_model")
    kind = getattr(module, f"{framework.capitalize()}Model")
    model: Model = kind(make, built, call) if framework in ("torch", "keras") else kind(built, call or "__call__")
    return model
