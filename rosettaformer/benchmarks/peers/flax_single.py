"""BERT's encoder, GPT-2 and Llama of the stock layers of Flax NNX, as a user writes them; a decoder's greedy search with a cache."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from impl_jax import weights
from reference_numpy import TransformerConfig, layout

from ..problem import Problem
from ..workloads import PADDING
from .flax_stock import answer

Array = jax.Array
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_erf": functools.partial(nnx.gelu, approximate=False), "gelu_tanh": nnx.gelu, "silu": nnx.silu,
}  # fmt: skip
TABLE = (
    *layout.renamed(table="embedding", output="out", offset="bias"),
    *(("table", "embedding", f"{rows} d") for rows in "pa"),
)


class RotaryAttention(nnx.Module):
    """Grouped heads with rotary positions by halves, which `nnx.MultiHeadAttention` lacks, and a cache like its own."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        linear = functools.partial(nnx.LinearGeneral, use_bias=False, rngs=rngs)
        width, heads, groups = config.model_width, (config.heads, config.key_size), (config.key_value_heads, config.key_size)
        self.query, self.key, self.value = linear(width, heads), linear(width, groups), linear(width, groups)
        self.out = linear(heads, width, axis=(-2, -1))
        self.groups, self.base = groups, config.rotary_base
        self.cached_key: Any = nnx.data(None)
        self.cached_value: Any = nnx.data(None)
        self.cache_index: Any = nnx.data(None)

    def init_cache(self, shape: tuple[int, int, int]) -> None:
        empty = jnp.zeros((*shape[:2], *self.groups))
        self.cached_key, self.cached_value, self.cache_index = nnx.Cache(empty), nnx.Cache(empty), nnx.Cache(jnp.array(0))

    def __call__(self, x: Array, mask: Array | None = None, decode: bool = False) -> Array:
        """decode: x follows the tokens in the cache, into which its keys and values go."""
        start = self.cache_index[...] if decode else 0
        position = start + jnp.arange(x.shape[1])
        query, key, value = self._rotated(self.query(x), position), self._rotated(self.key(x), position), self.value(x)
        if decode:
            key = jax.lax.dynamic_update_slice(self.cached_key[...], key, (0, start, 0, 0))
            value = jax.lax.dynamic_update_slice(self.cached_value[...], value, (0, start, 0, 0))
            self.cached_key[...], self.cached_value[...], self.cache_index[...] = key, value, start + x.shape[1]
            mask = (jnp.arange(key.shape[1]) <= position[:, None])[None, None]
        return self.out(nnx.dot_product_attention(query, key, value, mask=mask))

    def _rotated(self, x: Array, position: Array) -> Array:
        half = x.shape[-1] // 2
        angle = position[:, None, None] * self.base ** (-jnp.arange(half) / half)
        cosine, sine, (first, second) = jnp.cos(angle), jnp.sin(angle), jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


class Layer(nnx.Module):
    """Post-norm and the exact GELU (BERT), or pre-norm and the approximate one (GPT-2) or a gate of SiLU (Llama)."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        width, hidden = config.model_width, config.feed_forward_width
        linear = functools.partial(nnx.Linear, use_bias=config.feed_forward_bias, rngs=rngs)
        self.pre, self.activation = config.norm_placement == "pre", ACTIVATIONS[config.activation]
        self.rotary, self.gated = config.positions == "rotary", config.gated_feed_forward
        self.self_attention: Any = (
            RotaryAttention(config, rngs) if self.rotary else nnx.MultiHeadAttention(config.heads, width, decode=False, rngs=rngs)
        )
        self.self_attention_norm, self.feed_forward_norm = _norm(config, rngs), _norm(config, rngs)
        self.feed_forward = nnx.Dict(hidden=linear(width, hidden), out=linear(hidden, width))
        if self.gated:
            self.feed_forward["gate"] = linear(width, hidden)

    def __call__(self, x: Array, mask: Array | None = None, step: bool = False) -> Array:
        """step: x is one token, whose key and value go into the cache."""
        attend = functools.partial(self.self_attention, mask=mask, decode=step)
        if self.pre:
            x = x + attend(self.self_attention_norm(x))
            return x + self._fed(self.feed_forward_norm(x))
        x = self.self_attention_norm(x + attend(x))
        return self.feed_forward_norm(x + self._fed(x))

    def read(self, x: Array) -> Array:
        """Reads a whole prompt and writes its keys and values into the cache: in its cached mode Flax's layer takes one token at a time."""
        if self.rotary:
            return self(x, step=True)
        attention = self.self_attention
        y, length = self.self_attention_norm(x), x.shape[1]
        attention.cached_key[...] = attention.cached_key[...].at[:, :length].set(attention.key(y))
        attention.cached_value[...] = attention.cached_value[...].at[:, :length].set(attention.value(y))
        attention.cache_index[...] = jnp.asarray(length, attention.cache_index[...].dtype)
        return self(x, nnx.make_causal_mask(x[..., 0], dtype=bool))

    def _fed(self, x: Array) -> Array:
        part = self.feed_forward
        return part.out(self.activation(part.gate(x)) * part.hidden(x) if self.gated else self.activation(part.hidden(x)))


def _norm(config: TransformerConfig, rngs: nnx.Rngs) -> Any:
    return (nnx.RMSNorm if config.norm == "rms" else nnx.LayerNorm)(config.model_width, epsilon=config.epsilon, rngs=rngs)


class Stack(nnx.Module):
    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(Layer(config, rngs) for _ in range(max(config.encoder_layers, config.decoder_layers)))
        self.final_norm: Any = _norm(config, rngs) if config.final_norm else None


class Bert(nnx.Module):
    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        embed = functools.partial(nnx.Embed, features=config.model_width, rngs=rngs)
        self.source_embedding = embed(config.source_vocabulary)
        self.source_position_embedding, self.source_segment_embedding = embed(config.max_positions), embed(config.segments)
        self.source_embedding_norm = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, rngs=rngs)
        self.encoder = Stack(config, rngs)

    def encode(self, source: Array) -> Array:
        position = self.source_position_embedding(jnp.arange(source.shape[1]))
        x = self.source_embedding(source) + position + self.source_segment_embedding(jnp.zeros_like(source))
        x, mask = self.source_embedding_norm(x), (source != PADDING)[:, None, None, :]
        for layer in self.encoder.layers:
            x = layer(x, mask)
        return x


class Decoder(nnx.Module):
    """GPT-2 with its learned positions, or Llama."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        embed = functools.partial(nnx.Embed, features=config.model_width, rngs=rngs)
        self.target_embedding = embed(config.target_vocabulary)
        self.target_position_embedding: Any = embed(config.max_positions) if config.positions == "learned" else None
        self.decoder = Stack(config, rngs)

    def __call__(self, source: None, target: Array) -> Array:
        x, mask = self._embed(target, jnp.arange(target.shape[1])), nnx.make_causal_mask(target, dtype=bool)
        for layer in self.decoder.layers:
            x = layer(x, mask)
        return self._logits(x)

    def start(self, batch: int, length: int) -> None:
        """Empties the caches."""
        for layer in self.decoder.layers:
            layer.self_attention.init_cache((batch, length, self.target_embedding.features))

    def read(self, prompt: Array) -> Array:
        """Returns the logits after the prompt."""
        x = self._embed(prompt, jnp.arange(prompt.shape[1]))
        for layer in self.decoder.layers:
            x = layer.read(x)
        return self._logits(x[:, -1])

    def step(self, token_b: Array, position: Array) -> Array:
        """Returns the logits after one token."""
        x = self._embed(token_b, position)[:, None]
        for layer in self.decoder.layers:
            x = layer(x, step=True)
        return self._logits(x[:, 0])

    def _embed(self, token: Array, position: Array) -> Array:
        x = self.target_embedding(token)
        return x + self.target_position_embedding(position) if self.target_position_embedding else x

    def _logits(self, x: Array) -> Array:
        return self.target_embedding.attend(self.decoder.final_norm(x))


def build(problem: Problem) -> Any:
    """Builds the model with the problem's weights."""
    model = (Decoder if problem.config.decoder_layers else Bert)(problem.config, nnx.Rngs(0))
    weights.load(model, problem.tensors, problem.config, table=TABLE)
    return model


def greedy(problem: Problem) -> Callable[[Array], dict[str, Array]]:
    """Builds one program: the whole prompt at once, then a loop of steps with Flax's cache."""
    model, length = build(problem), problem.task.length
    model.eval()
    model.start(problem.task.batch, length + problem.task.new_tokens - 1)
    graph, *states = nnx.split(model, nnx.Param, nnx.Cache, ...)
    parameters, caches, *rest = states

    @jax.jit
    def search(parameters: nnx.State, caches: nnx.State, prompt: Array) -> dict[str, Array]:
        model = nnx.merge(graph, parameters, caches, *rest, copy=True)
        first_bv = model.read(prompt)

        def step(token_b: Array, count: Array, caches: nnx.State) -> tuple[Array, nnx.State]:
            model = nnx.merge(graph, parameters, caches, *rest, copy=True)
            logits_bv = model.step(token_b, length + count - 1)
            return logits_bv, nnx.state(model, nnx.Cache)

        return answer(problem, step, nnx.state(model, nnx.Cache), first_bv)

    return functools.partial(search, parameters, caches)
