"""Token and segment embedding, and the logits that invert the first."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference_numpy import checks

from . import framework, precision
from .projection import Projection

__all__ = ["Embedding", "Logits", "SegmentEmbedding"]

Check = Callable[
    ..., None
]  # of shape, dtype and, where they are known, the lowest and the highest value


class Table(nn.Embedding):
    """An `nn.Embedding` that starts with normal numbers of standard deviation `d^-1/2` (INIT)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def look_up(self, index_bt: Tensor) -> Tensor:
        """The row of each index. In a graph that may run elsewhere a negative one is out of range, where ONNX would count from the end."""
        index_bt = index_bt.long()
        if framework.exporting():
            index_bt = torch.where(index_bt < 0, self.num_embeddings, index_bt)
        return super().forward(index_bt)


class Embedding(Table):
    """`x = sqrt(d)^scale * table[token]`, or `token @ table` of soft one-hot rows: `b t d`.

    Half-precision dtypes multiply by sqrt(d) in float32, as torch does with any Python number.
    """

    def __init__(self, vocabulary: int, width: int, scale: bool) -> None:
        super().__init__(vocabulary, width)
        self.embed_scale = (
            width**0.5 if scale else None
        )  # the name that `transformers` and `peft` know

    def check_ids(self, token: Tensor) -> None:
        """Raises ValueError on tokens that `forward` rejects."""
        check_ids((token, self.num_embeddings))

    def forward(self, token: Tensor, checked: bool = False) -> Tensor:
        """checked: the caller has checked the ids, so that a whole model reads them from the device once."""
        if not checked:
            self.check_ids(token)
        x_btd = (
            token.to(self.weight.dtype) @ self.weight
            if token.is_floating_point()
            else self.look_up(token)
        )
        return x_btd if self.embed_scale is None else x_btd * self.embed_scale

    def extra_repr(self) -> str:
        return super().extra_repr() + (
            "" if self.embed_scale is None else f", embed_scale={self.embed_scale}"
        )


class SegmentEmbedding(Table):
    """`x = table[segment]`, `b s d`: which sentence of several a token is of."""

    def check_ids(self, segment_bs: Tensor) -> None:
        """Raises ValueError on segments that `forward` rejects."""
        rows = self.num_embeddings
        check_values(
            (
                segment_bs,
                lambda shape, dtype, *bounds: checks.check_rows(
                    "segment", shape, dtype, rows, *bounds
                ),
            )
        )

    def forward(self, segment_bs: Tensor, checked: bool = False) -> Tensor:
        """checked: as of `Embedding`."""
        if not checked:
            self.check_ids(segment_bs)
        return self.look_up(segment_bs)


class Logits(Projection):
    """`logits = x W + b`, as a linear layer `d -> v`: `b t v`. Where they are tied, the weight is that of an embedding."""

    def __init__(self, width: int, vocabulary: int, bias: bool) -> None:
        super().__init__(width, vocabulary, bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.in_features)
        return super().forward(x_btd)


def check_ids(*tokens: tuple[Tensor, int]) -> None:
    """Raises ValueError on tokens that do not fit their vocabulary."""
    check_values(*(of_vocabulary(*pair) for pair in tokens))


def of_vocabulary(token: Tensor, vocabulary: int) -> tuple[Tensor, Check]:
    """Tokens and the check that they are of this vocabulary."""
    return token, lambda shape, dtype, *bounds: checks.check_tokens(
        "token", shape, dtype, vocabulary, *bounds
    )


def check_values(*given: tuple[Tensor, Check]) -> None:
    """Calls the check of every tensor with shape and dtype, then with the lowest and the highest value of the integers, too.

    The bounds of all come from the device in one transfer. Where there are no values (`framework.has_values`) only axes and dtype count.
    """
    for x, check in given:
        if x.is_nested:
            raise ValueError(
                "ids must be a dense tensor, whose shorter rows are padded; got a nested one"
            )
        check(x.shape, precision.dtype_name(x.dtype))
    valued = [
        pair
        for pair in given
        if framework.has_values(pair[0]) and not pair[0].is_floating_point() and pair[0].numel()
    ]
    if not valued:
        return
    bounds = torch.stack([bound for x, _ in valued for bound in x.long().aminmax()]).tolist()
    for (x, check), lowest, highest in zip(valued, bounds[::2], bounds[1::2], strict=True):
        check(x.shape, precision.dtype_name(x.dtype), lowest, highest)
