"""Vectors of whole texts that exported files give, as sentence-transformers computes them."""

from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, arithmetic, mask, transformer

SHORTEST = 1e-12  # length by which a vector is divided at least


def mean(
    parameters: dict[str, Any],
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`y = sum_s m_s x_s / sum_s m_s`, the mean vector `b d` of the real tokens; x of `encode`, m 1 at real tokens and 0 at padding."""
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, segment_bs=segment_bs)
    real_bs = mask.token_mask(source, config.padding_id) if source_mask_bs is None else source_mask_bs
    weight_bs = real_bs.astype(x_bsd.dtype)
    count_b1 = arithmetic.sum(weight_bs, axis=1).clip(1)
    return arithmetic.divide(arithmetic.einsum("bsd,bs->bd", x_bsd, weight_bs), count_b1)


def unit_mean(
    parameters: dict[str, Any],
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`y / |y|` of `mean`, a vector `b d` of length 1."""
    y_bd = mean(parameters, config, source, source_mask_bs, segment_bs)
    length_b1 = np.sqrt(arithmetic.sum(y_bd * y_bd, axis=1))
    return arithmetic.divide(y_bd, length_b1.clip(SHORTEST))
