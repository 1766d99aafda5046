"""The components that the judge calls, by name; each is built from a config."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.parameters import flatten, nest
from reference_numpy.scores import Scores

from . import (
    attention,
    cache,
    embedding,
    experts,
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
from .framework import Configured, Tree, keras
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import OF_SOURCE, OF_TARGET, InputLayers
from .normalization import norm
from .programs import static_cache
from .programs.compiled import compiled as graph
from .programs.fused import fused
from .programs.on_mesh import Answer, Build, Case
from .programs.on_mesh import on_mesh as answer
from .programs.unpadding import Unpadded
from .sampling import draw, penalise, truncate
from .training import Trainer
from .transformer import Transformer
from .values import Drop, Heads, Text
from .weights import TABLE, export

__all__ = ["compiled", "components", "framework", "modes", "on_mesh", "weights"]

# Inputs of a case by name: tensors, numbers, flags, and mappings of them.
Inputs: TypeAlias = dict[str, Any]

framework = "tf"
modes = ("eager", "compiled")
weights = TABLE


_ALWAYS = (
    mask.padding_mask, mask.causal_mask, mask.window_mask, mask.combine_masks, softmax.softmax,
    softmax.soft_cap, penalise, truncate, draw, loss.cross_entropy, optimizer.clip_global_norm,
)  # fmt: skip
_OF_TEXTS = (
    Transformer.pool, Transformer.classify, Transformer.masked_language_logits, Transformer.states,
    Transformer.classification_loss,
)  # fmt: skip
components: dict[str, Build] = {
    "embedding": lambda config, dtype: _source(config, dtype).embedding,
    "segment_embedding": lambda config, dtype: _source(config, dtype).segment_embedding,
    "token_positions": lambda config, dtype: partial(
        positional_encoding.token_positions, start=config.position_start
    ),
    "position_embedding": lambda config, dtype: _source(config, dtype).position_embedding,
    "positional_encoding": lambda config, dtype: partial(
        positional_encoding.positional_encoding,
        width=config.model_width,
        dtype=dtype,
        layout=config.sinusoid_layout,
    ),
    "rotary_embedding": lambda config, dtype: partial(rotary.rotary_embedding, config=config),
    "token_mask": lambda config, dtype: partial(mask.token_mask, padding_id=config.padding_id),
    "scaled_dot_product_attention": lambda config, dtype: _scaled_dot_product_attention,
    "multi_head_attention": lambda config, dtype: partial(
        _multi_head_attention, attention.MultiHeadAttention(config, dtype=dtype.name)
    ),
    "activation": lambda config, dtype: partial(feed_forward.activation, name=config.activation),
    "layer_norm": lambda config, dtype: norm(config.replace(norm="layer"), dtype=dtype.name),
    "rms_norm": lambda config, dtype: norm(config.replace(norm="rms"), dtype=dtype.name),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate, dtype=dtype.name),
    "encoder_layer": lambda config, dtype: partial(
        _layer, layers.EncoderLayer(config, dtype=dtype.name)
    ),
    "decoder_layer": lambda config, dtype: partial(
        _layer, layers.DecoderLayer(config, dtype=dtype.name)
    ),
    "feed_forward": lambda config, dtype: feed_forward.FeedForward(config, dtype=dtype.name),
    "router": lambda config, dtype: experts.Router(config, dtype=dtype.name),
    "router_loss": lambda config, dtype: partial(
        loss.router_loss, per_token=config.experts_per_token
    ),
    "mixture_of_experts": lambda config, dtype: experts.MixtureOfExperts(config, dtype=dtype.name),
    "encoder": lambda config, dtype: stacks.Encoder(config, dtype=dtype.name),
    "decoder": lambda config, dtype: stacks.Decoder(config, dtype=dtype.name),
    "masked_language_head": lambda config, dtype: MaskedLanguageHead(config, dtype=dtype.name),
    "logits": lambda config, dtype: embedding.Logits(
        config, config.target_vocabulary, dtype=dtype.name
    ),
    "pooler": lambda config, dtype: Pooler(
        config.model_width, config.pooler_activation, dtype=dtype.name
    ),
    "classifier": lambda config, dtype: Classifier(
        config.model_width, config.classes, config.classifier_dropout_rate, dtype=dtype.name
    ),
    "transformer": lambda *of: partial(_of_texts, _model(*of)),
    "decode_in_steps": lambda *of: partial(_in_steps, _model(*of)),
    "training_loss": lambda *of: _model(*of).training_loss,
    "adam": lambda config, dtype: _adam,
    "noam": lambda config, dtype: partial(schedule.noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(_initialise, config=config, dtype=dtype.name),
    "random_dropout": lambda config, dtype: (
        lambda x, seed: Dropout(config.dropout_rate, seed=seed, dtype=dtype.name)(x, training=True)
    ),
}
components |= {own.__name__: lambda *_, own=own: own for own in _ALWAYS}
components |= {
    own.__name__: lambda *of, name=own.__name__: partial(_of_texts, getattr(_model(*of), name))
    for own in _OF_TEXTS
}
components |= {
    own.__name__: lambda *of, own=own: partial(_search, _model(*of), own)
    for own in (Searcher.greedy_search, Searcher.sample, Searcher.beam_search)
}


def compiled(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Compiles one graph, which skips padding even if little is saved."""
    if isinstance(function, partial) and function.func is _of_texts:
        return partial(_of_texts, graph(function.args[0], least=0))
    return graph(function, least=0)


def on_mesh(case: Case) -> Answer:
    """Computes a case's component on the devices of its mesh: `programs.on_mesh`."""
    return answer(case, components, Trainer)


def _source(config: TransformerConfig, dtype: tf.DType) -> Any:  # its layers are those of the cases
    return InputLayers.new(config, "source", dtype.name)


def _model(config: TransformerConfig, dtype: tf.DType) -> Transformer:
    return Transformer(config, dtype=dtype.name)


def _scaled_dot_product_attention(
    query_bthk: tf.Tensor, key_bsgk: tf.Tensor, value_bsge: tf.Tensor,
    sink_h: tf.Tensor | None = None, return_weights: bool = False, **inputs: Any,
) -> Answer:  # fmt: skip
    """inputs: also the fields of `Scores`."""
    mask_bhts = _one_mask(query_bthk, key_bsgk, query_bthk.shape[-2], inputs)
    drop = Drop(inputs.pop("keep_bhts", None), inputs.pop("dropout_rate", 0.0))
    heads, scores = Heads(query_bthk, key_bsgk, value_bsge, sink_h), Scores(**inputs)
    output_bthe = attention.scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    if not return_weights:
        return output_bthe
    given = query_bthk, key_bsgk, mask_bhts, scores, sink_h
    return output_bthe, attention.attention_weights(*given)


def _multi_head_attention(
    module: attention.MultiHeadAttention, query_btd: tf.Tensor, memory_bsd: tf.Tensor,
    causal: bool = False, return_weights: bool = False, **inputs: Any,
) -> Answer:  # fmt: skip
    """Calls the self-attention of a stack's first layer."""
    mask_bhts = _one_mask(query_btd, memory_bsd, module.config.heads, inputs)
    if causal:
        causal_11ts = mask.causal_mask(query_btd.shape[1], memory_bsd.shape[1])
        mask_bhts = mask.combine_masks(mask_bhts, causal_11ts)
    rotation = _rotation(module, query_btd, inputs)
    output_btd = module(query_btd, memory_bsd, mask_bhts, rotation=rotation, **inputs)
    if not return_weights:
        return output_btd
    query_bthk, key_bsgk, _, sink_h = module.project(query_btd, memory_bsd, rotation)
    given = query_bthk, key_bsgk, mask_bhts, module.scores, sink_h
    return output_btd, attention.attention_weights(*given)


def _one_mask(query: tf.Tensor, key: tf.Tensor, heads: int, inputs: Inputs) -> tf.Tensor | None:
    """Removes mask and bias from the inputs and merges them."""
    mask_bhts, bias_bhts = inputs.pop("mask_bhts", None), inputs.pop("bias_bhts", None)
    if bias_bhts is None:
        return mask_bhts
    scores = query.shape[0], heads, query.shape[1], key.shape[1]
    checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    return mask.combine_masks(bias_bhts, mask_bhts)


def _layer(
    layer: layers.EncoderLayer | layers.DecoderLayer, x_btd: tf.Tensor, **inputs: Any
) -> tf.Tensor:
    """Calls the first layer of a stack."""
    rotation = _rotation(layer, x_btd, inputs)
    return layer(x_btd, rotation=rotation, **inputs)


def _rotation(module: Configured, x_btd: tf.Tensor, inputs: Inputs) -> rotary.Rotation | None:
    """Returns the rotation of a stack's first layer for the positions and length removed from the
    inputs, by default positions 0, 1, ...; see `rotary.rotation`.
    """
    names = ("position_bt", "position_bs", "length")
    position_bt, position_bs, length = (inputs.pop(name, None) for name in names)
    position_bt = position_bs if position_bt is None else position_bt
    config, kind = module.config, module.config.layer_kind(0)
    if not kind.rotary:
        return None
    if position_bt is None:
        position_bt = tf.range(x_btd.shape[1])[tf.newaxis]
    return rotary.rotation(config, kind, position_bt, module.compute_dtype, length)


def _of_texts(call: Callable[..., Answer], **inputs: Any) -> Answer:
    """Calls a model, its graph or its method with source and target as texts."""
    source, target = (
        Text.of(*(inputs.pop(name, None) for name in names)) for names in (OF_SOURCE, OF_TARGET)
    )
    if target is not None:
        inputs["target"] = target
    if isinstance(call, Transformer):
        return Unpadded(call).run(None, source, **inputs)
    return call(source, **inputs)


def _in_steps(
    model: Transformer, target: tf.Tensor, memory_bsd: tf.Tensor | None, splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None, target_mask_bt: tf.Tensor | None = None,
    compiled: bool = False,
) -> tf.Tensor:  # fmt: skip
    """compiled: uses a cache of fixed length, and one graph for each step length."""
    if not compiled:
        given = target, memory_bsd, splits, source_mask_bs, target_mask_bt
        return cache.decode_in_steps(model, *given)
    model.check_ids(None, target)
    checks.check_length(length := target.shape[1], model.config.max_positions)
    copy, batch = fused(model), target.shape[0] if memory_bsd is None else None
    held = static_cache.start_cache(copy, memory_bsd, source_mask_bs, batch, length=length)
    step, logits = graph(partial(static_cache.decode_step, copy)), []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, held = step(part.ids, held, part.mask)
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def _adam(
    parameters: Tree, gradients: Tree, first_moment: Tree, second_moment: Tree, step: int,
    **settings: float,
) -> dict[str, Tree]:  # fmt: skip
    """Computes `reference_numpy.optimizer.adam` with the Trainer's optimizer."""
    variables = {
        name: keras.Variable(tensor, dtype=tensor.dtype, name=name.rpartition(".")[2])
        for name, tensor in flatten(parameters).items()
    }
    adam = optimizer.Adam(**settings)
    adam.build([*variables.values()])
    adam.iterations.assign(step - 1)
    moments = {"first_moment": adam.first_moments, "second_moment": adam.second_moments}
    for held, tree in zip(moments.values(), (first_moment, second_moment), strict=True):
        values = flatten(tree)
        for name, moment in zip(variables, held, strict=True):
            moment.assign(values[name])
    values = flatten(gradients)
    adam.apply([values[name] for name in variables])
    state = {"parameters": variables.values(), **moments}
    return {
        kind: nest({name: one.value for name, one in zip(variables, held, strict=True)})
        for kind, held in state.items()
    }


def _search(
    model: Transformer, search: Callable[..., Tree], compiled: bool = False, **inputs: Any
) -> Tree:
    return search(Searcher(model, compiled=compiled), **inputs)


def _initialise(seed: int, config: TransformerConfig, dtype: str) -> dict[str, np.ndarray]:
    """Returns new parameters by canonical name."""
    random.seed(seed)  # Keras draws the seeds of its initializers from this module
    return export(Transformer(config, dtype=dtype), config)
