"""Config fields that older models share."""

from typing import Any

# models without rotary positions, RMS norms, gates, windows, soft caps or query-key norms
CLASSIC: dict[str, Any] = {
    "positions": "sinusoidal",
    "sinusoid_layout": "interleaved",
    "rotary_layout": "halves",
    "rotary_fraction": 1.0,
    "rotary_base": 10000.0,
    "rotary_scaling": {"kind": "none"},
    "local_rotary_base": 10000.0,
    "local_rotary_scaling": {"kind": "none"},
    "rotary_pattern": [True],
    "layer_pattern": ["global"],
    "window": 0,
    "gated_feed_forward": False,
    "norm": "layer",
    "norm_offset": True,
    "norm_one_plus_scale": False,
    "norm_cast_before_scale": False,
    "query_key_norm": "none",
    "score_scale": None,
    "score_cap": None,
    "round_embedding_scale": False,
    "feed_forward_bias": True,
    "pooler_activation": "tanh",
    "logit_scale": 1.0,
    "logit_cap": None,
}
# the models of "Attention Is All You Need" and of torch.nn.Transformer
PAPER: dict[str, Any] = CLASSIC | {
    "max_positions": 0,
    "position_offset": 0,
    "position_start": "first_token",
    "segments": 0,
    "embedding_norm": False,
    "pooler": False,
    "classes": 0,
    "masked_language_head": False,
    "classifier_dropout_rate": 0.0,
}
