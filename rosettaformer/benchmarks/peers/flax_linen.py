"""The stock layers of Flax Linen: their greedy search with their cache, as in Flax's translation example."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from reference_numpy import TransformerConfig, parameters
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem, renamed
from ..workloads import PADDING
from .flax_stock import answer

Array = jax.Array
# parts of our names -> Linen's; axes are the same
NAMES = {
    "source_embedding.table": "embedding.embedding",
    "logits.bias": "bias",
    "coder.layers.": "coder_",
    "feed_forward.": "",
    "output": "out",
    "offset": "bias",
}


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
    """The paper's model with shared embeddings and tied logits."""

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
        """Returns the logits after these tokens. Linen's layer caches no keys and values of the memory: every step computes them."""
        x = self._embed(target, position, length)
        for layer in self.decoder:
            x = layer(x, None, memory, memory_mask)
        return self.embedding.attend(x) + self.bias

    def _embed(self, token: Array, position: Array, length: int) -> Array:
        x = self.embedding(token) * self.config.model_width**0.5
        return x + jnp.asarray(positional_encoding(np.arange(length), self.config.model_width, x.dtype))[position]


def greedy(problem: Problem) -> Callable[[Array], dict[str, Array]]:
    """Builds one program: the encoder, then a loop of steps."""
    model, batch, count = Model(problem.config), problem.task.batch, problem.task.new_tokens
    tensors = {name: jnp.asarray(tensor) for name, tensor in renamed(problem.tensors, NAMES).items()}
    values = {"params": parameters.nest(tensors)}
    source = jnp.asarray(problem.source)
    memory_mask = jnp.ones((batch, 1, 1, source.shape[1]), bool)
    memory = jnp.zeros((*source.shape, problem.config.model_width))
    whole = jnp.zeros((batch, count), int)  # tells the caches the number of tokens
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), whole, jnp.arange(count), memory, memory_mask, count, method=Model.step)["cache"]
    )
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    @jax.jit
    def search(values: Any, source: Array) -> dict[str, Array]:
        mask = (source != PADDING)[:, None, None, :]
        memory = model.apply(values, source, mask, method=Model.encode)

        def step(token_b: Array, position: Array, cache: Any) -> tuple[Array, Any]:
            logits_btv, changed = model.apply(
                {**values, "cache": cache}, token_b[:, None], position[None], memory, mask, count, method=Model.step, mutable=["cache"]
            )
            return logits_btv[:, 0], changed["cache"]

        return answer(problem, step, empty)

    return functools.partial(search, values)
