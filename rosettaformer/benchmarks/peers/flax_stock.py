"""The stock layers of Flax NNX, their training step as a user writes it and split by hand, and their greedy search with their cache."""

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
from impl_jax.schedule import noam
from reference_numpy import TransformerConfig, layout
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem, optional
from ..timed_rows import Step
from ..workloads import PADDING, START

TABLE = layout.renamed(table="embedding", output="out", offset="bias")
Array = jax.Array


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
        self.feed_forward = nnx.Dict(hidden=nnx.Linear(width, hidden, **kinds), out=nnx.Linear(hidden, width, **kinds))
        self.feed_forward_norm = norm()
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=rngs)

    def __call__(
        self, x: Array, mask: Array | None, memory: Array | None = None, memory_mask: Array | None = None, step: bool = False
    ) -> Array:
        x = self.self_attention_norm(x + self.dropout(self.self_attention(x, mask=mask, decode=step)))
        if self.decoder:
            x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, mask=memory_mask, decode=False)))
        hidden = nnx.relu(self.feed_forward.hidden(x))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward.out(hidden)))


class StockStack(nnx.Module):
    def __init__(self, config: TransformerConfig, count: int, decoder: bool, dtype: Dtype, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(StockLayer(config, decoder, dtype, rngs) for _ in range(count))
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.final_norm = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, **kinds) if config.final_norm else None

    def __call__(self, x: Array, *rest: Any, **keywords: Any) -> Array:
        for layer in self.layers:
            x = layer(x, *rest, **keywords)
        return self.final_norm(x) if self.final_norm else x


class Tied(nnx.Module):
    """The transposed table as the output layer, with a bias, which `nnx.Embed.attend` lacks."""

    def __init__(self, embedding: nnx.Embed, dtype: Dtype) -> None:
        self.embedding, self.bias = embedding, nnx.Param(jnp.zeros(embedding.num_embeddings, dtype))

    def __call__(self, x: Array) -> Array:
        return self.embedding.attend(x) + self.bias[...]


class Stock(nnx.Module):
    """The paper's model from Flax's layers."""

    def __init__(self, config: TransformerConfig, dtype: Dtype, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.config = config
        self.source_embedding = nnx.Embed(config.source_vocabulary, config.model_width, **kinds)
        self.encoder = StockStack(config, config.encoder_layers, False, dtype, rngs)
        self.decoder = StockStack(config, config.decoder_layers, True, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=rngs)
        if config.tie_logits:
            self.target_embedding = self.source_embedding
            self.logits: Any = Tied(self.source_embedding, dtype)
        else:
            self.target_embedding = nnx.Embed(config.target_vocabulary, config.model_width, **kinds)
            self.logits = nnx.Linear(config.model_width, config.target_vocabulary, **kinds)

    def __call__(self, source: Array, target: Array) -> Array:
        source_mask, target_mask = ((token != PADDING)[:, None, None, :] for token in (source, target))
        target_mask &= nnx.make_causal_mask(target, dtype=bool)
        y = self._embed(self.target_embedding, target)
        return self.logits(self.decoder(y, target_mask, self.encode(source), source_mask))

    def encode(self, source: Array) -> Array:
        return self.encoder(self._embed(self.source_embedding, source), (source != PADDING)[:, None, None, :])

    def start(self, batch: int, length: int) -> None:
        """Empties the caches."""
        for layer in self.decoder.layers:
            layer.self_attention.init_cache((batch, length, self.config.model_width), self.source_embedding.dtype)

    def step(self, token_b: Array, position: Array, memory: Array, memory_mask: Array, length: int) -> Array:
        """Returns the logits after one token. Flax's layer caches no keys and values of the memory: every step computes them."""
        x = self.target_embedding(token_b[:, None]) * self.config.model_width**0.5
        x += jnp.asarray(positional_encoding(np.arange(length), self.config.model_width, x.dtype))[position]
        return self.logits(self.decoder(x, None, memory, memory_mask, step=True))[:, 0]

    def _embed(self, embedding: nnx.Embed, token: Array) -> Array:
        x = embedding(token) * self.config.model_width**0.5
        return self.dropout(x + positional_encoding(np.arange(token.shape[1]), self.config.model_width, x.dtype))


def build(problem: Problem, dtype: Dtype = jnp.float32) -> Stock:
    """Builds the model with the problem's weights."""
    stock = Stock(problem.config, dtype, nnx.Rngs(0))
    tensors = {name: tensor.astype(dtype) for name, tensor in problem.tensors.items()}
    weights.load(stock, tensors, problem.config, table=TABLE)
    return stock


def split_by_hand(stock: Stock, method: str = "__call__") -> Callable[..., Array]:
    """Splits the module once, like `compiled`: `nnx.jit` would walk it at every call."""
    graph, state = nnx.split(stock)
    return functools.partial(jax.jit(lambda state, *tokens: getattr(nnx.merge(graph, state), method)(*tokens)), state)


def walked_training(build: Callable[[Problem], Any], problem: Problem) -> Step:
    """Trains by `nnx.jit` and `nnx.Optimizer`."""
    stock, (source, target) = _to_train(build, problem), _batch(problem)
    optimizer = nnx.Optimizer(stock, _adam(problem), wrt=nnx.Param)

    def loss(stock: Any, source: Array | None, target: Array) -> Array:
        return _loss(stock(source, target[:, :-1]), target[:, 1:], problem.recipe.smoothing)

    @nnx.jit
    def step(stock: Any, optimizer: nnx.Optimizer, source: Array | None, target: Array) -> Array:
        value, gradients = nnx.value_and_grad(loss)(stock, source, target)
        optimizer.update(stock, gradients)
        return value

    return lambda: step(stock, optimizer, source, target)


def split_training(build: Callable[[Problem], Any], problem: Problem) -> Step:
    """Trains a module that is split once, with everything that changes donated."""
    (source, target), optimizer = _batch(problem), _adam(problem)
    graph, parameters, *others = nnx.split(_to_train(build, problem), nnx.Param, ...)
    state = [parameters, others[0], jax.jit(optimizer.init)(parameters)]

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: list[Any], source: Array | None, target: Array) -> tuple[list[Any], Array]:
        parameters, rest, moments = state

        def loss(parameters: nnx.State) -> tuple[Array, nnx.State]:
            model = nnx.merge(graph, parameters, rest, copy=True)
            value = _loss(model(source, target[:, :-1]), target[:, 1:], problem.recipe.smoothing)
            return value, nnx.state(model, nnx.Not(nnx.Param))

        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return [optax.apply_updates(parameters, updates), rest, moments], value

    def run() -> Array:
        nonlocal state
        state, loss = step(state, source, target)
        return loss

    return run


def _to_train(build: Callable[[Problem], Any], problem: Problem) -> Any:
    stock = build(problem)
    stock.train()
    return stock


def _batch(problem: Problem) -> tuple[Array | None, Array]:
    return optional(jnp.asarray)(problem.encoded), jnp.asarray(problem.sequence)


def _adam(problem: Problem) -> optax.GradientTransformationExtraArgs:
    width, recipe = problem.config.model_width, problem.recipe
    return optax.adam(lambda done: noam(done + 1, width, recipe.warmup), recipe.beta_1, recipe.beta_2, recipe.epsilon)


def _loss(logits: Array, label: Array, smoothing: float) -> Array:
    smoothed, counted = optax.smooth_labels(jax.nn.one_hot(label, logits.shape[-1]), smoothing), label != PADDING
    losses = optax.softmax_cross_entropy(logits, smoothed)
    return jnp.sum(losses, where=counted) / counted.sum()


def greedy(problem: Problem) -> Callable[[Array], dict[str, Array]]:
    """Builds one program: the encoder, then a loop of steps with Flax's cache."""
    stock, strategy = build(problem), problem.strategy
    stock.eval()
    stock.start(problem.task.batch, strategy.max_new_tokens)
    graph, *states = nnx.split(stock, nnx.Param, nnx.Cache, ...)
    parameters, caches, *rest = states

    @jax.jit
    def search(parameters: nnx.State, caches: nnx.State, source: Array) -> dict[str, Array]:
        memory = nnx.merge(graph, parameters, caches, *rest).encode(source)
        memory_mask = (source != PADDING)[:, None, None, :]

        def step(token_b: Array, count: Array, caches: nnx.State) -> tuple[Array, nnx.State]:
            model = nnx.merge(graph, parameters, caches, *rest, copy=True)
            logits_bv = model.step(token_b, count, memory, memory_mask, strategy.max_new_tokens)
            return logits_bv, nnx.state(model, nnx.Cache)

        return answer(problem, step, caches)

    return functools.partial(search, parameters, caches)


def answer(
    problem: Problem, step: Callable[[Array, Array, Any], tuple[Array, Any]], caches: Any, first_bv: Array | None = None
) -> dict[str, Array]:
    """Returns the tokens of a greedy search. step: (token, number of tokens before it, caches) -> (logits after it, caches).

    first_bv: the logits of the first token, if a prompt is already read; the number of tokens before one then counts answer tokens only.
    """
    strategy, batch = problem.strategy, problem.task.batch

    def chosen(logits_bv: Array, count: Any) -> Array:
        barred = jnp.where(count < strategy.min_new_tokens, -jnp.inf, 0.0)
        return jnp.argmax(logits_bv.at[:, strategy.end_id].add(barred), axis=-1)

    def body(count: Array, carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        token_b, found_bn, caches = carry
        logits_bv, caches = step(token_b, count, caches)
        token_b = chosen(logits_bv, count)
        return token_b, found_bn.at[:, count].set(token_b), caches

    token_b = jnp.full(batch, START) if first_bv is None else chosen(first_bv, 0)
    found_bn = jnp.zeros((batch, strategy.max_new_tokens), int).at[:, 0].set(token_b)
    start = int(first_bv is not None)
    return {"token_bn": jax.lax.fori_loop(start, strategy.max_new_tokens, body, (token_b, found_bn, caches))[1]}
