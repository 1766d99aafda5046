"""One compiled graph of a module or function."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["compiled"]


def compiled(module: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` of the whole, without graph breaks; takes the same arguments and raises the same errors.

    Token ids are checked before the graph runs, where the module has `check_ids`: inside it there are no values to look at. Of the methods
    of a module, `training_loss` takes the arguments of that check.
    The first call compiles, and so does the first that differs in a length; from then on one graph serves every length.
    torch keeps `torch._dynamo.config.recompile_limit` graphs for all modules of a class together, and raises when there are more.
    """
    graph = torch.compile(module, fullgraph=True)
    checked = getattr(module, "__self__", None) if getattr(module, "__name__", "") == "training_loss" else module
    check_ids = getattr(checked, "check_ids", None)

    def run(*args: Any, **kwargs: Any) -> Any:
        if check_ids is not None:
            check_ids(*args, **kwargs)
        try:
            return graph(*args, **kwargs)
        except torch._dynamo.exc.Unsupported:
            # The tracer replaces every exception by its own; the module itself raises the one that says what is wrong.
            module(*args, **kwargs)
            raise

    return run
