"""The components by name, as the judge calls them."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig

from . import (
    attention,
    cache,
    embedding,
    feed_forward,
    layers,
    loss,
    mask,
    optimizer,
    positional_encoding,
    rotary,
    schedule,
    softmax,
    stacks,
)
from .decoding import Searcher
from .dropout import Dropout
from .framework import keras
from .heads import Classifier, MaskedLanguageHead, Pooler
from .normalization import LayerNorm, RMSNorm
from .programs import on_mesh as mesh
from .programs.compiled import compiled as graph
from .programs.fused import fused
from .sampling import draw, penalise, truncate
from .training import Trainer
from .transformer import Transformer
from .weights import TABLE, export

__all__ = ["compiled", "components", "framework", "modes", "on_mesh", "weights"]

Tree: TypeAlias = Mapping[str, Any]  # tensors, nested by the parts of the canonical names

framework = "tf"
compiled = partial(graph, least=0)  # leaves out padding even if that saves little
suite = 9
modes = ("eager", "compiled")
weights = TABLE

components: dict[str, Callable[..., Callable[..., Any]]] = {
    "embedding": lambda config, dtype: embedding.Embedding(
        config.source_vocabulary,
        config.model_width,
        config.scale_embedding,
        config.round_embedding_scale,
        dtype=dtype.name,
    ),
    "segment_embedding": lambda config, dtype: embedding.SegmentEmbedding(
        config.segments, config.model_width, dtype=dtype.name
    ),
    "token_positions": lambda config, dtype: partial(
        positional_encoding.token_positions, start=config.position_start
    ),
    "position_embedding": lambda config, dtype: positional_encoding.PositionEmbedding(
        config.sizes["p"], config.model_width, config.position_offset, dtype=dtype.name
    ),
    "positional_encoding": lambda config, dtype: partial(
        positional_encoding.positional_encoding,
        width=config.model_width,
        dtype=dtype,
        layout=config.sinusoid_layout,
    ),
    "rotary_embedding": lambda config, dtype: partial(rotary.rotary_embedding, config=config),
    "token_mask": lambda config, dtype: partial(mask.token_mask, padding_id=config.padding_id),
    "padding_mask": lambda config, dtype: mask.padding_mask,
    "causal_mask": lambda config, dtype: mask.causal_mask,
    "window_mask": lambda config, dtype: mask.window_mask,
    "combine_masks": lambda config, dtype: mask.combine_masks,
    "softmax": lambda config, dtype: softmax.softmax,
    "soft_cap": lambda config, dtype: softmax.soft_cap,
    "scaled_dot_product_attention": lambda config, dtype: attention.scaled_dot_product_attention,
    "multi_head_attention": lambda config, dtype: partial(
        _placed, attention.MultiHeadAttention(config, dtype=dtype.name)
    ),
    "activation": lambda config, dtype: partial(feed_forward.activation, name=config.activation),
    "feed_forward": lambda config, dtype: feed_forward.FeedForward(config, dtype=dtype.name),
    "layer_norm": lambda config, dtype: _norm(LayerNorm, config, dtype),
    "rms_norm": lambda config, dtype: _norm(RMSNorm, config, dtype),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate, dtype=dtype.name),
    "encoder_layer": lambda config, dtype: partial(
        _placed, layers.EncoderLayer(config, dtype=dtype.name)
    ),
    "decoder_layer": lambda config, dtype: partial(
        _placed, layers.DecoderLayer(config, dtype=dtype.name)
    ),
    "encoder": lambda config, dtype: stacks.Encoder(config, dtype=dtype.name),
    "decoder": lambda config, dtype: stacks.Decoder(config, dtype=dtype.name),
    "logits": lambda config, dtype: embedding.Logits(
        config.model_width,
        config.target_vocabulary,
        config.output_bias,
        scale=config.logit_scale,
        cap=config.logit_cap,
        dtype=dtype.name,
    ),
    "pooler": lambda config, dtype: Pooler(
        config.model_width, config.pooler_activation, dtype=dtype.name
    ),
    "classifier": lambda config, dtype: Classifier(
        config.model_width, config.classes, config.classifier_dropout_rate, dtype=dtype.name
    ),
    "masked_language_head": lambda config, dtype: MaskedLanguageHead(config, dtype=dtype.name),
    "transformer": lambda config, dtype: Transformer(config, dtype=dtype.name),
    "pool": lambda config, dtype: Transformer(config, dtype=dtype.name).pool,
    "classify": lambda config, dtype: Transformer(config, dtype=dtype.name).classify,
    "masked_language_logits": lambda config, dtype: (
        Transformer(config, dtype=dtype.name).masked_language_logits
    ),
    "states": lambda config, dtype: Transformer(config, dtype=dtype.name).states,
    "decode_in_steps": lambda config, dtype: partial(
        _in_steps, Transformer(config, dtype=dtype.name)
    ),
    "penalise": lambda config, dtype: penalise,
    "truncate": lambda config, dtype: truncate,
    "draw": lambda config, dtype: draw,
    "greedy_search": lambda config, dtype: partial(
        _search, Transformer(config, dtype=dtype.name), name="greedy_search"
    ),
    "sample": lambda config, dtype: partial(
        _search, Transformer(config, dtype=dtype.name), name="sample"
    ),
    "beam_search": lambda config, dtype: partial(
        _search, Transformer(config, dtype=dtype.name), name="beam_search"
    ),
    "cross_entropy": lambda config, dtype: loss.cross_entropy,
    "training_loss": lambda config, dtype: Transformer(config, dtype=dtype.name).training_loss,
    "classification_loss": lambda config, dtype: (
        Transformer(config, dtype=dtype.name).classification_loss
    ),
    "adam": lambda config, dtype: _adam,
    "clip_global_norm": lambda config, dtype: optimizer.clip_global_norm,
    "noam": lambda config, dtype: partial(schedule.noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(_initialise, config=config, dtype=dtype.name),
    "random_dropout": lambda config, dtype: (
        lambda x, seed: Dropout(config.dropout_rate, seed=seed, dtype=dtype.name)(x, training=True)
    ),
}


def on_mesh(case: Any) -> Any:
    """What a case's component gives on the devices of its mesh, and `training_steps`: the losses of
    a run and its parameters afterwards.

    Whole arrays, the same in every process. Raises NotImplementedError on what the port does not
    compute on a mesh.
    """
    if case.component == "training_steps":
        return mesh.training_steps(case, Trainer)
    return mesh.on_mesh(case, components[case.component.removesuffix("_vjp")])


def _norm(
    kind: type[LayerNorm] | type[RMSNorm], config: TransformerConfig, dtype: tf.DType
) -> LayerNorm | RMSNorm:
    flags = config.norm_offset, config.norm_one_plus_scale, config.norm_cast_before_scale
    return kind(config.model_width, config.epsilon, *flags, dtype=dtype.name)


def _placed(layer: Any, length: int | None = None, **inputs: Any) -> Any:
    """The first layer of a stack on tokens at the positions position_bt or position_bs; length: as
    `rotary.rotation`."""
    given = [inputs.pop(name) for name in ("position_bt", "position_bs") if name in inputs]
    config, kind = layer.config, layer.config.layer_kind(0)
    if given and kind.rotary:
        dtype = layer.compute_dtype
        inputs["rotation"] = rotary.rotation(config, kind, given[0], dtype, length)
    return layer(**inputs)


def _in_steps(model: Transformer, compiled: bool = False, **inputs: Any) -> tf.Tensor:
    step = graph(cache.decode_step) if compiled else cache.decode_step
    return cache.decode_in_steps(fused(model), step=step, **inputs)


def _adam(
    parameters: Tree, gradients: Tree, first_moment: Tree, second_moment: Tree, step: int,
    learning_rate: float, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """`reference_numpy.optimizer.adam`, by the optimiser of the Trainer."""
    variables = [
        keras.Variable(tensor, dtype=tensor.dtype) for tensor in tf.nest.flatten(parameters)
    ]
    decays = tf.nest.flatten(optimizer.decay_mask(parameters))
    exclude = [variable for variable, decay in zip(variables, decays, strict=True) if not decay]
    adam = optimizer.adam(learning_rate, beta_1, beta_2, epsilon, weight_decay, exclude)
    adam.build(variables)
    adam.iterations.assign(step - 1)
    first, second = map(list, zip(*map(adam.moments, variables), strict=True))
    for moment, tensor in zip(
        first + second, tf.nest.flatten([first_moment, second_moment]), strict=True
    ):
        moment.assign(tensor)
    adam.apply(tf.nest.flatten(gradients))
    state = {
        "parameters": [variable.value for variable in variables],
        "first_moment": first,
        "second_moment": second,
    }
    return {name: tf.nest.pack_sequence_as(parameters, held) for name, held in state.items()}


def _search(
    model: Transformer, name: str, compiled: bool = False, **inputs: Any
) -> dict[str, tf.Tensor]:
    return getattr(Searcher(model, compiled=compiled), name)(**inputs)


def _initialise(seed: int, config: TransformerConfig, dtype: str) -> dict[str, np.ndarray]:
    """Fresh parameters by canonical name."""
    random.seed(seed)  # Keras draws the seeds of its initialisers from it
    return export(Transformer(config, dtype=dtype), config)
