"""From the logits of the next token to the token (SAMPLE)."""

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import checks

from . import mask
from .framework import id_bounds, is_traced
from .softmax import softmax
from .values import Mask

__all__ = ["draw", "penalise", "truncate"]

Number = float | jax.Array


def penalise(
    scores_bv: jax.Array,
    token_bn: jax.Array,
    repetition_penalty: Number = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Mask = None,
) -> jax.Array:
    """Lowers the scores of tokens that the target already contains.

    A score x of such a token becomes `x / penalty` if it is positive, otherwise `x penalty`; a
    token that would repeat a run of no_repeat_ngram tokens gets -inf. A penalty passed as an array
    is an argument of the program. Traced ids out of range match no token.
    """
    _check_penalise(scores_bv, token_bn, repetition_penalty, no_repeat_ngram, mask_bn)
    mask_bn = jnp.ones(token_bn.shape, bool) if mask_bn is None else jnp.asarray(mask_bn)
    penalty = jnp.asarray(repetition_penalty, scores_bv.dtype)
    held_bv = _among(scores_bv.shape, token_bn, mask_bn)
    less_bv = jnp.where(scores_bv > 0, scores_bv / penalty, scores_bv * penalty)
    result_bv = jnp.where(held_bv, less_bv, scores_bv)
    if not 0 < no_repeat_ngram <= token_bn.shape[1]:
        return result_bv
    endings = _endings(token_bn, mask_bn, no_repeat_ngram)
    return jnp.where(_among(scores_bv.shape, *endings), -jnp.inf, result_bv)


def _among(shape: tuple[int, ...], token_bn: jax.Array, mask_bn: jax.Array) -> jax.Array:
    """Marks the ids that occur in each row where the mask is True: `b v`."""
    place = jnp.zeros(shape, bool).at[jnp.arange(shape[0])[:, None], token_bn]
    return place.max(mask_bn, wrap_negative_indices=False)


def _endings(token_bn: jax.Array, mask_bn: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the last tokens of all runs of `size` tokens, and whether each run begins with the
    last size - 1 tokens of the target.
    """
    count = token_bn.shape[1] - size + 1
    same_bn = mask_bn[:, size - 1 :]
    for place in range(size - 1):
        run, last = slice(place, place + count), slice(count + place, count + place + 1)
        same_bn &= mask_bn[:, run] & mask_bn[:, last] & (token_bn[:, run] == token_bn[:, last])
    return token_bn[:, size - 1 :], same_bn


def truncate(
    logits_bv: jax.Array, temperature: Number = 1.0, top_k: int = 0, top_p: Number = 1.0
) -> jax.Array:
    """`x = logits / temperature`; -inf outside the top_k largest, then outside top_p.

    The likeliest tokens that together reach top_p are kept, and the least likely of them is the
    bound for all: nothing is sorted if all are kept, and only top_k if it is set. temperature and
    top_p may be scalar arrays; traced values are not checked.
    """
    _check_truncate(logits_bv, temperature, top_k, top_p)
    x_bv = logits_bv / jnp.asarray(temperature, logits_bv.dtype)
    vocabulary = logits_bv.shape[1]
    everything = not isinstance(top_p, jax.Array) and top_p == 1
    if not top_k and everything:
        return x_bv
    x_bv = jnp.where(x_bv == 0, 0, x_bv)  # -0 equals 0, but would be ordered before it
    largest_bk, id_bk = jax.lax.top_k(x_bv, min(top_k, vocabulary) if top_k else vocabulary)
    last_b1 = jnp.full((len(x_bv), 1), largest_bk.shape[1] - 1)
    if not everything:
        # The probability of all likelier tokens.
        before_bk = jnp.cumsum(softmax(largest_bk), axis=1)[:, :-1]
        last_b1 = (before_bk < jnp.asarray(top_p, before_bk.dtype)).sum(axis=1, keepdims=True)
    bound_b1, bound_id_b1 = (
        jnp.take_along_axis(each, last_b1, axis=1) for each in (largest_bk, id_bk)
    )
    kept_bv = (x_bv > bound_b1) | ((x_bv == bound_b1) & (jnp.arange(vocabulary) <= bound_id_b1))
    return jnp.where(kept_bv, x_bv, -jnp.inf)


def draw(logits_bv: jax.Array, uniform_b: jax.Array) -> jax.Array:
    """Returns the lowest id whose `p_0 + ... + p_id` exceeds its number, `p = softmax(logits)`.

    An id of probability 0 is never drawn. Ids have JAX's default integer dtype.
    """
    _check_draw(logits_bv, uniform_b)
    p_bv = softmax(logits_bv)
    cumulative_bv = jnp.cumsum(p_bv, axis=1)
    last_b = logits_bv.shape[1] - 1 - (p_bv > 0)[:, ::-1].argmax(axis=1)
    return jnp.minimum((cumulative_bv <= uniform_b[:, None]).sum(axis=1), last_b)


def _check_penalise(
    scores_bv: jax.Array,
    token_bn: jax.Array,
    repetition_penalty: Number = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: Mask = None,
) -> None:
    """Raises ValueError on invalid arguments of `penalise`; traced values are not checked."""
    checks.check_next_token(scores_bv.shape, token_bn.shape, str(token_bn.dtype))
    mask.check("mask", mask_bn, token_bn.shape)
    penalty = 1.0 if is_traced(repetition_penalty) else float(repetition_penalty)
    checks.check_penalties(penalty, no_repeat_ngram)
    lowest, highest = id_bounds(token_bn) or (None, None)
    checks.check_held(scores_bv.shape[1], lowest, highest)


def _check_truncate(
    logits_bv: jax.Array, temperature: Number = 1.0, top_k: int = 0, top_p: Number = 1.0
) -> None:
    """Raises ValueError on invalid arguments of `truncate`, and on logits that `draw` rejects."""
    heat, share = (1.0 if is_traced(x) else float(x) for x in (temperature, top_p))
    checks.check_sampling(logits_bv.shape, heat, top_k, share)
    if not is_traced(logits_bv):
        checks.check_choice(np.asarray(logits_bv, np.float64).max(axis=1).tolist())


def _check_draw(logits_bv: jax.Array, uniform_b: jax.Array) -> None:
    """Raises ValueError on invalid arguments of `draw`."""
    _check_truncate(logits_bv)
    known_b = np.zeros(0) if is_traced(uniform_b) else np.asarray(uniform_b)
    lowest, highest = float(known_b.min(initial=0)), float(known_b.max(initial=0))
    checks.check_uniform(uniform_b.shape, logits_bv.shape[:1], lowest, highest, rounded=True)


# `compiled` calls these before the program.
penalise.check_ids = _check_penalise  # type: ignore[attr-defined]
truncate.check_ids = _check_truncate  # type: ignore[attr-defined]
draw.check_ids = _check_draw  # type: ignore[attr-defined]
