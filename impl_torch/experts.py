"""Mixture of experts: a router chooses a few feed-forward networks for every token (EXPERTS)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import precision, softmax
from .feed_forward import FeedForward, gated
from .kernels.experts import can_group, grouped
from .projection import Projections, linear

__all__ = ["MixtureOfExperts", "Router"]

# multiplies rows with the kernels of their experts, and adds the biases
Affine = Callable[[Projections, Tensor], Tensor]


class Router(nn.Module):
    """`w = f(s)` for the k experts of the largest `s + b`, and 0 for all others, `b t x`.

    `s = softmax(x W_r + b_r)`, or the sigmoid. b: the selection bias, which only takes part in the
    choice and has no gradient. A token prefers the lower of experts with equal scores. routed:
    collects the logits.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, count = config, config.experts
        self.weight = nn.Parameter(torch.empty(count, config.model_width))
        self.bias = nn.Parameter(torch.empty(count)) if config.router_bias else None
        self.selection_bias = nn.Parameter(torch.empty(count)) if config.selection_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets the kernel to Xavier uniform numbers, and the biases to 0 (INIT)."""
        nn.init.xavier_uniform_(self.weight)
        for bias_x in (self.bias, self.selection_bias):
            if bias_x is not None:
                nn.init.zeros_(bias_x)

    def forward(self, x_btd: Tensor, routed: list[Tensor] | None = None) -> Tensor:
        checks.check_features("x", x_btd.shape, self.config.model_width)
        logits_btx = self.router_logits(x_btd)
        if routed is not None:
            routed.append(logits_btx)
        chosen_btx = choice(self.config, self.choice_scores(logits_btx))
        weight_btx = weights(self.config, logits_btx, chosen_btx)
        wide = self.config.router_weight_dtype == "float32"
        return weight_btx if wide else weight_btx.to(x_btd.dtype)

    def router_logits(self, x_btd: Tensor) -> Tensor:
        """`x W_r + b_r`, `b t x`, in the dtype of scores."""
        if self.config.router_product_dtype == "float32":
            bias_x = None if self.bias is None else precision.upcast_half(self.bias)
            with torch.autocast(x_btd.device.type, enabled=False):
                wide_btd, wide_xd = map(precision.upcast_half, (x_btd, self.weight))
                logits_btx = F.linear(wide_btd, wide_xd, bias_x)
        else:
            logits_btx = F.linear(x_btd, self.weight, self.bias)
        wide = self.config.router_score_dtype == "float32"
        return precision.upcast_half(logits_btx) if wide else logits_btx.to(x_btd.dtype)

    def choice_scores(self, logits_btx: Tensor) -> Tensor:
        """`s + b`, the scores by which experts are chosen: `b t x`."""
        scores_btx = logits_btx
        if self.config.router_scores == "softmax":
            scores_btx = softmax.softmax(logits_btx)
        elif self.config.router_scores == "sigmoid":
            scores_btx = logits_btx.sigmoid()
        bias_x = self.selection_bias
        return scores_btx if bias_x is None else scores_btx + bias_x.to(scores_btx.dtype)


class MixtureOfExperts(nn.Module):
    """`y = sum_e w_e FFN_e(x) + shared(x)`, `b t d`; only the chosen experts are computed.

    w: the weights of `Router`; on an expert's input instead: `FFN_e(w_e x)`. shared: an expert for
    all tokens, if present, multiplied by `sigmoid(x w)` if it has a gate. Graphs that may run
    outside torch, and `torch.func`, compute all experts for all tokens, with weight 0 unless
    chosen.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.router, self.experts = Router(config), Experts(config)
        self.shared: FeedForward | None = None
        self.shared_gate: nn.Linear | None = None
        if width := config.shared_width:
            own = config.replace(feed_forward_width=width, hidden_dropout_rate=0.0)
            self.shared = FeedForward(own)
            self.shared_gate = linear(config.model_width, 1, False) if config.shared_gate else None

    def forward(self, x_btd: Tensor, routed: list[Tensor] | None = None) -> Tensor:
        y_btd = self.experts(x_btd, self.router(x_btd, routed))
        return y_btd if self.shared is None else y_btd + self.shared_expert(self.shared, x_btd)

    def shared_expert(self, shared: nn.Module, x_btd: Tensor) -> Tensor:
        """The expert for all tokens, multiplied by `sigmoid(x w)` if it has a gate: `b t d`."""
        y_btd = shared(x_btd)
        return y_btd if self.shared_gate is None else self.shared_gate(x_btd).sigmoid() * y_btd


class Experts(nn.Module):
    """`sum_e w_e FFN_e(x)`, or of `FFN_e(w_e x)`: `b t d`.

    in_process: graphs run in the process that made them, and may call this package's kernels.
    """

    in_process = False

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, bias = config, config.feed_forward_bias
        count, width, hidden = config.experts, config.model_width, config.expert_width
        into = (count, width, hidden, bias)
        self.gate = Projections(*into) if config.gated_feed_forward else None
        self.hidden = Projections(*into)
        self.output = Projections(count, hidden, width, bias)

    def forward(self, x_btd: Tensor, weight_btx: Tensor) -> Tensor:
        if can_group(x_btd, self.in_process):
            return grouped(self.weighted, x_btd, weight_btx, self.config.experts_per_token)
        y_btd = torch.zeros_like(x_btd)
        for index in range(weight_btx.shape[2]):
            weight_bt1 = weight_btx[..., index, None]
            own_btd = x_btd.masked_fill(weight_bt1 == 0, 0)
            y_btd = y_btd + self.weighted(own_btd, weight_bt1, expert(index))
        return y_btd

    def weighted(self, x_nd: Tensor, weight_n1: Tensor, affine: Affine) -> Tensor:
        """`w FFN(x)`, or `FFN(w x)`, of rows `n d` that each have an expert."""
        config, on_input = self.config, self.config.expert_weighted == "input"
        if on_input:
            x_nd = times(x_nd, weight_n1)
        gate_nm = None if self.gate is None else affine(self.gate, x_nd)
        active_nm = gated(gate_nm, affine(self.hidden, x_nd), config.activation, config.gate)
        y_nd = affine(self.output, active_nm)
        return y_nd.masked_fill(weight_n1 == 0, 0) if on_input else times(y_nd, weight_n1)


def choice(config: TransformerConfig, scores_btx: Tensor) -> Tensor:
    """The experts with the k largest scores, `b t x`, True = chosen; of equal ones, the lower.

    With groups, only the experts of the groups with the largest scores; others have score 0 or
    -inf. A group's score is its best, or the sum of its two best.
    """
    groups = config.router_groups
    if groups > 1:
        grouped = scores_btx.unflatten(-1, (groups, -1))
        best = grouped.topk(2 if config.router_group_score == "best_two" else 1).values
        kept = largest(best.sum(-1), config.router_groups_kept)
        hidden = 0.0 if config.router_group_mask == "zero" else -torch.inf
        scores_btx = torch.where(kept[..., None], grouped, hidden).flatten(-2)
    return largest(scores_btx, config.experts_per_token)


def largest(scores: Tensor, count: int) -> Tensor:
    """Marks the largest scores of the last axis; of equal ones, the first."""
    order = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


def weights(config: TransformerConfig, logits_btx: Tensor, chosen_btx: Tensor) -> Tensor:
    """Returns the experts' weights, 0 unless chosen."""
    if config.router_scores.endswith("softmax"):
        among_btx = chosen_btx if config.router_scores == "chosen_softmax" else None
        scores_btx = softmax.softmax(logits_btx, among_btx)
    else:
        scores_btx = logits_btx.sigmoid()
    weight_btx = torch.where(chosen_btx, precision.upcast_half(scores_btx), 0.0)
    if config.router_normalize:
        weight_btx = weight_btx / (weight_btx.sum(-1, keepdim=True) + config.router_epsilon)
    return (weight_btx * config.router_scale).to(logits_btx.dtype)


def expert(index: int) -> Affine:
    """Returns the affine map of one expert, for any rows."""
    return lambda projections, x_nd: projections(x_nd, index)


def times(x: Tensor, factor: Tensor) -> Tensor:
    """`x * factor`, in at least float32, rounded to the dtype of x."""
    return (x * factor).to(x.dtype)
