"""Mixture of experts: a router chooses a few feed-forward networks for every token (EXPERTS)."""

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .feed_forward import FeedForward, hidden_layer
from .framework import Configured, Routed, register, sizes
from .kernels.experts import in_blocks
from .precision import upcast_half
from .projection import Adapted, Projection, add_bias, xavier_uniform
from .softmax import softmax

__all__ = ["MixtureOfExperts", "Router"]


@register
class Router(Configured, Adapted):
    """`w = f(s)` for the k experts of the largest `s + b`, and 0 for all others, `b t x`.

    `s = softmax(x W_r + b_r)`, or the sigmoid. b: the selection bias, which only takes part in the
    choice and has no gradient. f: divides by the sum of the chosen (router_normalize), then
    multiplies by router_scale. chosen_softmax and chosen_sigmoid choose by `x W_r + b_r` itself and
    apply their function to the chosen. A token prefers the lower of experts with equal scores.
    routed: collects the logits.
    """

    def build(self, input_shape: object = None) -> None:
        shape = width, experts = self.config.model_width, self.config.experts
        first, self.bias, self.selection_bias = xavier_uniform(width, experts), None, None
        self.kernel = self.add_weight(shape=shape, initializer=first, name="kernel")
        zeros = {"shape": (experts,), "initializer": "zeros"}
        if self.config.router_bias:
            self.bias = self.add_weight(**zeros, name="bias")
        if self.config.selection_bias:
            self.selection_bias = self.add_weight(**zeros, name="selection_bias")

    def call(self, x_btd: tf.Tensor, routed: Routed | None = None) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.config.model_width)
        logits_btx = self.router_logits(x_btd)
        if routed is not None:
            routed.logits.append(logits_btx)
        chosen_btx = self.choice(self.choice_scores(logits_btx))
        weight_btx = self.weights_of(logits_btx, chosen_btx)
        wide = self.config.router_weight_dtype == "float32"
        return weight_btx if wide else tf.cast(weight_btx, x_btd.dtype)

    def router_logits(self, x_btd: tf.Tensor) -> tf.Tensor:
        """`x W_r + b_r`, `b t x`, in the dtype of scores."""
        config, kernel_dx = self.config, self.adapted()
        x_nd = tf.reshape(x_btd, [-1, config.model_width])
        if config.router_product_dtype == "float32":
            x_nd, kernel_dx = upcast_half(x_nd), upcast_half(kernel_dx)
        logits_nx = tf.matmul(x_nd, kernel_dx)
        logits_nx = logits_nx if self.bias is None else add_bias(logits_nx, self.bias)
        wide = config.router_score_dtype == "float32"
        logits_nx = upcast_half(logits_nx) if wide else tf.cast(logits_nx, x_btd.dtype)
        return tf.reshape(logits_nx, [*sizes(x_btd)[:2], config.experts])

    def choice_scores(self, logits_btx: tf.Tensor) -> tf.Tensor:
        """`s + b`, the scores by which experts are chosen: `b t x`."""
        scores_btx = logits_btx
        if self.config.router_scores == "softmax":
            scores_btx = softmax(logits_btx)
        elif self.config.router_scores == "sigmoid":
            scores_btx = sigmoid(logits_btx)
        if self.selection_bias is None:
            return scores_btx
        return scores_btx + tf.cast(self.selection_bias, scores_btx.dtype)

    def choice(self, scores_btx: tf.Tensor) -> tf.Tensor:
        """The experts with the k largest scores, `b t x`, True = chosen; of equal ones, the lower.

        With groups, only the experts of the groups with the largest scores; others have score 0 or
        -inf. A group's score is its best, or the sum of its two best.
        """
        config, shape = self.config, sizes(scores_btx)
        if config.router_groups > 1:
            grouped = tf.reshape(scores_btx, [*shape[:2], config.router_groups, -1])
            best = tf.math.top_k(grouped, 2 if config.router_group_score == "best_two" else 1)
            kept = largest(tf.reduce_sum(best.values, axis=-1), config.router_groups_kept)
            hidden = 0.0 if config.router_group_mask == "zero" else float("-inf")
            others = tf.constant(hidden, scores_btx.dtype)
            scores_btx = tf.reshape(tf.where(kept[..., tf.newaxis], grouped, others), shape)
        return largest(scores_btx, config.experts_per_token)

    def weights_of(self, logits_btx: tf.Tensor, chosen_btx: tf.Tensor) -> tf.Tensor:
        """The experts' weights, 0 unless chosen; Keras reserves `weights`."""
        config = self.config
        if config.router_scores.endswith("softmax"):
            among = chosen_btx if config.router_scores == "chosen_softmax" else None
            scores_btx = softmax(logits_btx, among)
        else:
            scores_btx = sigmoid(logits_btx)
        wide_btx = upcast_half(scores_btx)
        weight_btx = tf.where(chosen_btx, wide_btx, tf.zeros((), wide_btx.dtype))
        if config.router_normalize:
            total_bt1 = tf.reduce_sum(weight_btx, axis=-1, keepdims=True) + config.router_epsilon
            weight_btx = weight_btx / total_bt1
        return tf.cast(weight_btx * config.router_scale, logits_btx.dtype)


@register
class MixtureOfExperts(Configured):
    """`y = sum_e w_e FFN_e(x) + shared(x)`, `b t d`.

    w: the weights of `router`; on an expert's input instead: `FFN_e(w_e x)`. shared: an expert for
    all tokens, if present, multiplied by `sigmoid(x w)` if it has a gate. Only the chosen experts
    are computed, unless there are so few tokens that all of them are faster (`in_blocks`).
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        dtype, self.shared_gate = self.dtype_policy, None
        self.shared: FeedForward | None = None
        self.router = Router(config, dtype=dtype, name="router")
        self.experts = Experts(config, dtype=dtype, name="experts")
        if config.shared_width:
            own = config.replace(feed_forward_width=config.shared_width, hidden_dropout_rate=0.0)
            self.shared = FeedForward(own, dtype=dtype, name="shared")
            if config.shared_gate:
                width = (config.model_width,)
                self.shared_gate = Projection(width, (), False, dtype=dtype, name="shared_gate")

    def call(self, x_btd: tf.Tensor, routed: Routed | None = None) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.config.model_width)
        weight_btx = self.router(x_btd, routed=routed)
        y_btd = in_blocks(self.all_experts, self.weighted, x_btd, weight_btx, self.config)
        return y_btd if self.shared is None else y_btd + self.shared_expert(self.shared, x_btd)

    def all_experts(self, x_nd: tf.Tensor, weight_nx: tf.Tensor) -> tf.Tensor:
        """`sum_e w_e FFN_e(x)`, `n d`, where every expert has a row for every token: zeros if the
        token has not chosen it.
        """
        weight_xn1 = tf.transpose(weight_nx)[..., tf.newaxis]
        chosen_xn1, zero = weight_xn1 != 0, tf.zeros((), x_nd.dtype)
        y_xnd = self.weighted(tf.where(chosen_xn1, x_nd, zero), weight_xn1)
        y_xnd = upcast_half(tf.where(chosen_xn1, y_xnd, zero))
        return tf.cast(tf.reduce_sum(y_xnd, axis=0), x_nd.dtype)

    def weighted(
        self, x_gnd: tf.Tensor, weight_gn1: tf.Tensor, expert_g: tf.Tensor | None = None
    ) -> tf.Tensor:
        """`w FFN(x)`, or `FFN(w x)`, of an expert for n tokens; half precision multiplies in
        float32. expert_g: default, all experts.
        """
        if self.config.expert_weighted == "input":
            return self.experts(times(x_gnd, weight_gn1), expert_g)
        return times(self.experts(x_gnd, expert_g), weight_gn1)

    def shared_expert(self, shared: FeedForward, x_btd: tf.Tensor) -> tf.Tensor:
        """The expert for all tokens, multiplied by `sigmoid(x w)` if it has a gate: `b t d`."""
        y_btd = shared(x_btd)
        if self.shared_gate is None:
            return y_btd
        return sigmoid(self.shared_gate(x_btd))[..., tf.newaxis] * y_btd


class Experts(Configured):
    """The feed-forward networks of all experts, without dropout."""

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        width, hidden, dtype = config.model_width, config.expert_width, self.dtype_policy
        sizes = {"gate": (width, hidden)} if config.gated_feed_forward else {}
        sizes |= {"hidden": (width, hidden), "output_projection": (hidden, width)}
        for name, size in sizes.items():
            own = Stacked(config.experts, *size, config.feed_forward_bias, dtype=dtype, name=name)
            setattr(self, name, own)

    def call(self, x_gnd: tf.Tensor, expert_g: tf.Tensor | None = None) -> tf.Tensor:
        gate_gnm, linear_gnm = None, self.hidden(x_gnd, expert_g)
        if self.config.gated_feed_forward:
            gate_gnm = self.gate(x_gnd, expert_g)
        hidden_gnm = hidden_layer(self.config, linear_gnm, gate_gnm)
        return self.output_projection(hidden_gnm, expert_g)


class Stacked(Projection):
    """`y = x W_e + b_e`: a projection for each expert, kernel `x d m`.

    A CPU may sum a batched product in half precision, which is therefore computed in float32.
    """

    def __init__(
        self, experts: int, inputs: int, outputs: int, bias: bool, **kwargs: object
    ) -> None:
        super().__init__((inputs,), (outputs,), bias, **kwargs)
        self.experts = experts

    def build(self, input_shape: object = None) -> None:
        shape, first = (
            (self.experts, *self.inputs, *self.outputs),
            xavier_uniform(*self.inputs, *self.outputs),
        )
        self.kernel = self.add_weight(shape=shape, initializer=first, name="kernel")
        self.bias = None
        if self.use_bias:
            shape = self.experts, *self.outputs
            self.bias = self.add_weight(shape=shape, initializer="zeros", name="bias")

    def call(self, x_gnd: tf.Tensor, expert_g: tf.Tensor | None = None) -> tf.Tensor:
        y_gnm = tf.matmul(upcast_half(x_gnd), upcast_half(chosen(self.adapted(), expert_g)))
        if self.bias is not None:
            bias_gm = chosen(self.bias.value, expert_g)
            y_gnm += upcast_half(bias_gm)[:, tf.newaxis]
        return tf.cast(y_gnm, x_gnd.dtype)


def largest(scores: tf.Tensor, count: int) -> tf.Tensor:
    """Marks the largest scores of the last axis; of equal ones, the first."""
    scores = tf.where(scores == 0, tf.zeros((), scores.dtype), scores)  # XLA sorts -0 below 0
    place = tf.math.top_k(upcast_half(scores), count).indices
    marked = tf.one_hot(place, scores.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    return tf.reduce_any(marked, axis=-2)


def chosen(array: tf.Tensor, expert_g: tf.Tensor | None) -> tf.Tensor:
    """Returns the parameters of these experts; None: of all."""
    return tf.convert_to_tensor(array) if expert_g is None else tf.gather(array, expert_g)


def times(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """`x * factor`, in at least float32, rounded to the dtype of x."""
    return tf.cast(upcast_half(x) * upcast_half(factor), x.dtype)


def sigmoid(x: tf.Tensor) -> tf.Tensor:
    """`1 / (1 + exp(-x))`, elementwise; half-precision dtypes compute in float32."""
    return tf.cast(tf.sigmoid(upcast_half(x)), x.dtype)
