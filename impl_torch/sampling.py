"""From the logits of the next token to the token (SAMPLE)."""

import torch
from torch import Tensor

from reference_numpy import checks

from . import framework, mask, precision
from .softmax import softmax

__all__ = ["draw", "penalise", "truncate"]


def penalise(
    scores_bv: Tensor,
    token_bn: Tensor,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Tensor | None = None,
) -> Tensor:
    """Lowers the scores of tokens that the target already contains.

    A score x of such a token becomes `x / penalty` if it is positive, otherwise `x penalty`; a
    token that would repeat a run of no_repeat_ngram tokens gets -inf. Works on all rows at once.
    """
    _check_penalise(scores_bv, token_bn, repetition_penalty, no_repeat_ngram, mask_bn)
    return unchecked_penalise(scores_bv, token_bn, repetition_penalty, no_repeat_ngram, mask_bn)


def unchecked_penalise(
    scores_bv: Tensor,
    token_bn: Tensor,
    repetition_penalty: float,
    no_repeat_ngram: int,
    mask_bn: Tensor | None,
) -> Tensor:
    """Computes `penalise` without reading values from the device to check them."""
    if mask_bn is None:
        mask_bn = torch.ones_like(token_bn, dtype=torch.bool)
    if repetition_penalty != 1:
        less_bv = torch.where(
            scores_bv > 0, scores_bv / repetition_penalty, scores_bv * repetition_penalty
        )
        scores_bv = torch.where(_holds(token_bn, mask_bn, scores_bv.shape[1]), less_bv, scores_bv)
    if 0 < no_repeat_ngram <= token_bn.shape[1]:
        again_bv = _endings(token_bn, mask_bn, no_repeat_ngram, scores_bv.shape[1])
        scores_bv = scores_bv.masked_fill(again_bv, -torch.inf)
    return scores_bv


def _holds(token_bn: Tensor, mask_bn: Tensor, vocabulary: int) -> Tensor:
    """Marks ids whose mask is True, `b v`; the others go to a column that is cut off."""
    held = torch.zeros(len(token_bn), vocabulary + 1, dtype=torch.bool, device=token_bn.device)
    return held.scatter_(1, token_bn.long().masked_fill(~mask_bn, vocabulary), True)[:, :-1]


def _endings(token_bn: Tensor, mask_bn: Tensor, size: int, vocabulary: int) -> Tensor:
    """Marks tokens that followed an earlier occurrence of the last size - 1 tokens: `b v`."""
    last = token_bn.shape[1] - size + 1
    window_bns = token_bn.unfold(1, size, 1)
    whole_bn = mask_bn.unfold(1, size, 1).all(dim=2) & mask_bn[:, last:].all(dim=1, keepdim=True)
    same_bn = whole_bn & (window_bns[:, :, :-1] == token_bn[:, None, last:]).all(dim=2)
    return _holds(window_bns[:, :, -1], same_bn, vocabulary)


def truncate(
    logits_bv: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """`x = logits / temperature`; -inf outside the top_k largest, then outside top_p.

    Sorts once, stably, or not at all if every token is kept.
    """
    _check_truncate(logits_bv, temperature, top_k, top_p)
    return unchecked_truncate(logits_bv, temperature, top_k, top_p)


def unchecked_truncate(logits_bv: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Computes `truncate` without checks."""
    x_bv = logits_bv / temperature
    if not 0 < top_k < x_bv.shape[1] and top_p == 1:
        return x_bv
    ordered_bv, order_bv = x_bv.sort(dim=1, descending=True, stable=True)
    if top_k:
        ordered_bv[:, top_k:] = -torch.inf
    if top_p < 1:
        # the probability of all likelier tokens
        before_bv = softmax(ordered_bv).cumsum(dim=1)[:, :-1]
        ordered_bv[:, 1:].masked_fill_(before_bv >= top_p, -torch.inf)
    return torch.empty_like(x_bv).scatter_(1, order_bv, ordered_bv)


def draw(logits_bv: Tensor, uniform_b: Tensor) -> Tensor:
    """Returns the lowest id whose `p_0 + ... + p_id` exceeds its number, `p = softmax(logits)`.

    Counting finds it, which a graph can do without reading values.
    """
    _check_draw(logits_bv, uniform_b)
    return unchecked_draw(logits_bv, uniform_b)


def unchecked_draw(logits_bv: Tensor, uniform_b: Tensor) -> Tensor:
    """Computes `draw` without checks; returns any id for a row of -inf."""
    p_bv = softmax(logits_bv)
    id_v = torch.arange(p_bv.shape[1], device=p_bv.device)
    # the answer if the total is rounded below the number
    last_b = torch.where(p_bv > 0, id_v, 0).amax(dim=1)
    return torch.minimum((p_bv.cumsum(dim=1) <= uniform_b[:, None]).sum(dim=1), last_b)


def _check_penalise(
    scores_bv: Tensor,
    token_bn: Tensor,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Tensor | None = None,
) -> None:
    """Raises ValueError on invalid arguments of `penalise`; in a trace, values are not checked."""
    checks.check_next_token(scores_bv.shape, token_bn.shape, precision.dtype_name(token_bn.dtype))
    mask.check("mask", mask_bn, token_bn.shape)
    checks.check_penalties(repetition_penalty, no_repeat_ngram)
    if bounds := framework.bounds(token_bn):
        checks.check_held(scores_bv.shape[1], *bounds)


def _check_truncate(
    logits_bv: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> None:
    """Raises ValueError on invalid arguments of `truncate`, and on logits that `draw` rejects."""
    checks.check_sampling(logits_bv.shape, temperature, top_k, top_p)
    if framework.has_values(logits_bv):
        checks.check_choice(logits_bv.amax(dim=1).tolist())


def _check_draw(logits_bv: Tensor, uniform_b: Tensor) -> None:
    """Raises ValueError on invalid arguments of `draw`."""
    checks.check_sampling(logits_bv.shape)
    checks.check_uniform(
        uniform_b.shape, logits_bv.shape[:1], *framework.bounds(uniform_b), rounded=True
    )
    _check_truncate(logits_bv)


# `compiled` calls these before the program.
penalise.check_ids = _check_penalise  # type: ignore[attr-defined]
truncate.check_ids = _check_truncate  # type: ignore[attr-defined]
draw.check_ids = _check_draw  # type: ignore[attr-defined]
