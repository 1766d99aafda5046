"""The small models in tests of the PyTorch port."""

from typing import Any

import torch

from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, preset

CONFIG = preset("tiny", source_vocabulary=19, target_vocabulary=19, encoder_layers=1, decoder_layers=1, output_bias=True)


def encoder_config(**changes: Any) -> TransformerConfig:
    sizes = {"source_vocabulary": 19, "target_vocabulary": 19, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4}
    sizes |= {"value_size": 4, "feed_forward_width": 8, "encoder_layers": 1, "max_positions": 16}
    return preset("bert_base", **sizes | changes)


def tokens(batch: int, length: int) -> Any:
    return torch.arange(batch * length).reshape(batch, length) % 18 + 1


SOURCE, TARGET = tokens(3, 5), tokens(3, 4)


def model_of(config: TransformerConfig = CONFIG, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Transformer(config).eval()


def tied(model: Any) -> bool:
    return model.logits.weight is model.target_embedding.weight is model.source_embedding.weight


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Doubled(torch.nn.Module):
    """A parametrization that has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: Any) -> Any:
        return self.factor * weight
