"""From the logits of the next token to the token (SAMPLE)."""

import numpy as np

from . import arithmetic, checks, softmax
from .arrays import Array, Mask, bounds

__all__ = ["draw", "penalise", "truncate"]


def penalise(
    scores_bv: Array,
    token_bn: Array,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Mask = None,
) -> Array:
    """Lowers the scores of tokens that the target already contains.

    A score x of such a token becomes `x / penalty` if it is positive, otherwise `x penalty`. A
    token that would repeat a run of `no_repeat_ngram` tokens of the target gets -inf. token_bn: the
    target so far. mask_bn: boolean, True = real token; runs with padding do not count.
    Raises ValueError if the shapes do not match, and on ids and numbers out of range.
    Source: Keskar et al. 2019, section 4.1; Paulus et al. 2018, section 2.5.
    """
    checks.check_next_token(scores_bv.shape, token_bn.shape, str(token_bn.dtype))
    if mask_bn is not None:
        checks.check_token_mask("mask", mask_bn.shape, str(mask_bn.dtype), token_bn.shape)
    checks.check_penalties(repetition_penalty, no_repeat_ngram)
    checks.check_held(scores_bv.shape[1], *bounds(token_bn))
    penalty = scores_bv.dtype.type(repetition_penalty)
    result = scores_bv.copy()
    for row, tokens in enumerate(token_bn):
        real = np.ones(len(tokens), bool) if mask_bn is None else mask_bn[row]
        held = np.unique(tokens[real])
        score = scores_bv[row, held]
        result[row, held] = np.where(score > 0, arithmetic.divide(score, penalty), score * penalty)
        if no_repeat_ngram:
            result[row, endings(tokens, real, no_repeat_ngram)] = -np.inf
    return result


def endings(tokens: Array, real: Array, size: int) -> list[int]:
    """Returns the tokens that followed earlier occurrences of the last size - 1 target tokens."""
    if len(tokens) < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    whole = np.lib.stride_tricks.sliding_window_view(real, size).all(axis=1)
    last = len(tokens) - size + 1
    same = whole & (windows[:, :-1] == tokens[last:]).all(axis=1) & real[last:].all()
    return windows[same, -1].tolist()


def truncate(
    logits_bv: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Array:
    """`x = logits / temperature`; -inf outside the top_k largest, then outside top_p.

    top_k keeps the k largest logits, 0 all; of these, top_p keeps the likeliest that together have
    a probability of at least `top_p`. Ties go to the lower token id. temperature: greater than 0.
    Raises ValueError on numbers out of range, on inf and NaN, and on a row of -inf. Source: Fan et
    al. 2018, section 5.4; Holtzman et al. 2020, section 3.1.
    """
    checks.check_sampling(logits_bv.shape, temperature, top_k, top_p)
    checks.check_choice(logits_bv.max(axis=1).tolist())
    x_bv = arithmetic.divide(logits_bv, logits_bv.dtype.type(temperature))
    order_bv = np.argsort(-x_bv, axis=1, kind="stable")
    ordered_bv = np.take_along_axis(x_bv, order_bv, axis=1)
    if top_k:
        ordered_bv[:, top_k:] = -np.inf
    if top_p < 1:
        likelier_bv = np.cumsum(softmax.softmax(ordered_bv), axis=1)[:, :-1]
        ordered_bv[:, 1:] = np.where(likelier_bv < top_p, ordered_bv[:, 1:], -np.inf)
    result_bv = np.empty_like(x_bv)
    np.put_along_axis(result_bv, order_bv, ordered_bv, axis=1)
    return result_bv


def draw(logits_bv: Array, uniform_b: Array) -> Array:
    """Returns the lowest id whose `p_0 + ... + p_id` exceeds its number, `p = softmax(logits)`.

    uniform_b: in [0, 1), or rounded to 1. Ids are int64; an id of probability 0 is never drawn.
    Raises ValueError if the shapes do not match, on uniform numbers out of range, on a logit of inf
    or NaN, and on a row of -inf.
    """
    checks.check_sampling(logits_bv.shape)
    least, most = uniform_b.min(initial=0), uniform_b.max(initial=0)
    checks.check_uniform(uniform_b.shape, logits_bv.shape[:1], least, most, rounded=True)
    checks.check_choice(logits_bv.max(axis=1).tolist())
    p_bv = softmax.softmax(logits_bv)
    cumulative_bv = np.cumsum(p_bv, axis=1)
    # the answer if the total is rounded below the number
    last_b = logits_bv.shape[1] - 1 - (p_bv > 0)[:, ::-1].argmax(axis=1)
    return np.minimum((cumulative_bv <= uniform_b[:, None]).sum(axis=1), last_b)
