"""Random valid configurations, visible parameters and tokens, for property tests of the reference."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.config import (
    ACTIVATIONS,
    LAYER_KINDS,
    NORM_PLACEMENTS,
    NORMS,
    PARALLEL,
    POSITION_STARTS,
    POSITIONS,
    QUERY_KEY_NORMS,
    ROTARY_LAYOUTS,
    SINUSOID_LAYOUTS,
)

HALF = (ml_dtypes.bfloat16, np.float16)
DTYPES = (np.float64, np.float32, *HALF)

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
half_precision = pytest.mark.parametrize("dtype", HALF)
seeds = st.integers(0, 2**32 - 1)


_SCALINGS: tuple[dict[str, Any], ...] = (
    {"kind": "none"},
    {"kind": "linear", "factor": 3.0},
    {"kind": "dynamic", "factor": 2.0, "original_length": 3},
    {"kind": "llama3", "factor": 4.0, "original_length": 40, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0},
    {"kind": "yarn", "factor": 4.0, "original_length": 40, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False, "attention_factor": 1.2},
    {"kind": "longrope", "original_length": 3, "short_factors": (1.0, 1.3), "long_factors": (2.0, 5.0), "attention_factor": 1.1},
)


@st.composite
def _rotary(draw: st.DrawFn) -> dict[str, Any]:
    """Rotary positions of heads of size 4, or of half of heads of size 8, in layers that may not rotate."""
    return {
        "rotary_layout": draw(st.sampled_from(ROTARY_LAYOUTS)),
        "rotary_base": draw(st.sampled_from((10000.0, 50.0))),
        "rotary_scaling": draw(st.sampled_from(_SCALINGS)),
        "local_rotary_base": draw(st.sampled_from((10000.0, 9.0))),
        "local_rotary_scaling": draw(st.sampled_from(_SCALINGS)),
        "rotary_pattern": tuple(draw(st.lists(st.booleans(), min_size=1, max_size=2))),
    }


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> TransformerConfig:
    """Any valid configuration of a few thousand parameters; `fixed` fields keep their values."""
    groups, share = draw(st.integers(1, 3)), fixed.get("share_embeddings", draw(st.booleans()))
    source_vocabulary, positions = draw(st.integers(4, 9)), fixed.get("positions", draw(st.sampled_from(POSITIONS)))
    fields = {
        "source_vocabulary": source_vocabulary,
        "target_vocabulary": source_vocabulary if share else draw(st.integers(4, 9)),
        "model_width": draw(st.integers(2, 9)),
        "heads": groups * draw(st.integers(1, 3)),
        "key_value_heads": groups,
        "key_size": draw(st.integers(1, 5)),
        "value_size": draw(st.integers(1, 5)),
        "feed_forward_width": draw(st.integers(1, 11)),
        "encoder_layers": draw(st.integers(1, 2)),
        "decoder_layers": draw(st.integers(1, 2)),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "norm_placement": draw(st.sampled_from([one for one in NORM_PLACEMENTS if one not in PARALLEL])),
        "positions": positions,
        "max_positions": 24 if positions == "learned" else 0,
        "position_offset": draw(st.sampled_from((0, 2))) if positions in ("learned", "sinusoidal") else 0,
        "position_start": draw(st.sampled_from(POSITION_STARTS)),
        "segments": draw(st.integers(0, 2)),
        "embedding_norm": draw(st.booleans()),
        "pooler": False,
        "classes": 0,
        "masked_language_head": False,
        "epsilon": draw(st.sampled_from((1e-6, 1e-5, 1e-3))),
        "share_embeddings": share,
        "padding_id": draw(st.sampled_from((None, 0, 3))),
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "hidden_dropout_rate": 0.1,
        "classifier_dropout_rate": 0.1,
    }
    choices = (
        "final_norm", "scale_embedding", "tie_logits", "query_key_value_bias", "attention_output_bias", "feed_forward_bias", "output_bias",
        "gated_feed_forward", "norm_scale", "norm_offset", "norm_one_plus_scale", "norm_cast_before_scale", "round_embedding_scale",
    )  # fmt: skip
    fields |= {name: draw(st.booleans()) for name in choices}
    if positions == "rotary":
        size, share = draw(st.sampled_from(((4, 1.0), (8, 0.5))))
        fields |= draw(_rotary()) | {"key_size": size, "rotary_fraction": share}
    kinds = tuple(draw(st.lists(st.sampled_from(LAYER_KINDS), min_size=1, max_size=3)))
    fields |= {
        "layer_pattern": kinds,
        "window": draw(st.integers(1, 4)) if "local" in kinds else 0,
        "sinusoid_layout": draw(st.sampled_from(SINUSOID_LAYOUTS)),
        "norm": draw(st.sampled_from(NORMS)),
        "query_key_norm": draw(st.sampled_from(QUERY_KEY_NORMS)),
        "query_key_norm_after_rotation": draw(st.booleans()),
        "query_key_norm_offset": draw(st.booleans()),
        "query_key_value_clip": draw(st.sampled_from((None, 0.5))),
        "score_scale": draw(st.sampled_from((None, 0.3))),
        "score_cap": draw(st.sampled_from((None, 1.5))),
        "logit_scale": draw(st.sampled_from((1.0, 0.3))),
        "logit_cap": draw(st.sampled_from((None, 2.0))),
    }
    return preset("tiny").replace(**(fields | fixed))


def draw_parameters(config: TransformerConfig, seed: int, component: str = "transformer", dtype: Any = np.float64) -> dict[str, Any]:
    """Draws random canonical parameters of visible size, including biases and offsets."""
    rng = np.random.default_rng(seed)
    spread = {
        "kernel": config.model_width**-0.5,
        "table": 1.0,
        "scale": 0.3,
        "bias": 0.5,
        "offset": 0.5,
        "selection_bias": 0.5,
        "sink": 1.0,
    }
    result = {}
    for name, shape in parameters.shapes(config, component).items():
        kind = name.rpartition(".")[2]
        result[name] = ((kind == "scale") + spread[kind] * rng.normal(size=shape)).astype(dtype)
    return result


def tree(config: TransformerConfig, seed: int, component: str = "transformer", dtype: Any = np.float64) -> dict[str, Any]:
    """`draw_parameters`, nested as the reference takes them."""
    return parameters.nest(draw_parameters(config, seed, component, dtype))


def draw_tokens(rng: np.random.Generator, vocabulary: int, shape: tuple[int, ...], padding_id: int | None = None) -> np.ndarray:
    """Draws random ids other than the padding id."""
    return rng.choice([id_ for id_ in range(vocabulary) if id_ != padding_id], shape)


def draw_heads(config: TransformerConfig, rng: np.random.Generator, dtype: Any = np.float64) -> list[np.ndarray]:
    """Draws query, key and value of four rows, with four queries and five keys."""
    sides = (4, config.heads, config.key_size), (5, config.key_value_heads, config.key_size), (5, config.key_value_heads, config.value_size)
    return [rng.normal(size=(4, *side)).astype(dtype) for side in sides]


def draw_pairs(config: TransformerConfig, rng: np.random.Generator) -> dict[str, Any]:
    """Draws four rows of five ids per side; with a padding id, all but the first row end in padding."""
    vocabularies = config.source_vocabulary, config.target_vocabulary
    pairs = [draw_tokens(rng, vocabulary, (4, 5), config.padding_id) for vocabulary in vocabularies]
    if config.padding_id is not None:
        for ids in pairs:
            for row, length in zip(ids[1:], rng.integers(1, 6, 3), strict=True):
                row[length:] = config.padding_id
    return {"source": pairs[0], "target": pairs[1]}
