"""impl_jax beside the stock layers of Flax NNX."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype

from impl_jax import weights
from impl_jax.compiled import compiled
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig, layout
from reference_numpy.positional_encoding import positional_encoding

from .measure import PRECISIONS, Row
from .problem import LENGTH, PADDING, Problem

__all__ = ["describe", "rows"]

TABLE: layout.Table = (
    ("table", "embedding", "v d"),
    ("query.kernel", "query.kernel", "d h k"),
    ("query.bias", "query.bias", "h k"),
    ("key.kernel", "key.kernel", "d g k"),
    ("key.bias", "key.bias", "g k"),
    ("value.kernel", "value.kernel", "d g e"),
    ("value.bias", "value.bias", "g e"),
    ("output.kernel", "out.kernel", "h e d"),
    ("output.bias", "out.bias", "d"),
    ("feed_forward.hidden.kernel", "feed_forward.layers.0.kernel", "d f"),
    ("feed_forward.hidden.bias", "feed_forward.layers.0.bias", "f"),
    ("feed_forward.output.kernel", "feed_forward.layers.2.kernel", "f d"),
    ("feed_forward.output.bias", "feed_forward.layers.2.bias", "d"),
    ("scale", "scale", "d"),
    ("offset", "bias", "d"),
    ("kernel", "kernel", "d v"),
    ("bias", "bias", "v"),
)


class StockLayer(nnx.Module):
    def __init__(self, config: TransformerConfig, decoder: bool, dtype: Dtype, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        width, hidden = config.model_width, config.feed_forward_width
        attention = functools.partial(nnx.MultiHeadAttention, config.heads, width, decode=False, **kinds)
        norm = functools.partial(nnx.LayerNorm, width, epsilon=config.epsilon, **kinds)
        self.decoder = decoder
        self.self_attention, self.self_attention_norm = attention(), norm()
        if decoder:
            self.cross_attention, self.cross_attention_norm = attention(), norm()
        self.feed_forward = nnx.Sequential(nnx.Linear(width, hidden, **kinds), nnx.relu, nnx.Linear(hidden, width, **kinds))
        self.feed_forward_norm = norm()

    def __call__(self, x: jax.Array, mask: jax.Array, memory: jax.Array | None = None, memory_mask: jax.Array | None = None) -> jax.Array:
        x = self.self_attention_norm(x + self.self_attention(x, mask=mask))
        if self.decoder:
            x = self.cross_attention_norm(x + self.cross_attention(x, memory, mask=memory_mask))
        return self.feed_forward_norm(x + self.feed_forward(x))


class StockStack(nnx.Module):
    def __init__(self, config: TransformerConfig, count: int, decoder: bool, dtype: Dtype, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(StockLayer(config, decoder, dtype, rngs) for _ in range(count))
        self.final_norm = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, memory: jax.Array | None = None, memory_mask: jax.Array | None = None) -> jax.Array:
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)
        return self.final_norm(x)


class Stock(nnx.Module):
    """The paper's model from Flax's layers."""

    def __init__(self, config: TransformerConfig, dtype: Dtype, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.config = config
        self.source_embedding = nnx.Embed(config.source_vocabulary, config.model_width, **kinds)
        self.target_embedding = nnx.Embed(config.target_vocabulary, config.model_width, **kinds)
        self.encoder = StockStack(config, config.encoder_layers, False, dtype, rngs)
        self.decoder = StockStack(config, config.decoder_layers, True, dtype, rngs)
        self.logits = nnx.Linear(config.model_width, config.target_vocabulary, **kinds)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        source_mask, target_mask = ((token != PADDING)[:, None, None, :] for token in (source, target))
        target_mask &= nnx.make_causal_mask(target, dtype=bool)
        memory = self.encoder(self._embed(self.source_embedding, source), source_mask)
        return self.logits(self.decoder(self._embed(self.target_embedding, target), target_mask, memory, source_mask))

    def _embed(self, embedding: nnx.Embed, token: jax.Array) -> jax.Array:
        x = embedding(token) * self.config.model_width**0.5
        return x + positional_encoding(np.arange(LENGTH), self.config.model_width, x.dtype)


def rows(problem: Problem, device: str) -> list[Row]:
    """Ours and stock, compiled, in every precision of the device. Raises ValueError where there is no such device."""
    where = _device(device)
    result: list[Row] = []
    for precision in PRECISIONS[device]:
        dtype = jnp.dtype(jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
        tensors = {name: tensor.astype(dtype) for name, tensor in problem.tensors.items()}
        with jax.default_device(where):
            ours, stock = Transformer(problem.config, param_dtype=dtype, rngs=nnx.Rngs(0)), Stock(problem.config, dtype, nnx.Rngs(0))
            weights.load(ours, tensors, problem.config)
            weights.load(stock, tensors, problem.config, table=TABLE)
            ours.eval()
            row = functools.partial(_row, problem, where, precision)
            walked = functools.partial(nnx.jit(lambda model, source, target: model(source, target)), stock)
            result += [
                row("impl_jax compiled", compiled(ours)),
                row("flax.nnx compiled, nnx.jit", walked, stock=True),
                row("flax.nnx compiled, split by hand", _stock_compiled(stock), stock=True),
            ]
    return result


def describe(device: str) -> str:
    """The device."""
    where = _device(device)
    return "one thread a core" if device == "cpu" else where.device_kind


def _device(name: str) -> jax.Device:
    try:
        return jax.devices(name)[0]
    except RuntimeError:
        raise ValueError(f"device {name} needs a {name} backend; JAX has {jax.default_backend()}") from None


def _stock_compiled(stock: Stock) -> Callable[..., jax.Array]:
    """Split once, as in `compiled`: `nnx.jit` would walk the module at every call."""
    graph, state = nnx.split(stock)
    return functools.partial(jax.jit(lambda state, source, target: nnx.merge(graph, state)(source, target)), state)


def _row(problem: Problem, device: jax.Device, precision: str, name: str, function: Callable[..., jax.Array], stock: bool = False) -> Row:
    source, target = jnp.asarray(problem.source), jnp.asarray(problem.target)
    products = "tensorfloat32" if precision == "tf32" else "highest"

    def call() -> jax.Array:
        with jax.default_device(device), jax.default_matmul_precision(products):
            return function(source, target).block_until_ready()

    return Row("jax", name, call, lambda logits: np.asarray(logits, np.float32), precision, stock, compiles=True)
