"""The model of the actions, and what its numbers must be."""

from typing import Any

import numpy as np
import torch
from torch import nn

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, decoding, encoder_only, preset
from reference_numpy import transformer as reference
from reference_numpy.parameters import nest
from reference_numpy.strategy import Strategy

from .. import Actions

SIZES: dict[str, Any] = {"source_vocabulary": 20, "target_vocabulary": 20, "output_bias": True, "dropout_rate": 0.0}
CONFIG = preset("tiny", encoder_layers=2, decoder_layers=2, **SIZES)
UNTIED = CONFIG.replace(share_embeddings=False, tie_logits=False)
LEARNED: dict[str, Any] = {"positions": "learned", "max_positions": 9}
GPT2 = preset("tiny", encoder_layers=0, decoder_layers=2, **LEARNED, **SIZES)
BERT = preset("tiny", encoder_layers=2, decoder_layers=0, pooler=True, classes=3, segments=2, **LEARNED, **SIZES)
SOURCE = torch.tensor([[1, 7, 3, 19, 4], [5, 2, 8, 0, 0], [0, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 9, 2], [1, 6, 0, 0], [3, 3, 7, 5]])
SEARCH: dict[str, Any] = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}


class Tied(nn.Module):
    """Stock layers that share a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.logits = nn.Embedding(20, 32), nn.Linear(32, 20)
        self.logits.weight = self.embedding.weight

    def forward(self, source: Any, target: Any) -> Any:
        return self.logits(self.embedding(target))


def model_of(config: TransformerConfig = CONFIG, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """In evaluation, with biases and norms that are visible."""
    torch.manual_seed(seed)
    model = Transformer(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


ACTIONS = Actions("torch", model=model_of, other=lambda: model_of(seed=1), single=lambda: model_of(dtype=torch.float32))
topic = ACTIONS.topic


def expected(model: Any, config: TransformerConfig = CONFIG, source: Any = SOURCE, target: Any = TARGET) -> Any:
    """What the reference gives in float64 for the parameters that the model exports."""
    parameters = nest({name: np.asarray(array, np.float64) for name, array in weights.export(model, config).items()})
    given = [None if x is None else x.numpy() for x in (source, target)]
    return torch.from_numpy(reference.transformer(parameters, config, *given))


def same(found: Any, wanted: Any, tolerance: float | None = None) -> None:
    """By 1e-9 in float64 and 1e-4 in float32, absolute and relative."""
    tolerance = tolerance or (1e-9 if found.dtype == torch.float64 else 1e-4)
    torch.testing.assert_close(found.detach().double(), wanted.detach().double(), rtol=tolerance, atol=tolerance)


def right(model: Any, config: TransformerConfig = CONFIG, tolerance: float | None = None) -> None:
    """The model computes what it exports."""
    same(model(SOURCE, TARGET), expected(model, config), tolerance)


def searched(model: Any, config: TransformerConfig = CONFIG) -> None:
    """A greedy search answers as the reference's of what the model exports."""
    parameters = nest({name: np.asarray(array, np.float64) for name, array in weights.export(model, config).items()})
    wanted = decoding.greedy_search(parameters, config, SOURCE.numpy(), Strategy.of(SEARCH, config))["token_bn"]
    assert answers(model) == wanted.tolist()


def answers(model: Any) -> Any:
    """What a greedy search of a model, or a searcher, gives."""
    searcher = model if isinstance(model, Searcher) else Searcher(model)
    return searcher.greedy_search(SOURCE, SEARCH)["token_bn"].tolist()


def classes(model: Any) -> Any:
    """What the reference gives for an encoder-only model."""
    return torch.from_numpy(encoder_only.classify(nest(weights.export(model, BERT)), BERT, SOURCE.numpy()))


def trained(model: Any, steps: int = 3, optimizer: Any = None, loss: Any = None) -> Any:
    """The model after some steps of training."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss or (lambda: model.training_loss(SOURCE, TARGET, 0.1)))().backward()
        optimizer.step()
    return model
