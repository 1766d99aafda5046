"""Truncates the distribution for sampling, like transformers' `generate`."""

import numpy as np

from reference_numpy import arithmetic, softmax

from .options import GenerationOptions


def truncate(scores_v: np.ndarray, options: GenerationOptions) -> np.ndarray:
    """Returns the scores divided by the temperature, with -inf for excluded tokens.

    The options apply in the order top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff. Each
    keeps at least the most likely token. Source: the warpers in
    transformers/generation/logits_process.py, 5.23.
    """
    x_v = arithmetic.divide(scores_v, scores_v.dtype.type(options.temperature))
    if 0 < options.top_k < len(x_v):
        x_v = np.where(x_v < np.partition(x_v, -options.top_k)[-options.top_k], -np.inf, x_v)
    if options.top_p < 1:
        x_v = _nucleus(x_v, options.top_p)
    if options.min_p:
        p_v = softmax.softmax(x_v)
        x_v = _without(x_v, p_v < p_v.dtype.type(options.min_p) * p_v.max())
    if options.typical_p < 1:
        x_v = _typical(x_v, options.typical_p)
    if options.epsilon_cutoff:
        x_v = _without(x_v, softmax.softmax(x_v) < options.epsilon_cutoff)
    if options.eta_cutoff:
        p_v = softmax.softmax(x_v)
        least = np.sqrt(options.eta_cutoff) * np.exp(-_entropy(p_v))
        x_v = _without(x_v, p_v < min(options.eta_cutoff, least))
    return x_v


def _without(x_v: np.ndarray, left_out_v: np.ndarray) -> np.ndarray:
    """Sets scores to -inf where left_out_v is True, except for the highest score."""
    return np.where(left_out_v & (x_v < x_v.max()), -np.inf, x_v)


def _nucleus(x_v: np.ndarray, top_p: float) -> np.ndarray:
    """Removes the least likely tokens with total probability 1 - top_p.

    Among equal scores at the edge, the lower ids stay; transformers leaves that to its sort.
    Probabilities are summed in float64 and rounded, as PyTorch does on a CPU.
    """
    order_v = np.argsort(-x_v, kind="stable")[::-1]
    p_v = softmax.softmax(x_v[order_v])
    total_v = np.cumsum(p_v, dtype=np.float64).astype(p_v.dtype)
    below_v = total_v <= p_v.dtype.type(1 - top_p)
    below_v[-1] = False
    x_v[order_v[below_v]] = -np.inf
    return x_v


def _entropy(p_v: np.ndarray) -> float:
    """Returns `-sum p log p` in nats; 0 log 0 is 0."""
    p_v = p_v[p_v > 0]
    return float(-np.sum(p_v * np.log(p_v)))


def _typical(x_v: np.ndarray, mass: float) -> np.ndarray:
    """Keeps the tokens whose `-log p` is closest to the entropy, with total probability `mass`.

    Source: Meister et al. 2022, section 4.
    """
    p_v = softmax.softmax(x_v)
    with np.errstate(divide="ignore"):
        distance_v = np.abs(-np.log(p_v) - _entropy(p_v))
    order_v = np.argsort(distance_v, kind="stable")
    count = int((np.cumsum(p_v[order_v]) < mass).sum())
    edge = distance_v[order_v[min(count, len(x_v) - 1)]]
    left_out_v = distance_v > edge
    left_out_v[order_v[0]] = False
    return np.where(left_out_v, -np.inf, x_v)
