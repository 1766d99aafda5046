"""The components by name, as the judge calls them."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

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
from .framework import Configured, keras
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import OF_SOURCE, OF_TARGET, real_tokens
from .normalization import norm
from .programs import on_mesh as mesh
from .programs.compiled import compiled as graph
from .programs.fused import fused
from .sampling import draw, penalise, truncate
from .training import Trainer
from .transformer import Transformer
from .values import Drop, Heads, Text
from .weights import TABLE, export

__all__ = ["compiled", "components", "framework", "modes", "on_mesh", "weights"]

Tree: TypeAlias = Mapping[str, Any]  # tensors, nested by the parts of the canonical names
Input: TypeAlias = tf.Tensor | None
Output: TypeAlias = tf.Tensor | tuple[tf.Tensor, tf.Tensor]

framework = "tf"
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
    "scaled_dot_product_attention": lambda config, dtype: _scaled_dot_product_attention,
    "multi_head_attention": lambda config, dtype: partial(
        _multi_head_attention, attention.MultiHeadAttention(config, dtype=dtype.name)
    ),
    "activation": lambda config, dtype: partial(feed_forward.activation, name=config.activation),
    "feed_forward": lambda config, dtype: feed_forward.FeedForward(config, dtype=dtype.name),
    "layer_norm": lambda config, dtype: norm(config.replace(norm="layer"), dtype=dtype.name),
    "rms_norm": lambda config, dtype: norm(config.replace(norm="rms"), dtype=dtype.name),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate, dtype=dtype.name),
    "encoder_layer": lambda config, dtype: partial(
        _layer, layers.EncoderLayer(config, dtype=dtype.name)
    ),
    "decoder_layer": lambda config, dtype: partial(
        _layer, layers.DecoderLayer(config, dtype=dtype.name)
    ),
    "encoder": lambda config, dtype: stacks.Encoder(config, dtype=dtype.name),
    "decoder": lambda config, dtype: stacks.Decoder(config, dtype=dtype.name),
    "logits": lambda config, dtype: embedding.logits(
        config, config.target_vocabulary, False, dtype.name
    ),
    "pooler": lambda config, dtype: Pooler(
        config.model_width, config.pooler_activation, dtype=dtype.name
    ),
    "classifier": lambda config, dtype: Classifier(
        config.model_width, config.classes, config.classifier_dropout_rate, dtype=dtype.name
    ),
    "masked_language_head": lambda config, dtype: MaskedLanguageHead(config, dtype=dtype.name),
    "transformer": lambda config, dtype: partial(_transformer, _model(config, dtype)),
    "pool": lambda config, dtype: partial(_of_source, _model(config, dtype).pool),
    "classify": lambda config, dtype: partial(_of_source, _model(config, dtype).classify),
    "masked_language_logits": lambda config, dtype: partial(
        _of_source, _model(config, dtype).masked_language_logits
    ),
    "states": lambda config, dtype: partial(_states, _model(config, dtype).states),
    "decode_in_steps": lambda config, dtype: partial(_in_steps, _model(config, dtype)),
    "penalise": lambda config, dtype: penalise,
    "truncate": lambda config, dtype: truncate,
    "draw": lambda config, dtype: draw,
    "greedy_search": lambda config, dtype: partial(
        _search, _model(config, dtype), Searcher.greedy_search
    ),
    "sample": lambda config, dtype: partial(_search, _model(config, dtype), Searcher.sample),
    "beam_search": lambda config, dtype: partial(
        _search, _model(config, dtype), Searcher.beam_search
    ),
    "cross_entropy": lambda config, dtype: loss.cross_entropy,
    "training_loss": lambda config, dtype: _model(config, dtype).training_loss,
    "classification_loss": lambda config, dtype: partial(
        _of_source, _model(config, dtype).classification_loss
    ),
    "adam": lambda config, dtype: _adam,
    "clip_global_norm": lambda config, dtype: optimizer.clip_global_norm,
    "noam": lambda config, dtype: partial(schedule.noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(_initialise, config=config, dtype=dtype.name),
    "random_dropout": lambda config, dtype: (
        lambda x, seed: Dropout(config.dropout_rate, seed=seed, dtype=dtype.name)(x, training=True)
    ),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One graph, which leaves out padding even if that saves little."""
    if isinstance(function, partial) and function.func is _transformer:
        return partial(_transformer, graph(function.args[0], least=0))
    return graph(function, least=0)


def on_mesh(case: Any) -> Any:
    """What a case's component gives on the devices of its mesh, and `training_steps`: the losses of
    a run and its parameters afterwards.

    Whole arrays, the same in every process. Raises NotImplementedError on what the port does not
    compute on a mesh.
    """
    if case.component == "training_steps":
        return mesh.training_steps(case, Trainer)
    return mesh.on_mesh(case, components[case.component.removesuffix("_vjp")])


def _model(config: TransformerConfig, dtype: tf.DType) -> Transformer:
    return Transformer(config, dtype=dtype.name)


def _scaled_dot_product_attention(
    query_bthk: tf.Tensor, key_bsgk: tf.Tensor, value_bsge: tf.Tensor, mask_bhts: Input = None,
    bias_bhts: Input = None, return_weights: bool = False, keep_bhts: Input = None,
    dropout_rate: float = 0.0, **scores: Any,
) -> Output:  # fmt: skip
    heads = query_bthk.shape[-2]
    mask_bhts = _one_mask(mask_bhts, bias_bhts, query_bthk, key_bsgk, heads)
    given, drop = (mask_bhts, Scores(**scores)), Drop(keep_bhts, dropout_rate)
    output_bthe = attention.scaled_dot_product_attention(
        Heads(query_bthk, key_bsgk, value_bsge), *given, drop
    )
    if not return_weights:
        return output_bthe
    return output_bthe, attention.attention_weights(query_bthk, key_bsgk, *given)


def _multi_head_attention(
    module: attention.MultiHeadAttention, query_btd: tf.Tensor, memory_bsd: tf.Tensor,
    mask_bhts: Input = None, bias_bhts: Input = None, causal: bool = False,
    return_weights: bool = False, keep_bhts: Input = None, position_bt: Input = None,
    length: int | None = None,
) -> Output:  # fmt: skip
    """length: as `rotary.rotation`."""
    mask_bhts = _one_mask(mask_bhts, bias_bhts, query_btd, memory_bsd, module.config.heads)
    if causal:
        causal_11ts = mask.causal_mask(query_btd.shape[1], memory_bsd.shape[1])
        mask_bhts = mask.combine_masks(mask_bhts, causal_11ts)
    rotation = _rotation(module, query_btd, position_bt, length)
    named = {"rotation": rotation, "keep_bhts": keep_bhts}
    output_btd = module(query_btd, memory_bsd, mask_bhts, **named)
    if not return_weights:
        return output_btd
    heads = module.project(query_btd, memory_bsd, rotation)
    return output_btd, module.weights_of(heads, mask_bhts)


def _one_mask(
    mask_bhts: Input, bias_bhts: Input, query: tf.Tensor, key: tf.Tensor, heads: int
) -> Input:
    """What a mask and a bias say together."""
    if bias_bhts is None:
        return mask_bhts
    scores = query.shape[0], heads, query.shape[1], key.shape[1]
    checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    return mask.combine_masks(bias_bhts, mask_bhts)


def _layer(
    layer: layers.EncoderLayer | layers.DecoderLayer, x_btd: tf.Tensor, position_bt: Input = None,
    position_bs: Input = None, length: int | None = None, **inputs: Any,
) -> tf.Tensor:  # fmt: skip
    """The first layer of a stack; length: as `rotary.rotation`."""
    position_bt = position_bs if position_bt is None else position_bt
    return layer(x_btd, rotation=_rotation(layer, x_btd, position_bt, length), **inputs)


def _rotation(
    module: Configured, x_btd: tf.Tensor, position_bt: Input, length: int | None
) -> rotary.Rotation | None:
    """That of a stack's first layer, by default of the positions 0, 1, ..."""
    config, kind = module.config, module.config.layer_kind(0)
    if not kind.rotary:
        return None
    if position_bt is None:
        position_bt = tf.range(x_btd.shape[1])[tf.newaxis]
    return rotary.rotation(config, kind, position_bt, module.compute_dtype, length)


def _texts(inputs: dict[str, Any]) -> list[Text | None]:
    """Source and target, whose parts are taken out of the inputs."""
    sides = OF_SOURCE, OF_TARGET
    return [Text.of(*(inputs.pop(name, None) for name in names)) for names in sides]


def _transformer(
    model: Callable[..., tf.Tensor], skip_padding: bool = False, **inputs: Any
) -> tf.Tensor:
    """model: a Transformer, or its graph, which is told what padding it need not compute."""
    texts = _texts(inputs)
    if not isinstance(model, Transformer):
        return model(*texts, skip_padding=skip_padding, **inputs)
    logits_btv, target = model(*texts, **inputs), texts[1]
    if not skip_padding or target is None:
        return logits_btv
    mask_bt = real_tokens(model.config, target)
    return logits_btv if mask_bt is None else mask.real_rows(logits_btv, mask_bt)


def _states(states: Callable[..., Tree], **inputs: Any) -> Tree:
    return states(*_texts(inputs), **inputs)


def _of_source(method: Callable[..., Output], **inputs: Any) -> Output:
    return method(_texts(inputs)[0], **inputs)


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
    model: Transformer, search: Callable[..., Tree], compiled: bool = False, **inputs: Any
) -> Tree:
    return search(Searcher(model, compiled=compiled), **inputs)


def _initialise(seed: int, config: TransformerConfig, dtype: str) -> dict[str, np.ndarray]:
    """Fresh parameters by canonical name."""
    random.seed(seed)  # Keras draws the seeds of its initialisers from it
    return export(Transformer(config, dtype=dtype), config)
