"""A layer or function as one compiled graph."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tensorflow as tf

from ..framework import Configured
from .unpadding import Unpadded

__all__ = ["compiled"]

P = ParamSpec("P")
R = TypeVar("R")


def compiled(
    module: Callable[P, R], jit_compile: bool = True, least: int | None = None
) -> Callable[P, R]:
    """The module as one `tf.function` compiled by XLA, with the same arguments.

    Token ids are checked before the graph, where they have values. Plain arguments (`causal=True`)
    are constants. A Transformer and its `training_loss` skip padding (`Unpadded`): a shape of rows
    has one graph for each of a few numbers of tokens, per side, or in the loss for both sides
    together. jit_compile=False disables XLA: a whole model then runs some percent slower on a CPU,
    but compiles in half the time.
    """
    function = Unpadded(module, least)
    graph = tf.function(function.run, jit_compile=jit_compile, autograph=False)
    owner = getattr(module, "__self__", module)  # owner of a method

    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if isinstance(owner, Configured) and not owner.built:
            owner.build()  # variables created in a failed trace would be missing later
        if hasattr(module, "check_ids"):
            module.check_ids(*arguments, **keywords)
        eager = tf.config.functions_run_eagerly()
        sides = None if eager else function.tokens(*arguments, **keywords)
        return graph(sides, *arguments, **keywords)

    return call
