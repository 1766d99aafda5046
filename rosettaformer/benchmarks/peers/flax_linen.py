"""The stock layers of Flax Linen: their greedy search with their cache, as in Flax's own translation example."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from reference_numpy import TransformerConfig, parameters
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem
from ..workloads import PADDING

__all__ = ["greedy"]

Array = jax.Array
NAMES = {"output": "out", "scale": "scale", "offset": "bias", "table": "embedding"}


class Layer(nn.Module):
    config: TransformerConfig
    decoder: bool = False

    @nn.compact
    def __call__(self, x: Array, mask: Array | None, memory: Array | None = None, memory_mask: Array | None = None) -> Array:
        config = self.config
        attention = functools.partial(nn.MultiHeadDotProductAttention, config.heads, deterministic=True)
        norm = functools.partial(nn.LayerNorm, epsilon=config.epsilon)
        x = norm(name="self_attention_norm")(x + attention(decode=self.decoder, name="self_attention")(x, mask=mask))
        if self.decoder:
            x = norm(name="cross_attention_norm")(x + attention(name="cross_attention")(x, memory, mask=memory_mask))
        hidden = nn.relu(nn.Dense(config.feed_forward_width, name="hidden")(x))
        return norm(name="feed_forward_norm")(x + nn.Dense(config.model_width, name="out")(hidden))


class Model(nn.Module):
    """The paper's model, of a config whose embeddings are shared and tied."""

    config: TransformerConfig

    def setup(self) -> None:
        config = self.config
        self.embedding = nn.Embed(config.source_vocabulary, config.model_width)
        self.encoder = [Layer(config) for _ in range(config.encoder_layers)]
        self.decoder = [Layer(config, decoder=True) for _ in range(config.decoder_layers)]
        self.bias = self.param("bias", nn.initializers.zeros, (config.target_vocabulary,))

    def encode(self, source: Array, mask: Array) -> Array:
        x = self._embed(source, jnp.arange(source.shape[1]), source.shape[1])
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def step(self, target: Array, position: Array, memory: Array, memory_mask: Array, length: int) -> Array:
        """The logits after these tokens. Linen's layer keeps no keys and values of the memory: they are computed at every step."""
        x = self._embed(target, position, length)
        for layer in self.decoder:
            x = layer(x, None, memory, memory_mask)
        return self.embedding.attend(x) + self.bias

    def _embed(self, token: Array, position: Array, length: int) -> Array:
        x = self.embedding(token) * self.config.model_width**0.5
        return x + jnp.asarray(positional_encoding(np.arange(length), self.config.model_width, x.dtype))[position]


def greedy(problem: Problem) -> Callable[[Array], Array]:
    """One program: the encoder, then a loop of steps."""
    model, strategy, batch, count = Model(problem.config), problem.strategy, problem.task.batch, problem.task.new_tokens
    values = {"params": _parameters(problem)}
    source = jnp.asarray(problem.source)
    memory_mask = jnp.ones((batch, 1, 1, source.shape[1]), bool)
    memory = jnp.zeros((*source.shape, problem.config.model_width))
    whole = jnp.zeros((batch, count), int)  # tells the caches how many tokens there will be
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), whole, jnp.arange(count), memory, memory_mask, count, method=Model.step)["cache"]
    )
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    @jax.jit
    def search(values: Any, source: Array) -> Array:
        mask = (source != PADDING)[:, None, None, :]
        memory = model.apply(values, source, mask, method=Model.encode)

        def body(index: Array, carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
            token_b, found_bn, cache = carry
            logits_btv, changed = model.apply(
                {**values, "cache": cache}, token_b[:, None], index[None], memory, mask, count, method=Model.step, mutable=["cache"]
            )
            barred = jnp.where(index < strategy.min_new_tokens, -jnp.inf, 0.0)
            token_b = jnp.argmax(logits_btv[:, 0].at[:, strategy.end_id].add(barred), axis=-1)
            return token_b, found_bn.at[:, index].set(token_b), changed["cache"]

        start = jnp.full(batch, strategy.start_id), jnp.zeros((batch, count), int), empty
        return jax.lax.fori_loop(0, count, body, start)[1]

    return functools.partial(search, values)


def _parameters(problem: Problem) -> dict[str, Any]:
    """Ours, by Linen's names; axes are the same."""
    tree: Any = parameters.nest(problem.tensors)
    result = {"embedding": {"embedding": jnp.asarray(tree["source_embedding"]["table"])}, "bias": jnp.asarray(tree["logits"]["bias"])}
    for stack in ("encoder", "decoder"):
        for index, layer in tree[stack]["layers"].items():
            parts = {**layer, **layer["feed_forward"]}
            result[f"{stack}_{index}"] = _renamed({name: part for name, part in parts.items() if name != "feed_forward"})
    return result


def _renamed(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): _renamed(value) if isinstance(value, Mapping) else jnp.asarray(value) for name, value in tree.items()}
