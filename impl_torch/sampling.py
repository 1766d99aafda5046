"""From the logits of the next token to the token (SAMPLE)."""

import torch
from torch import Tensor

from reference_numpy import checks

from . import framework, precision
from .softmax import softmax

__all__ = ["draw", "penalise", "truncate"]


def penalise(
    scores_bv: Tensor,
    token_bn: Tensor,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Tensor | None = None,
    checked: bool = False,
) -> Tensor:
    """`x / penalty` where the score x of a token that the target holds is positive, otherwise `x penalty`; -inf where a run of
    no_repeat_ngram tokens would appear again. All rows at once: the tokens concerned are a mask of the vocabulary.

    checked: as in all of this file, the caller knows that the values fit, and the device is not asked for them.
    """
    if not checked:
        _check_penalise(scores_bv, token_bn, repetition_penalty, no_repeat_ngram, mask_bn)
    if mask_bn is None:
        mask_bn = torch.ones_like(token_bn, dtype=torch.bool)
    if repetition_penalty != 1:
        less_bv = torch.where(
            scores_bv > 0, scores_bv / repetition_penalty, scores_bv * repetition_penalty
        )
        scores_bv = torch.where(_holds(token_bn, mask_bn, scores_bv.shape[1]), less_bv, scores_bv)
    if 0 < no_repeat_ngram <= token_bn.shape[1]:
        scores_bv = scores_bv.masked_fill(
            _endings(token_bn, mask_bn, no_repeat_ngram, scores_bv.shape[1]), -torch.inf
        )
    return scores_bv


def _holds(token_bn: Tensor, mask_bn: Tensor, vocabulary: int) -> Tensor:
    """Which ids are among the tokens that the mask lets through, `b v`; the others go to a column that is cut off."""
    held = torch.zeros(len(token_bn), vocabulary + 1, dtype=torch.bool, device=token_bn.device)
    return held.scatter_(1, token_bn.long().masked_fill(~mask_bn, vocabulary), True)[:, :-1]


def _endings(token_bn: Tensor, mask_bn: Tensor, size: int, vocabulary: int) -> Tensor:
    """The tokens that followed, somewhere in the target, the size - 1 tokens that it ends in, as a mask `b v`."""
    last = token_bn.shape[1] - size + 1
    window_bns = token_bn.unfold(1, size, 1)
    whole_bn = mask_bn.unfold(1, size, 1).all(dim=2) & mask_bn[:, last:].all(dim=1, keepdim=True)
    same_bn = whole_bn & (window_bns[:, :, :-1] == token_bn[:, None, last:]).all(dim=2)
    return _holds(window_bns[:, :, -1], same_bn, vocabulary)


def truncate(
    logits_bv: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    checked: bool = False,
) -> Tensor:
    """`x = logits / temperature`, then -inf for all but the top_k largest, then for all but the likeliest that together reach top_p.

    One stable sort, and none where every token is kept.
    """
    if not checked:
        _check_truncate(logits_bv, temperature, top_k, top_p)
    x_bv = logits_bv / temperature
    if not 0 < top_k < x_bv.shape[1] and top_p == 1:
        return x_bv
    ordered_bv, order_bv = x_bv.sort(dim=1, descending=True, stable=True)
    if top_k:
        ordered_bv[:, top_k:] = -torch.inf
    if top_p < 1:
        before_bv = softmax(ordered_bv).cumsum(dim=1)[
            :, :-1
        ]  # the probability of all that are likelier
        ordered_bv[:, 1:].masked_fill_(before_bv >= top_p, -torch.inf)
    return torch.empty_like(x_bv).scatter_(1, order_bv, ordered_bv)


def draw(logits_bv: Tensor, uniform_b: Tensor, checked: bool = False) -> Tensor:
    """The lowest id whose `p_0 + ... + p_id`, `p = softmax(logits)`, exceeds the uniform number; of a row of -inf, checked, any.

    It is found by counting, which a graph does without a look at the values.
    """
    if not checked:
        _check_draw(logits_bv, uniform_b)
    p_bv = softmax(logits_bv)
    id_v = torch.arange(p_bv.shape[1], device=p_bv.device)
    last_b = torch.where(p_bv > 0, id_v, 0).amax(
        dim=1
    )  # where the sum of all is rounded to less than the number
    return torch.minimum((p_bv.cumsum(dim=1) <= uniform_b[:, None]).sum(dim=1), last_b)


def _check_penalise(
    scores_bv: Tensor,
    token_bn: Tensor,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Tensor | None = None,
) -> None:
    """Raises ValueError on what `penalise` refuses; while a graph is traced there are no values to check."""
    checks.check_next_token(scores_bv.shape, token_bn.shape, precision.dtype_name(token_bn.dtype))
    if mask_bn is not None:
        checks.check_token_mask(
            "mask", mask_bn.shape, precision.dtype_name(mask_bn.dtype), token_bn.shape
        )
    checks.check_penalties(repetition_penalty, no_repeat_ngram)
    if bounds := framework.bounds(token_bn):
        checks.check_held(scores_bv.shape[1], *bounds)


def _check_truncate(
    logits_bv: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> None:
    """Raises ValueError on what `truncate` refuses, and `draw` of its logits."""
    checks.check_sampling(logits_bv.shape, temperature, top_k, top_p)
    if framework.has_values(logits_bv):
        checks.check_choice(logits_bv.amax(dim=1).tolist())


def _check_draw(logits_bv: Tensor, uniform_b: Tensor) -> None:
    """Raises ValueError on what `draw` refuses."""
    checks.check_sampling(logits_bv.shape)
    checks.check_uniform(
        uniform_b.shape, logits_bv.shape[:1], *framework.bounds(uniform_b), rounded=True
    )
    _check_truncate(logits_bv)


# What `compiled` calls before the graph.
penalise.check_ids = _check_penalise  # type: ignore[attr-defined]
truncate.check_ids = _check_truncate  # type: ignore[attr-defined]
draw.check_ids = _check_draw  # type: ignore[attr-defined]
