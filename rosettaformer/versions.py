"""The meaning of files of earlier versions: a config without certain fields describes the models that existed before these fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig

# the values of the fields that the first two versions lack: models without rotary positions, RMS norms and what came with them
BEFORE: dict[str, Any] = {
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
# and of those that the first version lacks: the models of the paper, and of torch.nn.Transformer
PAPER: dict[str, Any] = BEFORE | {
    "positions": "sinusoidal",
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


def config_of(fields: Mapping[str, Any], version: Any, versions: Sequence[Any]) -> TransformerConfig:
    """Returns the config of a file's fields. versions: of its format, of which the first two are those before `PAPER` and `BEFORE`.

    Raises ValueError like `TransformerConfig.from_dict`.
    """
    lacking = dict(zip(versions, (PAPER, BEFORE), strict=False)).get(version, {})
    return TransformerConfig.from_dict({**lacking, **fields})
