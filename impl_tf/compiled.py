"""One compiled graph of a layer or function."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["compiled"]


def compiled(module: Callable[..., Any], jit_compile: bool = False) -> Callable[..., Any]:
    """The module as one `tf.function`, with the same arguments; tensors of known shapes and dtypes are traced once.

    Token ids are checked before the graph, in which they have no values. Plain arguments (`causal=True`) are constants of the graph.
    XLA (`jit_compile`) is not the default: on a CPU its matrix products are slower than those of the graph's own kernels, and a
    Transformer takes it twice as long to compile.
    """

    @tf.function(jit_compile=jit_compile, autograph=False)
    def graph(*arguments: Any, **keywords: Any) -> Any:
        return module(*arguments, **keywords)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if hasattr(module, "check_ids"):
            module.check_ids(*arguments, **keywords)
        return graph(*arguments, **keywords)

    return call
