"""Token embedding and the logits that invert it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import dtypes
from .linear import Linear

__all__ = ["Embedding", "Logits"]


class Embedding(nn.Module):
    """`x = sqrt(d)^scale * table[token]`; half types multiply by sqrt(d) in float32, as torch does with any Python number."""

    def __init__(self, vocabulary: int, width: int, scale: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        self.scale = width**0.5 if scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)

    def check_ids(self, token: Tensor) -> None:
        """Raises ValueError on tokens that `forward` refuses."""
        check_ids((token, self.table.shape[0]))

    def forward(self, token: Tensor, checked: bool = False) -> Tensor:
        """checked: the caller has checked the ids, so that a whole model reads them from the device once."""
        if not checked:
            self.check_ids(token)
        soft = token.is_floating_point()
        x_btd = token.to(self.table.dtype) @ self.table if soft else F.embedding(token.long(), self.table)
        return x_btd if self.scale is None else x_btd * self.scale


class Logits(Linear):
    """`logits = x W + b`, as a linear layer `d -> v`. Tied: its weight is the table itself, the same `nn.Parameter`."""

    def __init__(self, width: int, vocabulary: int, bias: bool) -> None:
        super().__init__(width, vocabulary, bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.in_features)
        return super().forward(x_btd)


def check_ids(*tokens: tuple[Tensor, int]) -> None:
    """Raises ValueError on tokens that do not fit their vocabulary.

    The bounds of all tokens come from the device in one transfer. While a graph is traced there are no values: only axes and dtype count.
    """
    for token, vocabulary in tokens:
        checks.check_tokens("token", token.shape, dtypes.name(token.dtype), vocabulary)
    ids = [(token, vocabulary) for token, vocabulary in tokens if not token.is_floating_point() and token.numel()]
    if torch.compiler.is_compiling() or not ids:
        return
    bounds = torch.stack([bound for token, _ in ids for bound in token.long().aminmax()]).tolist()
    for (token, vocabulary), lowest, highest in zip(ids, bounds[::2], bounds[1::2], strict=True):
        checks.check_tokens("token", token.shape, dtypes.name(token.dtype), vocabulary, lowest, highest)
