"""Token and segment embedding, and the logits that invert the first."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import framework, precision
from .projection import Projection

__all__ = ["Embedding", "Logits", "SegmentEmbedding"]

Check = Callable[..., None]  # of shape, dtype and, where they are known, the lowest and the highest value


class Embedding(nn.Module):
    """`x = sqrt(d)^scale * table[token]`, or `token @ table` of soft one-hot rows: `b t d`.

    Half-precision dtypes multiply by sqrt(d) in float32, as torch does with any Python number.
    """

    def __init__(self, vocabulary: int, width: int, scale: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        self.scale = width**0.5 if scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)

    def check_ids(self, token: Tensor) -> None:
        """Raises ValueError on tokens that `forward` rejects."""
        check_ids((token, self.table.shape[0]))

    def forward(self, token: Tensor, checked: bool = False) -> Tensor:
        """checked: the caller has checked the ids, so that a whole model reads them from the device once."""
        if not checked:
            self.check_ids(token)
        soft = token.is_floating_point()
        x_btd = token.to(self.table.dtype) @ self.table if soft else F.embedding(token.long(), self.table)
        return x_btd if self.scale is None else x_btd * self.scale


class SharedEmbedding(Embedding):
    """The embedding of another one's table. It registers neither, so that nothing that acts on parameters by name can part them."""

    table: Any = property(lambda self: self.owner[0].table)

    def __init__(self, owner: Embedding) -> None:
        nn.Module.__init__(self)
        self.scale, self.owner = owner.scale, (owner,)  # in a tuple: as an attribute it would be a submodule


class SegmentEmbedding(nn.Module):
    """`x = table[segment]`, `b s d`: which sentence of several a token is of."""

    def __init__(self, segments: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(segments, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)

    def check_ids(self, segment_bs: Tensor) -> None:
        """Raises ValueError on segments that `forward` rejects."""
        rows = self.table.shape[0]
        check_values((segment_bs, lambda shape, dtype, *bounds: checks.check_rows("segment", shape, dtype, rows, *bounds)))

    def forward(self, segment_bs: Tensor, checked: bool = False) -> Tensor:
        """checked: as of `Embedding`."""
        if not checked:
            self.check_ids(segment_bs)
        return F.embedding(segment_bs.long(), self.table)


class Logits(Projection):
    """`logits = x W + b`, as a linear layer `d -> v`: `b t v`."""

    def __init__(self, width: int, vocabulary: int, bias: bool) -> None:
        super().__init__(width, vocabulary, bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.in_features)
        return super().forward(x_btd)


class TiedLogits(nn.Module):
    """`Logits` whose weight is the table of an embedding, which it does not register (`SharedEmbedding`)."""

    weight: Any = property(lambda self: self.owner[0].table)

    def __init__(self, owner: Embedding, bias: bool) -> None:
        super().__init__()
        self.owner = (owner,)
        self.out_features, self.in_features = owner.table.shape
        self.bias = nn.Parameter(torch.empty(self.out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.in_features)
        return F.linear(x_btd, self.weight, self.bias)


def check_ids(*tokens: tuple[Tensor, int]) -> None:
    """Raises ValueError on tokens that do not fit their vocabulary."""
    check_values(*(of_vocabulary(*pair) for pair in tokens))


def of_vocabulary(token: Tensor, vocabulary: int) -> tuple[Tensor, Check]:
    """Tokens and the check that they are of this vocabulary."""
    return token, lambda shape, dtype, *bounds: checks.check_tokens("token", shape, dtype, vocabulary, *bounds)


def check_values(*given: tuple[Tensor, Check]) -> None:
    """Calls the check of every tensor with shape and dtype, then with the lowest and the highest value of the integers, too.

    The bounds of all come from the device in one transfer. Where there are no values (`framework.has_values`) only axes and dtype count.
    """
    for x, check in given:
        check(x.shape, precision.dtype_name(x.dtype))
    valued = [pair for pair in given if framework.has_values(pair[0]) and not pair[0].is_floating_point() and pair[0].numel()]
    if not valued:
        return
    bounds = torch.stack([bound for x, _ in valued for bound in x.long().aminmax()]).tolist()
    for (x, check), lowest, highest in zip(valued, bounds[::2], bounds[1::2], strict=True):
        check(x.shape, precision.dtype_name(x.dtype), lowest, highest)
