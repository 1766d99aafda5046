"""Mixture of experts: a router chooses a few feed-forward networks for every token (EXPERTS)."""

from dataclasses import dataclass
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig as Config
from reference_numpy import checks

from .feed_forward import FeedForward
from .framework import einsum, has_explicit_axes
from .kernels.experts import in_groups
from .precision import upcast_half
from .projection import Projection
from .softmax import softmax
from .values import Own

__all__ = ["MixtureOfExperts", "Router"]


class Router(Projection):
    """`w = f(s)` for the k experts of the largest `s + b`, and 0 for all others, `b t x`.

    `s = softmax(x W_r + b_r)`, or the sigmoid. b: the selection bias, which only takes part in the
    choice. f: divides by the sum of the chosen, then multiplies by router_scale. chosen_softmax and
    chosen_sigmoid choose by `x W_r + b_r` itself and apply their function to the chosen. A token
    prefers the lower of experts with equal scores. The choice has no gradient. routed: collects the
    logits.
    """

    def __init__(self, config: Config, **own: Unpack[Own]) -> None:
        super().__init__("btd,dx->btx", config.sizes, config.router_bias, **own)
        zeros_x = jnp.zeros(config.experts, own.get("param_dtype", jnp.float32))
        self.selection_bias = nnx.Param(zeros_x) if config.selection_bias else None
        self.config = config

    def __call__(  # type: ignore[override]
        self, x_btd: jax.Array, routed: list[jax.Array] | None = None
    ) -> jax.Array:
        checks.check_features("x", x_btd.shape, self.kernel.shape[0])
        logits_btx = self.router_logits(x_btd)
        if routed is not None:
            routed.append(logits_btx)
        chosen_btx = choice(self.config, self.choice_scores(logits_btx))
        weight_btx = weights(self.config, logits_btx, chosen_btx)
        wide = self.config.router_weight_dtype == "float32"
        return weight_btx if wide else weight_btx.astype(x_btd.dtype)

    def promoted(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        arrays = super().promoted(x)
        wide = self.config.router_product_dtype == "float32"
        return jax.tree.map(upcast_half, arrays) if wide else arrays

    def router_logits(self, x_btd: jax.Array) -> jax.Array:
        """`x W_r + b_r`, `b t x`, in the dtype of scores."""
        logits_btx = super().__call__(x_btd)
        wide = self.config.router_score_dtype == "float32"
        return upcast_half(logits_btx) if wide else logits_btx.astype(x_btd.dtype)

    def choice_scores(self, logits_btx: jax.Array) -> jax.Array:
        """`s + b`, the scores by which experts are chosen: `b t x`."""
        scores_btx = logits_btx
        if self.config.router_scores == "softmax":
            scores_btx = softmax(logits_btx)
        elif self.config.router_scores == "sigmoid":
            scores_btx = sigmoid(logits_btx)
        bias = self.selection_bias
        return scores_btx if bias is None else scores_btx + bias[...].astype(scores_btx.dtype)


class MixtureOfExperts(nnx.Module):
    """`y = sum_e w_e FFN_e(x) + shared(x)`, `b t d`; only the chosen experts are computed.

    w: the weights of `Router`; on an expert's input instead: `FFN_e(w_e x)`. shared: an expert for
    all tokens, multiplied by `sigmoid(x w)` if it has a gate. experts: a feed-forward network whose
    arrays have a first axis x.
    """

    def __init__(self, config: Config, **own: Unpack[Own]) -> None:
        self.router = Router(config, **own)
        self.experts = _stacked(config, **own)
        sized, gated = _sized(config, config.shared_width or 1), config.shared_gate
        self.shared = FeedForward(sized, **own) if config.shared_width else None
        self.shared_gate = SharedGate(config, **own) if self.shared and gated else None
        self.per_token = config.experts_per_token
        self.weighted = Weighted(on_input=config.expert_weighted == "input")

    def __call__(self, x_btd: jax.Array, routed: list[jax.Array] | None = None) -> jax.Array:
        y_btd = self.weighted_sum(x_btd, self.router(x_btd, routed))
        return y_btd if self.shared is None else y_btd + self.shared_expert(x_btd)

    def weighted_sum(self, x_btd: jax.Array, weight_btx: jax.Array) -> jax.Array:
        """`sum_e w_e FFN_e(x)`, `b t d`."""
        if not has_explicit_axes(x_btd):
            return in_groups(self.weighted, self.experts, x_btd, weight_btx, self.per_token)
        y_btd = jnp.zeros_like(x_btd)
        for index in range(weight_btx.shape[2]):
            weight_bt1 = weight_btx[..., index, None]
            part_btd = self.weighted(expert(self.experts, index), x_btd, weight_bt1)
            y_btd = y_btd + jnp.where(weight_bt1 == 0, 0, part_btd)
        return y_btd

    def shared_expert(self, x_btd: jax.Array) -> jax.Array:
        """The expert for all tokens, multiplied by `sigmoid(x w)` if it has a gate: `b t d`."""
        assert self.shared is not None
        y_btd = self.shared(x_btd)
        return y_btd if self.shared_gate is None else sigmoid(self.shared_gate(x_btd)) * y_btd


def choice(config: Config, scores_btx: jax.Array) -> jax.Array:
    """The experts with the k largest scores, `b t x`, True = chosen; of equal ones, the lower.

    With groups, only the experts of the groups with the largest scores; others have score 0 or
    -inf. A group's score is its best, or the sum of its two best.
    """
    groups = config.router_groups
    if groups > 1:
        grouped = scores_btx.reshape(*scores_btx.shape[:2], groups, -1)
        best, _ = jax.lax.top_k(grouped, 2 if config.router_group_score == "best_two" else 1)
        kept = largest(best.sum(axis=-1), config.router_groups_kept)
        hidden = 0 if config.router_group_mask == "zero" else -jnp.inf
        scores_btx = jnp.where(kept[..., None], grouped, hidden).reshape(scores_btx.shape)
    return largest(scores_btx, config.experts_per_token)


def largest(scores: jax.Array, count: int) -> jax.Array:
    """Marks the largest scores of the last axis; of equal ones, the first."""
    order = jnp.argsort(-scores, axis=-1, stable=True)
    return jnp.argsort(order, axis=-1) < count  # the place of each score in the order


def weights(config: Config, logits_btx: jax.Array, chosen_btx: jax.Array) -> jax.Array:
    """Returns the experts' weights, 0 unless chosen."""
    if config.router_scores.endswith("softmax"):
        among_btx = chosen_btx if config.router_scores == "chosen_softmax" else None
        scores_btx = softmax(logits_btx, among_btx)
    else:
        scores_btx = sigmoid(logits_btx)
    weight_btx = jnp.where(chosen_btx, upcast_half(scores_btx), 0)
    if config.router_normalize:
        total_bt1 = weight_btx.sum(axis=-1, keepdims=True) + config.router_epsilon
        weight_btx = weight_btx / total_bt1
    return (weight_btx * config.router_scale).astype(logits_btx.dtype)


def expert(experts: FeedForward, index: int | jax.Array) -> FeedForward:
    """Returns one expert."""
    return jax.tree.map(lambda array: array[index], experts)


@dataclass(frozen=True)
class Weighted:
    """`w FFN(x)`, or `FFN(w x)`, for n tokens; half-precision dtypes multiply in float32."""

    on_input: bool

    def __call__(self, expert: FeedForward, x_1nd: jax.Array, weight_n1: jax.Array) -> jax.Array:
        if self.on_input:
            return expert(times(x_1nd, weight_n1))
        return times(expert(x_1nd), weight_n1)


def times(x: jax.Array, factor: jax.Array) -> jax.Array:
    """`x * factor`, in at least float32, rounded to the dtype of x."""
    return (upcast_half(x) * upcast_half(factor)).astype(x.dtype)


class SharedGate(nnx.Module):
    """`x w`, `b t 1`."""

    def __init__(self, config: Config, **own: Unpack[Own]) -> None:
        xavier, shape = nnx.initializers.xavier_uniform(), (config.model_width, 1)
        kernel_d1 = xavier(own["rngs"].params(), shape, own.get("param_dtype", jnp.float32))
        self.kernel = nnx.Param(kernel_d1[:, 0])

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        kernel_d = self.kernel[...].astype(x_btd.dtype)
        return einsum("btd,d->bt", x_btd, kernel_d)[..., None]


def sigmoid(x: jax.Array) -> jax.Array:
    """`1 / (1 + exp(-x))`, elementwise; half-precision dtypes compute in float32."""
    return jax.nn.sigmoid(upcast_half(x)).astype(x.dtype)


def _sized(config: Config, width: int) -> Config:
    """Returns the config of an expert as a feed-forward network, which has no hidden dropout."""
    return config.replace(feed_forward_width=width, hidden_dropout_rate=0.0)


def _stacked(config: Config, **own: Unpack[Own]) -> FeedForward:
    """Returns all experts as one network whose arrays have a first axis x."""
    sized = _sized(config, config.expert_width)

    @nnx.split_rngs(splits=config.experts)
    @nnx.vmap
    def experts(rngs: nnx.Rngs) -> FeedForward:
        return FeedForward(sized, **own | {"rngs": rngs})

    return experts(own["rngs"])
