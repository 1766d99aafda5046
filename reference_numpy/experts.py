"""Mixture of experts: a router chooses a few feed-forward networks for every token (EXPERTS)."""

import numpy as np

from . import arithmetic, checks, feed_forward, softmax
from .arrays import Array, Gradients, Tree
from .config import TransformerConfig as Config

__all__ = ["mixture_of_experts", "mixture_of_experts_vjp", "router", "router_vjp"]


def router(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """`w = f(s)` for the k experts of the largest `s + b`, and 0 for all others, `b t x`.

    `s = softmax(x W_r + b_r)`, or the sigmoid. b: the selection bias, which only takes part in the
    choice. f: divides by the sum of the chosen (router_normalize), then multiplies by router_scale.
    chosen_softmax and chosen_sigmoid choose by `x W_r + b_r` itself and apply their function to the
    chosen. A token prefers the lower of experts with equal scores. parameters: kernel `d x`; bias
    and selection_bias `x` if present. Raises ValueError if x is not `b t d`. Source: Shazeer et al.
    2017, section 2.1; Jiang et al. 2024, Mixtral, section 2.1; selection bias: Wang et al. 2024.
    """
    checks.check_features("x", x_btd.shape, parameters["kernel"].shape[0])
    logits_btx = router_logits(parameters, config, x_btd)
    chosen_btx = choice(config, choice_scores(parameters, config, logits_btx))
    weight_btx, _ = weights(config, logits_btx, chosen_btx)
    return weight_btx if config.router_weight_dtype == "float32" else weight_btx.astype(x_btd.dtype)


def router_vjp(parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array) -> Gradients:
    """Backward pass through the weights of the chosen experts. Returns parameters and x_btd.

    The choice has no gradient, and neither has the selection bias.
    """
    logits_btx = router_logits(parameters, config, x_btd)
    chosen_btx = choice(config, choice_scores(parameters, config, logits_btx))
    g_btx = weights_vjp(config, logits_btx, chosen_btx, cotangent=cotangent)
    return router_logits_vjp(parameters, config, x_btd, cotangent=g_btx)


def mixture_of_experts(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """`y = sum_e w_e FFN_e(x) + shared(x)`, `b t d`; only the chosen experts are computed.

    w: the weights of `router`; on an expert's input instead: `FFN_e(w_e x)`. shared: an expert for
    all tokens, if present, multiplied by `sigmoid(x w)` if it has a gate. parameters: router;
    experts, whose arrays are those of a feed-forward network with a first axis x; shared, and
    shared_gate.kernel `d`. Half-precision dtypes round each product and add in their dtype. Raises
    ValueError if x is not `b t d`. Source: Jiang et al. 2024, Mixtral, section 2.1; shared: Dai et
    al. 2024, DeepSeekMoE, eq. 9; its gate: Qwen Team 2024; weighted input: Meta 2025, Llama 4.
    """
    weight_btx = router(parameters["router"], config, x_btd)
    y_btd = np.zeros_like(x_btd)
    for index in np.unique(weight_btx.nonzero()[2]):
        rows = weight_btx[..., index].nonzero()
        own, x_1nd = expert(parameters["experts"], index), x_btd[rows][None]
        y_btd[rows] += weighted(own, config, x_1nd, weight_btx[rows][:, index, None])[0]
    return y_btd + shared_expert(parameters, config, x_btd) if "shared" in parameters else y_btd


def mixture_of_experts_vjp(
    parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array
) -> Gradients:
    """Backward pass through experts, router and shared expert. Returns parameters and x_btd."""
    weight_btx = router(parameters["router"], config, x_btd)
    g_weight_btx, g_btd = np.zeros_like(weight_btx), np.zeros_like(x_btd)
    of_experts = {
        name: {leaf: np.zeros_like(array) for leaf, array in dense.items()}
        for name, dense in parameters["experts"].items()
    }
    for index in np.unique(weight_btx.nonzero()[2]):
        rows = weight_btx[..., index].nonzero()
        own, x_1nd = expert(parameters["experts"], index), x_btd[rows][None]
        given = own, config, x_1nd, weight_btx[rows][:, index, None]
        inner = weighted_vjp(*given, cotangent=cotangent[rows][None])
        g_btd[rows] += inner["x_1nd"][0]
        g_weight_btx[(*rows, index)] = inner["weight_n1"][:, 0]
        for name, dense in of_experts.items():
            for leaf, array in dense.items():
                array[index] = inner["parameters"][name][leaf]
    of_router = router_vjp(parameters["router"], config, x_btd, cotangent=g_weight_btx)
    gradients: Gradients = {"router": of_router["parameters"], "experts": of_experts}
    g_btd = g_btd + of_router["x_btd"]
    if "shared" in parameters:
        inner = shared_expert_vjp(parameters, config, x_btd, cotangent=cotangent)
        gradients |= inner["parameters"]
        g_btd = g_btd + inner["x_btd"]
    return {"parameters": gradients, "x_btd": g_btd}


def router_logits(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """`x W_r + b_r`, `b t x`, in the dtype of scores; never in int8."""
    own = {name: _product(config, parameters[name]) for name in parameters}
    logits_btx = arithmetic.einsum("btd,dx->btx", _product(config, x_btd), own["kernel"])
    logits_btx = logits_btx + own["bias"] if "bias" in own else logits_btx
    wide = config.router_score_dtype == "float32"
    return arithmetic.upcast_half(logits_btx) if wide else logits_btx.astype(x_btd.dtype)


def router_logits_vjp(
    parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array
) -> Gradients:
    """Backward pass through `router_logits`. Returns parameters and x_btd."""
    g_btx = cotangent.astype(_product_dtype(config, x_btd), copy=False)
    x, own = _product(config, x_btd), {name: _product(config, p) for name, p in parameters.items()}
    g_btd, gradients = arithmetic.affine_vjp("btd,dx->btx", x, own, g_btx)
    found = {name: g.astype(parameters[name].dtype, copy=False) for name, g in gradients.items()}
    if "selection_bias" in parameters:
        found["selection_bias"] = np.zeros_like(parameters["selection_bias"])
    return {"parameters": found, "x_btd": g_btd.astype(x_btd.dtype, copy=False)}


def choice_scores(parameters: Tree, config: Config, logits_btx: Array) -> Array:
    """`s + b`, the scores by which experts are chosen: `b t x`."""
    scores_btx = logits_btx
    if config.router_scores == "softmax":
        scores_btx = softmax.softmax(logits_btx)
    elif config.router_scores == "sigmoid":
        scores_btx = sigmoid(logits_btx)
    bias_x = parameters.get("selection_bias")
    return scores_btx if bias_x is None else scores_btx + bias_x.astype(scores_btx.dtype)


def choice(config: Config, scores_btx: Array) -> Array:
    """The experts with the k largest scores, `b t x`, True = chosen; of equal ones, the lower.

    With groups, only the experts of the groups with the largest scores; others have score 0 or
    -inf. A group's score is its best, or the sum of its two best. Source: DeepSeek-AI 2024,
    DeepSeek-V2, section 2.1.2; two best: DeepSeek-V3, section 2.1.2.
    """
    groups, number = config.router_groups, scores_btx.dtype.type
    if groups > 1:
        grouped = scores_btx.reshape(*scores_btx.shape[:2], groups, config.experts // groups)
        best = np.sort(grouped, axis=-1)[
            ..., -2 if config.router_group_score == "best_two" else -1 :
        ]
        kept = largest(arithmetic.sum(best, axis=-1)[..., 0], config.router_groups_kept)
        hidden = number(0 if config.router_group_mask == "zero" else -np.inf)
        scores_btx = np.where(kept[..., None], grouped, hidden).reshape(scores_btx.shape)
    return largest(scores_btx, config.experts_per_token)


def largest(scores: Array, count: int) -> Array:
    """Marks the largest scores of the last axis; of equal ones, the first."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    marked = np.zeros(scores.shape, bool)
    np.put_along_axis(marked, order[..., :count], True, axis=-1)
    return marked


def weights(config: Config, logits_btx: Array, chosen_btx: Array) -> tuple[Array, Array]:
    """Returns the experts' weights, 0 unless chosen, and the sum that they are divided by."""
    zero = logits_btx.dtype.type(0)
    if config.router_scores.endswith("softmax"):
        among_btx = chosen_btx if config.router_scores == "chosen_softmax" else None
        scores_btx = softmax.softmax(logits_btx, among_btx)
    else:
        scores_btx = sigmoid(logits_btx)
    weight_btx = np.where(chosen_btx, arithmetic.upcast_half(scores_btx), zero)
    number, total_bt1 = weight_btx.dtype.type, np.ones_like(weight_btx[..., :1])
    if config.router_normalize:
        total_bt1 = arithmetic.sum(weight_btx, axis=-1) + number(config.router_epsilon)
        weight_btx = arithmetic.divide(weight_btx, total_bt1)
    scaled_btx = weight_btx * number(config.router_scale)
    return scaled_btx.astype(logits_btx.dtype, copy=False), total_bt1


def weights_vjp(config: Config, logits_btx: Array, chosen_btx: Array, *, cotangent: Array) -> Array:
    """The gradient of the logits: through scale, division and scores of the chosen."""
    weight_btx, total_bt1 = weights(config, logits_btx, chosen_btx)
    number, g_btx = total_bt1.dtype.type, arithmetic.upcast_half(cotangent)
    g_btx = np.where(chosen_btx, g_btx * number(config.router_scale), number(0))
    if config.router_normalize:
        share_btx = arithmetic.upcast_half(weight_btx) / number(config.router_scale)
        g_btx = (g_btx - arithmetic.sum(g_btx * share_btx, axis=-1)) / total_bt1
        g_btx = np.where(chosen_btx, g_btx, number(0))
    wide_btx = arithmetic.upcast_half(logits_btx)
    if config.router_scores.endswith("softmax"):
        among_btx = chosen_btx if config.router_scores == "chosen_softmax" else None
        return softmax.softmax_vjp(wide_btx, among_btx, cotangent=g_btx)["logits"]
    scores_btx = sigmoid(wide_btx)
    return g_btx * scores_btx * (number(1) - scores_btx)


def expert(parameters: Tree, index: int) -> Gradients:
    """Returns the parameters of one expert, a feed-forward network."""
    return {
        name: {leaf: array[index] for leaf, array in dense.items()}
        for name, dense in parameters.items()
    }


def weighted(parameters: Tree, config: Config, x_1nd: Array, weight_n1: Array) -> Array:
    """`w FFN(x)`, or `FFN(w x)`, for n tokens; half-precision dtypes multiply in float32."""
    if config.expert_weighted == "input":
        x_1nd = times(x_1nd, weight_n1)
    y_1nd = feed_forward.feed_forward(parameters, x_1nd, config.activation, gate=config.gate)
    return y_1nd if config.expert_weighted == "input" else times(y_1nd, weight_n1)


def weighted_vjp(
    parameters: Tree, config: Config, x_1nd: Array, weight_n1: Array, *, cotangent: Array
) -> Gradients:
    """Returns parameters, x_1nd and weight_n1."""
    on_input = config.expert_weighted == "input"
    given = parameters, times(x_1nd, weight_n1) if on_input else x_1nd, config.activation
    g_1nd = cotangent if on_input else times(cotangent, weight_n1)
    inner = feed_forward.feed_forward_vjp(*given, gate=config.gate, cotangent=g_1nd)
    if on_input:
        of_weight, g_1nd = (x_1nd, inner["x_btd"]), times(inner["x_btd"], weight_n1)
    else:
        y_1nd = feed_forward.feed_forward(*given, gate=config.gate)
        of_weight, g_1nd = (y_1nd, cotangent), inner["x_btd"]
    product_1nd = arithmetic.upcast_half(of_weight[0]) * arithmetic.upcast_half(of_weight[1])
    g_weight_n1 = arithmetic.sum(product_1nd, axis=-1)[0].astype(weight_n1.dtype, copy=False)
    return {"parameters": inner["parameters"], "x_1nd": g_1nd, "weight_n1": g_weight_n1}


def times(x: Array, factor: Array) -> Array:
    """`x * factor`, in at least float32, rounded to the dtype of x."""
    product = arithmetic.upcast_half(x) * arithmetic.upcast_half(factor)
    return product.astype(x.dtype, copy=False)


def shared_expert(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """The expert for all tokens, multiplied by `sigmoid(x w)` if it has a gate: `b t d`."""
    own = parameters["shared"]
    y_btd = feed_forward.feed_forward(own, x_btd, config.activation, gate=config.gate)
    if "shared_gate" not in parameters:
        return y_btd
    return sigmoid(shared_gate(parameters, x_btd)) * y_btd


def shared_gate(parameters: Tree, x_btd: Array) -> Array:
    """`x w`, `b t 1`."""
    kernel_d = parameters["shared_gate"]["kernel"]
    return arithmetic.einsum("btd,d->bt", x_btd, kernel_d)[..., None]


def shared_expert_vjp(
    parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array
) -> Gradients:
    """Returns parameters (shared and shared_gate) and x_btd."""
    given, g_btd = (parameters["shared"], x_btd, config.activation), cotangent
    gradients: Gradients = {}
    other_btd = x_btd.dtype.type(0)
    if "shared_gate" in parameters:
        gate_bt1 = shared_gate(parameters, x_btd)
        open_bt1 = sigmoid(gate_bt1)
        y_btd = feed_forward.feed_forward(*given, gate=config.gate)
        wide = arithmetic.upcast_half(g_btd) * arithmetic.upcast_half(y_btd)
        slope_bt1 = arithmetic.upcast_half(open_bt1)
        slope_bt1 = slope_bt1 * (slope_bt1.dtype.type(1) - slope_bt1)
        g_bt = (arithmetic.sum(wide, axis=-1) * slope_bt1)[..., 0].astype(x_btd.dtype, copy=False)
        kernel_d = parameters["shared_gate"]["kernel"]
        other_btd = g_bt[..., None] * kernel_d
        of_gate = arithmetic.einsum("btd,bt->d", x_btd, g_bt)
        gradients["shared_gate"], g_btd = {"kernel": of_gate}, open_bt1 * g_btd
    inner = feed_forward.feed_forward_vjp(*given, gate=config.gate, cotangent=g_btd)
    gradients["shared"] = inner["parameters"]
    return {"parameters": gradients, "x_btd": inner["x_btd"] + other_btd}


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`, elementwise; half-precision dtypes compute in float32."""
    wide = arithmetic.upcast_half(x)
    small = arithmetic.exp(-np.abs(wide))  # at most 1
    larger = arithmetic.divide(np.ones_like(small), small.dtype.type(1) + small)
    return np.where(wide >= 0, larger, small * larger).astype(x.dtype, copy=False)


def _product(config: Config, array: Array) -> Array:
    wide = config.router_product_dtype == "float32"
    return arithmetic.upcast_half(array) if wide else array


def _product_dtype(config: Config, x_btd: Array) -> np.dtype:
    return _product(config, x_btd[:0]).dtype
