"""The meaning of files of earlier versions: a config without certain fields describes the models that existed before these fields."""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig

# the values of the fields that the first version lacks: the models of the paper, and of torch.nn.Transformer
PAPER: dict[str, Any] = {
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


def config_of(fields: Mapping[str, Any], first: bool) -> TransformerConfig:
    """Returns the config of a file's fields; first: of the first version. Raises ValueError like `TransformerConfig.from_dict`."""
    return TransformerConfig.from_dict({**PAPER, **fields} if first else fields)
