"""What the judge calls: every component of the port, built from a config."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig

from .attention import MultiHeadAttention, scaled_dot_product_attention
from .cache import decode_in_steps
from .decoding import Searcher
from .dropout import Dropout
from .embedding import Embedding, Logits
from .fast.compiled import compiled
from .feed_forward import FeedForward, activation
from .layers import DecoderLayer, EncoderLayer
from .loss import cross_entropy
from .mask import causal_mask, combine_masks, padding_mask, token_mask
from .normalization import LayerNorm
from .optimizer import adam, clip_global_norm
from .positional_encoding import positional_encoding, token_positions
from .sampling import draw, penalise, truncate
from .schedule import noam
from .softmax import softmax
from .stacks import Decoder, Encoder
from .training import moments, with_moments
from .transformer import Transformer
from .weights import TABLE, from_numpy

__all__ = ["compiled", "components", "framework", "modes", "weights"]

Builder = Callable[[TransformerConfig, Dtype], Callable[..., Any]]


def _function(function: Callable[..., Any]) -> Builder:
    return lambda config, dtype: function


def _blank(build: Callable[[TransformerConfig, Dtype, nnx.Rngs], nnx.Module]) -> Callable[[TransformerConfig, Dtype], Any]:
    """A module of zeros: the judge loads the parameters, and drawing random ones first would compile a program for every shape."""

    @functools.cache  # tracing the draws takes half of the Python time of a case
    def abstract(config: TransformerConfig, dtype: np.dtype) -> Any:
        return nnx.split(nnx.eval_shape(lambda: build(config, dtype, nnx.Rngs(0))))

    def builder(config: TransformerConfig, dtype: Dtype) -> nnx.Module:
        graph, state = abstract(config, jnp.dtype(dtype))
        leaves, structure = jax.tree.flatten(state)
        return nnx.merge(graph, jax.tree.unflatten(structure, [_zeros(leaf, seed) for seed, leaf in enumerate(leaves)]))

    return builder


def _zeros(leaf: jax.ShapeDtypeStruct, seed: int) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(seed)
    return from_numpy(np.zeros(leaf.shape, leaf.dtype))


def _adam(
    parameters: Any, gradients: Any, first_moment: Any, second_moment: Any, step: int,
    learning_rate: float, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """`adam` on arrays, by the optimiser that the Trainer has."""
    optimizer = adam(learning_rate, beta_1, beta_2, epsilon, weight_decay)
    state = with_moments(optimizer.init(parameters), step - 1, first_moment, second_moment)
    updates, state = optimizer.update(gradients, state, parameters)
    return {"parameters": optax.apply_updates(parameters, updates)} | moments(state)


def _of_model(function: Callable[..., Any]) -> Builder:
    return lambda config, dtype: functools.partial(function, _transformer(config, dtype))


def _search(name: str) -> Builder:
    def search(model: Transformer, *args: Any, compiled: bool = True, **kwargs: Any) -> dict[str, jax.Array]:
        return getattr(Searcher(model, compiled=compiled), name)(*args, **kwargs)

    return _of_model(search)


def _initialise(config: TransformerConfig, dtype: Dtype) -> Callable[[int], dict[str, jax.Array]]:
    def initialise(seed: int) -> dict[str, jax.Array]:
        model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
        return {".".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}

    return initialise


framework = "jax"
modes = ("compiled", "eager")
_transformer = _blank(lambda config, dtype, rngs: Transformer(config, param_dtype=dtype, rngs=rngs))
weights = TABLE
components: dict[str, Builder] = {
    "embedding": _blank(
        lambda config, dtype, rngs: Embedding(
            config.source_vocabulary, config.model_width, config.scale_embedding, param_dtype=dtype, rngs=rngs
        )
    ),
    "token_positions": _function(token_positions),
    "positional_encoding": lambda config, dtype: functools.partial(positional_encoding, width=config.model_width, dtype=dtype),
    "token_mask": lambda config, dtype: functools.partial(token_mask, padding_id=config.padding_id),
    "padding_mask": _function(padding_mask),
    "causal_mask": _function(causal_mask),
    "combine_masks": _function(combine_masks),
    "softmax": _function(softmax),
    "scaled_dot_product_attention": _function(scaled_dot_product_attention),
    "multi_head_attention": _blank(lambda config, dtype, rngs: MultiHeadAttention(config, param_dtype=dtype, rngs=rngs)),
    "activation": lambda config, dtype: functools.partial(activation, name=config.activation),
    "feed_forward": _blank(lambda config, dtype, rngs: FeedForward(config, param_dtype=dtype, rngs=rngs)),
    "layer_norm": lambda config, dtype: LayerNorm(config.model_width, config.epsilon, param_dtype=dtype),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate),
    "encoder_layer": _blank(lambda config, dtype, rngs: EncoderLayer(config, param_dtype=dtype, rngs=rngs)),
    "decoder_layer": _blank(lambda config, dtype, rngs: DecoderLayer(config, param_dtype=dtype, rngs=rngs)),
    "encoder": _blank(lambda config, dtype, rngs: Encoder(config, param_dtype=dtype, rngs=rngs)),
    "decoder": _blank(lambda config, dtype, rngs: Decoder(config, param_dtype=dtype, rngs=rngs)),
    "logits": _blank(
        lambda config, dtype, rngs: Logits(config.model_width, config.target_vocabulary, config.output_bias, param_dtype=dtype, rngs=rngs)
    ),
    "transformer": _transformer,
    "decode_in_steps": _of_model(decode_in_steps),
    "penalise": _function(penalise),
    "truncate": _function(truncate),
    "draw": _function(draw),
    "greedy_search": _search("greedy_search"),
    "sample": _search("sample"),
    "beam_search": _search("beam_search"),
    "cross_entropy": _function(cross_entropy),
    "training_loss": lambda config, dtype: _transformer(config, dtype).training_loss,
    "adam": _function(_adam),
    "clip_global_norm": _function(clip_global_norm),
    "noam": lambda config, dtype: functools.partial(noam, width=config.model_width, dtype=dtype),
    "initialise": _initialise,
    "random_dropout": lambda config, dtype: lambda x, seed: Dropout(config.dropout_rate, rngs=nnx.Rngs(seed))(x),
}
