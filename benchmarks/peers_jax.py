"""impl_jax beside the stock layers of Flax NNX."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.typing import Dtype

from impl_jax import weights
from impl_jax.compiled import compiled
from impl_jax.schedule import noam
from impl_jax.training import Trainer
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig, layout
from reference_numpy.positional_encoding import positional_encoding

from .measure import LOSS_BOUNDS, PRECISIONS, Row, Step, training_row
from .problem import LENGTH, PADDING, VOCABULARY, Problem

__all__ = ["describe", "rows", "training_rows"]

PRODUCTS = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "highest"}
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
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, memory: jax.Array | None = None, memory_mask: jax.Array | None = None) -> jax.Array:
        x = self.self_attention_norm(x + self.dropout(self.self_attention(x, mask=mask)))
        if self.decoder:
            x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, mask=memory_mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


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
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=rngs)
        self.logits = nnx.Linear(config.model_width, config.target_vocabulary, **kinds)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        source_mask, target_mask = ((token != PADDING)[:, None, None, :] for token in (source, target))
        target_mask &= nnx.make_causal_mask(target, dtype=bool)
        memory = self.encoder(self._embed(self.source_embedding, source), source_mask)
        return self.logits(self.decoder(self._embed(self.target_embedding, target), target_mask, memory, source_mask))

    def _embed(self, embedding: nnx.Embed, token: jax.Array) -> jax.Array:
        x = embedding(token) * self.config.model_width**0.5
        return self.dropout(x + positional_encoding(np.arange(LENGTH), self.config.model_width, x.dtype))


def rows(problem: Problem, device: str) -> list[Row]:
    """Ours and stock, compiled, in every precision of the device."""
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
            stock.eval()
            row = functools.partial(_row, problem, where, precision)
            walked = functools.partial(nnx.jit(lambda model, source, target: model(source, target)), stock)
            result += [
                row("impl_jax compiled", compiled(ours)),
                row("flax.nnx compiled, nnx.jit", walked, stock=True),
                row("flax.nnx compiled, split by hand", _stock_compiled(stock), stock=True),
            ]
    return result


def training_rows(problem: Problem, device: str) -> list[Row]:
    """Ours and stock, compiled, in every precision of the device in which float32 parameters are trained."""
    result = []
    for precision in (precision for precision in PRECISIONS[device] if precision in LOSS_BOUNDS):
        place = _device(device), PRODUCTS[precision]
        row = functools.partial(training_row, task=problem, precision=precision, compiles=True)
        trainer = functools.partial(_trainer, "cuda-tf32" if precision == "tf32" else device)
        result += [
            row("jax", "impl_jax compiled", trainer),
            row("jax", "flax.nnx compiled, nnx.jit", functools.partial(_walked_training, *place), stock=True),
            row("jax", "flax.nnx compiled, split by hand", functools.partial(_split_training, *place), stock=True),
        ]
    return result


def describe(device: str) -> str:
    """The device. Raises ValueError where there is no such device."""
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

    def call() -> jax.Array:
        with jax.default_device(device), jax.default_matmul_precision(PRODUCTS[precision]):
            return function(source, target).block_until_ready()

    return Row("jax", name, call, lambda logits: np.asarray(logits, np.float32), precision, stock, compiles=True)


def _trainer(device: str, problem: Problem) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors, device=device)
    return lambda: trainer.train_step(problem.source, problem.sequence)


def _walked_training(device: jax.Device, products: str, problem: Problem) -> Step:
    """The step as a user of Flax writes it."""
    with jax.default_device(device):
        stock, source, target = _stock_to_train(problem)
        optimizer = nnx.Optimizer(stock, _adam(problem), wrt=nnx.Param)

    @nnx.jit
    def step(stock: Stock, optimizer: nnx.Optimizer, source: jax.Array, target: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(_loss)(stock, source, target, problem.recipe.smoothing)
        optimizer.update(stock, gradients)
        return loss

    def run() -> jax.Array:
        with jax.default_device(device), jax.default_matmul_precision(products):
            return step(stock, optimizer, source, target)

    return run


def _split_training(device: jax.Device, products: str, problem: Problem) -> Step:
    """Split once, with all that changes donated."""
    with jax.default_device(device):
        stock, source, target = _stock_to_train(problem)
        optimizer = _adam(problem)
        graph, *state = nnx.split(stock, nnx.Param, ...)
        state.append(jax.jit(optimizer.init)(state[0]))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: list[Any], source: jax.Array, target: jax.Array) -> tuple[list[Any], jax.Array]:
        parameters, random, moments = state

        def loss(parameters: nnx.State) -> tuple[jax.Array, nnx.State]:
            model = nnx.merge(graph, parameters, random, copy=True)
            return _loss(model, source, target, problem.recipe.smoothing), nnx.state(model, nnx.Not(nnx.Param))

        (value, random), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return [optax.apply_updates(parameters, updates), random, moments], value

    def run() -> jax.Array:
        nonlocal state
        with jax.default_device(device), jax.default_matmul_precision(products):
            state, loss = step(state, source, target)
        return loss

    return run


def _stock_to_train(problem: Problem) -> tuple[Stock, jax.Array, jax.Array]:
    stock = Stock(problem.config, jnp.float32, nnx.Rngs(0))
    weights.load(stock, problem.tensors, problem.config, table=TABLE)
    stock.train()
    return stock, jnp.asarray(problem.source), jnp.asarray(problem.sequence)


def _adam(problem: Problem) -> optax.GradientTransformationExtraArgs:
    width, recipe = problem.config.model_width, problem.recipe
    return optax.adam(lambda done: noam(done + 1, width, recipe.warmup), recipe.beta_1, recipe.beta_2, recipe.epsilon)


def _loss(stock: Stock, source: jax.Array, target: jax.Array, smoothing: float) -> jax.Array:
    label = target[:, 1:]
    smoothed, counted = optax.smooth_labels(jax.nn.one_hot(label, VOCABULARY), smoothing), label != PADDING
    losses = optax.softmax_cross_entropy(stock(source, target[:, :-1]), smoothed)
    return jnp.sum(losses, where=counted) / counted.sum()
