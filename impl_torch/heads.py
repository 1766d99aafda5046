"""The heads of encoder-only models: pooler, classifier and masked-language head (HEADS)."""

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout
from .embedding import Check, Embedding, logits
from .feed_forward import activation
from .normalization import norm
from .projection import Projection, linear

__all__ = ["Classifier", "MaskedLanguageHead", "Pooler"]


class Pooler(Projection):
    """`y = activation(x_0 W + b)`, `b r`, where x_0 is the first token; tanh or relu."""

    def __init__(self, width: int, activation_name: str = "tanh") -> None:
        super().__init__(width, width)
        self.activation_name = activation_name

    def forward(self, x_bsd: Tensor) -> Tensor:
        checks.check_features("x", x_bsd.shape, self.in_features)
        y_br = super().forward(x_bsd[:, 0])
        if self.activation_name == "relu":
            return activation(y_br, "relu")
        return y_br.tanh()


class Classifier(Projection):
    """`logits = dropout(x) W + b`, `b c`, where x is the pooled token: scores of every class."""

    def __init__(self, width: int, classes: int, dropout_rate: float) -> None:
        super().__init__(width, classes)
        self.dropout = Dropout(dropout_rate)

    def forward(self, pooled_br: Tensor, keep_br: Tensor | None = None) -> Tensor:
        checks.check_pooled(pooled_br.shape, self.in_features)
        return super().forward(self.dropout(pooled_br, keep_br))


class MaskedLanguageHead(nn.Module):
    """`logits = norm(activation(x W + b)) W_v + b_v`, `b s v`: scores of every position's token.

    table: the embedding whose table is the weight of tied logits.
    """

    def __init__(self, config: TransformerConfig, table: Embedding | None = None) -> None:
        super().__init__()
        self.activation_name, self.width = config.activation, config.model_width
        self.hidden = linear(config.model_width, config.model_width, config.head_bias)
        self.norm = norm(config)
        self.logits = logits(config, config.source_vocabulary)
        if table is not None:
            self.logits.weight = table.weight

    def forward(self, x_bsd: Tensor) -> Tensor:
        checks.check_features("x", x_bsd.shape, self.width)
        return self.logits(self.norm(activation(self.hidden(x_bsd), self.activation_name)))


def of_classes(label_b: Tensor, rows: int, classes: int) -> tuple[Tensor, Check]:
    """Pairs labels with the check that each row has one of these classes."""

    def check(shape: torch.Size, dtype: str, **bounds: int) -> None:
        checks.check_classes(shape, dtype)
        checks.check_labels((rows, 1, classes), (*shape, 1), dtype, 0.0, None, **bounds)

    return label_b, check
