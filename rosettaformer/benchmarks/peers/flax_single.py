"""BERT's encoder and GPT-2 of the stock layers of Flax NNX, as a user writes them; GPT-2's greedy search with their cache."""

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
TABLE = (
    *layout.renamed(table="embedding", output="out", offset="bias"),
    *(("table", "embedding", f"{rows} d") for rows in "pa"),
)


class Layer(nnx.Module):
    """Post-norm and the exact GELU (BERT), or pre-norm and the approximate one (GPT-2)."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        width, hidden = config.model_width, config.feed_forward_width
        norm = functools.partial(nnx.LayerNorm, width, epsilon=config.epsilon, rngs=rngs)
        self.pre, self.approximate = config.norm_placement == "pre", config.activation == "gelu_tanh"
        self.self_attention = nnx.MultiHeadAttention(config.heads, width, decode=False, rngs=rngs)
        self.self_attention_norm, self.feed_forward_norm = norm(), norm()
        self.feed_forward = nnx.Dict(hidden=nnx.Linear(width, hidden, rngs=rngs), out=nnx.Linear(hidden, width, rngs=rngs))

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
        attention: Any = self.self_attention
        y, length = self.self_attention_norm(x), x.shape[1]
        attention.cached_key[...] = attention.cached_key[...].at[:, :length].set(attention.key(y))
        attention.cached_value[...] = attention.cached_value[...].at[:, :length].set(attention.value(y))
        attention.cache_index[...] = jnp.asarray(length, attention.cache_index[...].dtype)
        return self(x, nnx.make_causal_mask(x[..., 0], dtype=bool))

    def _fed(self, x: Array) -> Array:
        return self.feed_forward.out(nnx.gelu(self.feed_forward.hidden(x), approximate=self.approximate))


class Stack(nnx.Module):
    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(Layer(config, rngs) for _ in range(max(config.encoder_layers, config.decoder_layers)))
        self.final_norm: Any = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, rngs=rngs) if config.final_norm else None


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


class Gpt2(nnx.Module):
    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        embed = functools.partial(nnx.Embed, features=config.model_width, rngs=rngs)
        self.target_embedding, self.target_position_embedding = embed(config.target_vocabulary), embed(config.max_positions)
        self.decoder = Stack(config, rngs)

    def start(self, batch: int, length: int) -> None:
        """Empties the caches."""
        for layer in self.decoder.layers:
            layer.self_attention.init_cache((batch, length, self.target_embedding.features))

    def read(self, prompt: Array) -> Array:
        """Returns the logits after the prompt."""
        x = self.target_embedding(prompt) + self.target_position_embedding(jnp.arange(prompt.shape[1]))
        for layer in self.decoder.layers:
            x = layer.read(x)
        return self._logits(x[:, -1])

    def step(self, token_b: Array, position: Array) -> Array:
        """Returns the logits after one token."""
        x = (self.target_embedding(token_b) + self.target_position_embedding(position))[:, None]
        for layer in self.decoder.layers:
            x = layer(x, step=True)
        return self._logits(x[:, 0])

    def _logits(self, x: Array) -> Array:
        return self.target_embedding.attend(self.decoder.final_norm(x))


def build(problem: Problem) -> Any:
    """Builds the model with the problem's weights."""
    model = (Gpt2 if problem.task.decodes else Bert)(problem.config, nnx.Rngs(0))
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
