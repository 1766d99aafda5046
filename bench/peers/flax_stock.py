"""Models from Flax NNX's stock layers, as users write them: the paper's, BERT, GPT-2, Llama, Mixtral.

Training steps use `nnx.jit`, or `nnx.split` once; greedy search uses the layers' caches.
"""

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

Array = jax.Array
Kinds = dict[str, Any]  # every part's dtypes and random generators
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nnx.relu, "gelu_erf": functools.partial(nnx.gelu, approximate=False), "gelu_tanh": nnx.gelu, "silu": nnx.silu,
}  # fmt: skip
TABLE = (
    *layout.renamed(table="embedding", output="out", offset="bias"),
    *(("table", "embedding", f"{rows} d") for rows in "pa"),
)


class RotaryAttention(nnx.Module):
    """Grouped-query attention with RoPE, which `nnx.MultiHeadAttention` lacks, and a cache."""

    def __init__(self, config: TransformerConfig, kinds: Kinds) -> None:
        linear: Any = functools.partial(nnx.LinearGeneral, use_bias=False, **kinds)
        width, heads, groups = config.model_width, (config.heads, config.key_size), (config.key_value_heads, config.key_size)
        self.query, self.key, self.value = linear(width, heads), linear(width, groups), linear(width, groups)
        self.out = linear(heads, width, axis=(-2, -1))
        self.groups, self.base = groups, config.rotary_base
        self.cached_key: Any = nnx.data(None)
        self.cached_value: Any = nnx.data(None)
        self.cache_index: Any = nnx.data(None)

    def init_cache(self, shape: tuple[int, int, int], dtype: Dtype) -> None:
        empty = jnp.zeros((*shape[:2], *self.groups), dtype)
        self.cached_key, self.cached_value, self.cache_index = nnx.Cache(empty), nnx.Cache(empty), nnx.Cache(jnp.array(0))

    def __call__(self, x: Array, mask: Array | None = None, decode: bool = False) -> Array:
        """decode: x continues the cached tokens and is added to the cache."""
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


class Experts(nnx.Module):
    """A plain loop over experts, each for all tokens."""

    def __init__(self, config: TransformerConfig, kinds: Kinds) -> None:
        linear: Any = functools.partial(nnx.Linear, use_bias=False, **kinds)
        width, hidden, self.chosen = config.model_width, config.expert_width, config.experts_per_token
        self.router, self.activation = linear(width, config.experts), ACTIVATIONS[config.activation]
        sizes = {"gate": (width, hidden), "hidden": (width, hidden), "out": (hidden, width)}
        self.experts = nnx.Dict({name: Kernels((config.experts, *size), kinds) for name, size in sizes.items()})

    def __call__(self, x: Array) -> Array:
        weight, index = jax.lax.top_k(nnx.softmax(self.router(x)), self.chosen)
        weight /= weight.sum(-1, keepdims=True)
        y, count = jnp.zeros_like(x), self.router.out_features
        for expert in range(count):
            gate, hidden, out = (self.experts[name].kernel[...][expert] for name in ("gate", "hidden", "out"))
            own = jnp.where(index == expert, weight, 0).sum(-1, keepdims=True)
            y += own * ((self.activation(x @ gate) * (x @ hidden)) @ out)
        return y


class Kernels(nnx.Module):
    def __init__(self, shape: tuple[int, int, int], kinds: Kinds) -> None:
        self.kernel = nnx.Param(jnp.zeros(shape, kinds["param_dtype"]))


def _norm(config: TransformerConfig, kinds: Kinds) -> Any:
    return (nnx.RMSNorm if config.norm == "rms" else nnx.LayerNorm)(config.model_width, epsilon=config.epsilon, **kinds)


class Layer(nnx.Module):
    """Post-norm with ReLU (the paper) or GELU (BERT); pre-norm with GELU (GPT-2) or SwiGLU (Llama)."""

    def __init__(self, config: TransformerConfig, crosses: bool, kinds: Kinds) -> None:
        width, hidden = config.model_width, config.feed_forward_width
        linear: Any = functools.partial(nnx.Linear, use_bias=config.feed_forward_bias, **kinds)
        attention = functools.partial(nnx.MultiHeadAttention, config.heads, width, decode=False, **kinds)
        self.activation, self.pre = ACTIVATIONS[config.activation], config.norm_placement == "pre"
        self.crosses = crosses
        self.rotary, self.gated = config.positions == "rotary", config.gated_feed_forward
        self.self_attention: Any = RotaryAttention(config, kinds) if self.rotary else attention()
        self.self_attention_norm, self.feed_forward_norm = _norm(config, kinds), _norm(config, kinds)
        if crosses:
            self.cross_attention, self.cross_attention_norm = attention(), _norm(config, kinds)
        self.feed_forward: Any = nnx.Dict(hidden=linear(width, hidden), out=linear(hidden, width))
        if config.experts:
            self.feed_forward = Experts(config, kinds)
        elif self.gated:
            self.feed_forward["gate"] = linear(width, hidden)
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=kinds["rngs"])

    def __call__(self, x: Array, mask: Any = None, *crossed: Any, step: bool = False) -> Array:
        """crossed: the memory and its mask. step: x is one token, which is cached."""
        attend = functools.partial(self.self_attention, mask=mask, decode=step)
        x = self._added(x, self.self_attention_norm, attend)
        if self.crosses:
            memory, mask = crossed
            attend = functools.partial(self.cross_attention, inputs_k=memory, mask=mask, decode=False)
            x = self._added(x, self.cross_attention_norm, attend)
        return self._added(x, self.feed_forward_norm, self._fed)

    def read(self, x: Array) -> Array:
        """Caches a whole prompt's keys and values. Flax's decode mode takes one token per call."""
        if self.rotary:
            return self(x, step=True)
        attention = self.self_attention
        y, length = self.self_attention_norm(x), x.shape[1]
        attention.cached_key[...] = attention.cached_key[...].at[:, :length].set(attention.key(y))
        attention.cached_value[...] = attention.cached_value[...].at[:, :length].set(attention.value(y))
        attention.cache_index[...] = jnp.asarray(length, attention.cache_index[...].dtype)
        return self(x, nnx.make_causal_mask(x[..., 0], dtype=bool))

    def _added(self, x: Array, norm: Callable[[Array], Array], part: Callable[[Array], Array]) -> Array:
        return x + self.dropout(part(norm(x))) if self.pre else norm(x + self.dropout(part(x)))

    def _fed(self, x: Array) -> Array:
        part = self.feed_forward
        if isinstance(part, Experts):
            return part(x)
        return part.out(self.activation(part.gate(x)) * part.hidden(x) if self.gated else self.activation(part.hidden(x)))


class Stack(nnx.Module):
    def __init__(self, config: TransformerConfig, count: int, crosses: bool, kinds: Kinds) -> None:
        self.layers = nnx.List(Layer(config, crosses, kinds) for _ in range(count))
        self.final_norm: Any = _norm(config, kinds) if config.final_norm else None

    def __call__(self, x: Array, *rest: Any, reads: bool = False, **keywords: Any) -> Array:
        for layer in self.layers:
            x = layer.read(x) if reads else layer(x, *rest, **keywords)
        return self.final_norm(x) if self.final_norm else x

    def start(self, *shape: int, dtype: Dtype) -> None:
        """Empties the caches."""
        for layer in self.layers:
            layer.self_attention.init_cache(shape, dtype)


class Tied(nnx.Module):
    """The tied output layer with a bias, which `nnx.Embed.attend` lacks."""

    def __init__(self, embedding: nnx.Embed, dtype: Dtype) -> None:
        self.embedding, self.bias = embedding, nnx.Param(jnp.zeros(embedding.num_embeddings, dtype))

    def __call__(self, x: Array) -> Array:
        return self.embedding.attend(x) + self.bias[...]


class Stock(nnx.Module):
    """The paper's model."""

    def __init__(self, config: TransformerConfig, kinds: Kinds) -> None:
        self.config = config
        self.source_embedding = nnx.Embed(config.source_vocabulary, config.model_width, **kinds)
        self.encoder = Stack(config, config.encoder_layers, False, kinds)
        self.decoder = Stack(config, config.decoder_layers, True, kinds)
        self.dropout = nnx.Dropout(config.dropout_rate, rngs=kinds["rngs"])
        if config.tie_logits:
            self.target_embedding = self.source_embedding
            self.logits: Any = Tied(self.source_embedding, kinds["dtype"])
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

    def start(self, problem: Problem) -> None:
        self.room, width = problem.task.new_tokens, self.config.model_width
        self.decoder.start(problem.task.batch, self.room, width, dtype=self.source_embedding.dtype)

    def prompted(self, source: Array) -> tuple[tuple[Array, ...], None]:
        """Returns the inputs of every step, and no logits, since there is no prompt."""
        return (self.encode(source), (source != PADDING)[:, None, None, :]), None

    def step(self, token_b: Array, count: Array, memory: Array, memory_mask: Array) -> Array:
        """Returns the logits after one token. Flax's layer does not cache the memory's keys."""
        x = self.target_embedding(token_b[:, None]) * self.config.model_width**0.5
        x += jnp.asarray(positional_encoding(np.arange(self.room), self.config.model_width, x.dtype))[count]
        return self.logits(self.decoder(x, None, memory, memory_mask, step=True))[:, 0]

    def _embed(self, embedding: nnx.Embed, token: Array) -> Array:
        x = embedding(token) * self.config.model_width**0.5
        return self.dropout(x + positional_encoding(np.arange(token.shape[1]), self.config.model_width, x.dtype))


class Bert(nnx.Module):
    def __init__(self, config: TransformerConfig, kinds: Kinds) -> None:
        embed: Any = functools.partial(nnx.Embed, features=config.model_width, **kinds)
        self.source_embedding = embed(config.source_vocabulary)
        self.source_position_embedding, self.source_segment_embedding = embed(config.max_positions), embed(config.segments)
        self.source_embedding_norm = _norm(config, kinds)
        self.encoder = Stack(config, config.encoder_layers, False, kinds)

    def encode(self, source: Array) -> Array:
        position = self.source_position_embedding(jnp.arange(source.shape[1]))
        x = self.source_embedding(source) + position + self.source_segment_embedding(jnp.zeros_like(source))
        return self.encoder(self.source_embedding_norm(x), (source != PADDING)[:, None, None, :])


class Decoder(nnx.Module):
    """GPT-2 with learned positions, Llama or Mixtral."""

    def __init__(self, config: TransformerConfig, kinds: Kinds) -> None:
        embed: Any = functools.partial(nnx.Embed, features=config.model_width, **kinds)
        self.target_embedding = embed(config.target_vocabulary)
        self.target_position_embedding: Any = embed(config.max_positions) if config.positions == "learned" else None
        self.decoder = Stack(config, config.decoder_layers, False, kinds)
        untied: Any = functools.partial(nnx.Linear, config.model_width, config.target_vocabulary, use_bias=False, **kinds)
        self.logits: Any = None if config.tie_logits else untied()

    def __call__(self, source: None, target: Array) -> Array:
        x, mask = self._embed(target, jnp.arange(target.shape[1])), nnx.make_causal_mask(target, dtype=bool)
        return self._logits(self.decoder(x, mask))

    def start(self, problem: Problem) -> None:
        self.last, rows, width = problem.task.length - 1, problem.task.batch, self.target_embedding.features
        self.decoder.start(rows, self.last + problem.task.new_tokens, width, dtype=self.target_embedding.dtype)

    def prompted(self, prompt: Array) -> tuple[tuple[()], Array]:
        """Returns the logits after the prompt."""
        x = self.decoder(self._embed(prompt, jnp.arange(prompt.shape[1])), reads=True)
        return (), self._logits(x[:, -1])

    def step(self, token_b: Array, count: Array) -> Array:
        """Returns the logits after one token."""
        x = self.decoder(self._embed(token_b, self.last + count)[:, None], step=True)
        return self._logits(x[:, 0])

    def _logits(self, x: Array) -> Array:
        return self.logits(x) if self.logits else self.target_embedding.attend(x)

    def _embed(self, token: Array, position: Array) -> Array:
        x = self.target_embedding(token)
        return x + self.target_position_embedding(position) if self.target_position_embedding else x


def build(problem: Problem, dtype: Dtype = jnp.float32) -> Any:
    """Builds the model with the problem's weights; published models in float32."""
    published, config = problem.task.published, problem.config
    kind: Any = Stock if not published else Decoder if config.decoder_layers else Bert
    dtype = jnp.float32 if published else dtype
    model = kind(config, {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)})
    tensors = {name: tensor.astype(dtype) for name, tensor in problem.tensors.items()}
    weights.load(model, tensors, config, table=TABLE)
    return model


def split_by_hand(stock: Any, method: str = "__call__") -> Callable[..., Array]:
    """Splits the module once, like `compiled`; `nnx.jit` would traverse it on every call."""
    graph, state = nnx.split(stock)
    return functools.partial(jax.jit(lambda state, *tokens: getattr(nnx.merge(graph, state), method)(*tokens)), state)


def walked_training(problem: Problem) -> Step:
    """Trains with `nnx.jit` and `nnx.Optimizer`."""
    stock, (source, target) = _to_train(problem), _batch(problem)
    optimizer = nnx.Optimizer(stock, _adam(problem), wrt=nnx.Param)

    def loss(stock: Any, source: Array | None, target: Array) -> Array:
        return _loss(stock(source, target[:, :-1]), target[:, 1:], problem.recipe.smoothing)

    @nnx.jit
    def step(stock: Any, optimizer: nnx.Optimizer, source: Array | None, target: Array) -> Array:
        value, gradients = nnx.value_and_grad(loss)(stock, source, target)
        optimizer.update(stock, gradients)
        return value

    return lambda: step(stock, optimizer, source, target)


def split_training(problem: Problem) -> Step:
    """Trains a module that is split once and donates everything that changes."""
    (source, target), optimizer = _batch(problem), _adam(problem)
    graph, parameters, *others = nnx.split(_to_train(problem), nnx.Param, ...)
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


def _to_train(problem: Problem) -> Any:
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
    """Builds one program: the encoder or prompt, then a loop of steps with Flax's cache."""
    model = build(problem)
    model.eval()
    model.start(problem)
    graph, *states = nnx.split(model, nnx.Param, nnx.Cache, ...)
    parameters, caches, *rest = states

    @jax.jit
    def search(parameters: nnx.State, caches: nnx.State, source: Array) -> dict[str, Array]:
        model = nnx.merge(graph, parameters, caches, *rest, copy=True)
        given, first_bv = model.prompted(source)

        def step(token_b: Array, count: Array, caches: nnx.State) -> tuple[Array, nnx.State]:
            model = nnx.merge(graph, parameters, caches, *rest, copy=True)
            return model.step(token_b, count, *given), nnx.state(model, nnx.Cache)

        return answer(problem, step, nnx.state(model, nnx.Cache), first_bv)

    return functools.partial(search, parameters, caches)


def answer(
    problem: Problem, step: Callable[[Array, Array, Any], tuple[Array, Any]], caches: Any, first_bv: Array | None = None
) -> dict[str, Array]:
    """Returns a greedy search's tokens. step: (token, tokens before, caches) -> (logits, caches).

    first_bv: the first token's logits if a prompt has been read; then only output tokens are
    counted.
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
