"""Config fields that older models share with the paper's model."""

from typing import Any

from reference_numpy import TransformerConfig, preset

_VALUES = preset("paper_base").to_dict()
EXPERTS = [name for group in ("experts", "router", "expert-groups") for name in TransformerConfig.groups()[group]]
# models without rotary positions, RMS norms, gates, windows, soft caps, query-key norms, sinks or experts
_OLD = (
    "positions", "sinusoid_layout", "rotary_layout", "rotary_fraction", "rotary_base", "rotary_scaling", "local_rotary_base",
    "local_rotary_scaling", "rotary_pattern", "layer_pattern", "window", "gated_feed_forward", "norm", "norm_offset",
    "norm_one_plus_scale", "norm_cast_before_scale", "query_key_norm", "score_scale", "score_cap", "round_embedding_scale",
    "query_key_norm_after_rotation", "query_key_value_clip", "norm_scale", "query_key_norm_offset",
    "feed_forward_bias", "pooler_activation", "logit_scale", "logit_cap", "embedding_multiplier", "residual_multiplier",
    "attention_sinks", "gate_limit", "hidden_offset", "first_norm", "head_bias", *EXPERTS,
)  # fmt: skip
CLASSIC: dict[str, Any] = {name: _VALUES[name] for name in _OLD}
# the models of "Attention Is All You Need" and of torch.nn.Transformer
_FIXED = (
    "max_positions", "position_offset", "position_start", "segments", "embedding_norm", "pooler", "classes", "masked_language_head",
    "classifier_dropout_rate",
)  # fmt: skip
PAPER: dict[str, Any] = CLASSIC | {name: _VALUES[name] for name in _FIXED}
