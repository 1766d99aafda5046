"""One compiled graph of a layer or function."""

import functools
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..framework import INPUTS, by_name
from ..transformer import Transformer
from .packing import Packings, of_forward, of_loss

__all__ = ["compiled"]


def compiled(module: Callable[..., Any], jit_compile: bool = True) -> Callable[..., Any]:
    """The module as one `tf.function` compiled by XLA, with the same arguments; shapes and dtypes that were seen are not compiled again.

    Token ids are checked before the graph, in which they have no values. Plain arguments (`causal=True`) are constants of the graph.
    Of a Transformer and its `training_loss` only real tokens are multiplied; a shape of rows has a graph for each of a few numbers of
    them: of each side, in the loss of both together. A model with layers of another package has the rows always.
    jit_compile=False leaves XLA out: a whole model then runs some percent slower on a CPU, and is ready in half the time.
    """
    packings_of = _packings_of(module)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def graph(*arguments: Any, **keywords: Any) -> Any:
        return module(*arguments, **keywords)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if hasattr(module, "check_ids"):
            module.check_ids(*arguments, **keywords)
        if packings_of and not tf.config.functions_run_eagerly():
            packings = packings_of(*arguments, **keywords)
            if packings and any(packings):
                keywords["packings"] = packings
        return graph(*arguments, **keywords)

    return call


def _packings_of(module: Callable[..., Any]) -> Callable[..., Packings | None] | None:
    """What makes the packings of a call from its arguments; None where nothing is packed."""
    if isinstance(module, Transformer):
        return functools.partial(_of_forward, module)
    model = (
        module.__self__
        if isinstance(module, types.MethodType) and module.__func__ is Transformer.training_loss
        else None
    )
    return functools.partial(_of_loss, model) if isinstance(model, Transformer) else None


def _of_forward(
    model: Transformer,
    source: Any = None,
    target: Any = None,
    source_mask_bs: Any = None,
    target_mask_bt: Any = None,
    keep: Any = None,
    training: bool | None = None,
    segment_bs: Any = None,
    skip_padding: bool = False,
    packings: Packings | None = None,
) -> Packings | None:
    """Of the arguments of the model; an encoder alone is not packed."""
    if packings or not model.config.decoder_layers:
        return packings
    given = by_name(
        model.config, source, target, source_mask_bs=source_mask_bs, target_mask_bt=target_mask_bt
    )
    source, target, source_mask_bs, target_mask_bt, _ = (given[name] for name in INPUTS)
    return of_forward(model, source, target, source_mask_bs, target_mask_bt, skip_padding)


def _of_loss(
    model: Transformer,
    source: Any,
    target: Any,
    *_: Any,
    packings: Packings | None = None,
    **__: Any,
) -> Packings | None:
    """Of the arguments of `training_loss`."""
    return packings or of_loss(model, source, target)
