"""Selects the tokens that may be drawn, as `transformers` 5 does."""

import numpy as np

from reference_numpy import arithmetic, softmax

from .options import GenerationOptions

__all__ = ["truncate"]


def truncate(scores_v: np.ndarray, options: GenerationOptions) -> np.ndarray:
    """Returns the scores divided by the temperature, with -inf for those below the top_k-th, then for the least likely ones whose
    probabilities together are at most 1 - top_p, but never for the likeliest.

    Scores equal to the top_k-th stay, so that more than top_k may; `reference_numpy.sampling.truncate` keeps top_k, lower ids first. Of
    equal scores at the edge of top_p the lower ids stay; the library leaves it to its sort. Probabilities are summed in float64 and
    rounded, as PyTorch does on a CPU. Source: TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper of
    transformers/generation/logits_process.py, 5.23.
    """
    x_v = arithmetic.divide(scores_v, scores_v.dtype.type(options.temperature))
    if 0 < options.top_k < len(x_v):
        x_v = np.where(x_v < np.partition(x_v, -options.top_k)[-options.top_k], -np.inf, x_v)
    if options.top_p < 1:
        order_v = np.argsort(-x_v, kind="stable")[::-1]
        p_v = softmax.softmax(x_v[order_v])
        below_v = np.cumsum(p_v, dtype=np.float64).astype(p_v.dtype) <= p_v.dtype.type(1 - options.top_p)
        below_v[-1] = False
        x_v[order_v[below_v]] = -np.inf
    return x_v
