"""One compiled graph of a layer or function."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["compiled"]


def compiled(module: Callable[..., Any], jit_compile: bool = True) -> Callable[..., Any]:
    """The module as one `tf.function` compiled by XLA, with the same arguments; shapes and dtypes that were seen are not compiled again.

    Token ids are checked before the graph, in which they have no values. Plain arguments (`causal=True`) are constants of the graph.
    jit_compile=False leaves XLA out: a whole model then runs some percent slower on a CPU, and is ready in half the time.
    """

    @tf.function(jit_compile=jit_compile, autograph=False)
    def graph(*arguments: Any, **keywords: Any) -> Any:
        return module(*arguments, **keywords)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if hasattr(module, "check_ids"):
            module.check_ids(*arguments, **keywords)
        return graph(*arguments, **keywords)

    return call
