"""The interface for Flax Linen modules, which exist only during a call and keep no variables."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flax import linen as nn
from flax import traverse_util

from .jax import device, eager, function, gradients, is_tensor, like, tensor, to_numpy
from .recording import Enter, Leave, Recording

__all__ = [
    "calls", "device", "eager", "function", "gradients", "is_tensor", "like", "path", "tensor", "to_numpy", "variables",
]  # fmt: skip


def path(module: nn.Module) -> str:
    """Returns the path of a module within the outermost one."""
    return ".".join(module.path)


def variables(collection: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a collection of variables, by path."""
    return traverse_util.flatten_dict(dict(collection), sep=".")


@contextlib.contextmanager
def calls(path_of: Callable[[nn.Module], str | None], enter: Enter, leave: Leave) -> Iterator[None]:
    """Reports calls of modules. path_of: returns a module's path, None if it is not reported."""
    recording = Recording(path_of, enter, leave)

    def intercept(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        return recording.around(call, context.module, context.orig_method, args, kwargs)

    with nn.intercept_methods(intercept):
        yield
