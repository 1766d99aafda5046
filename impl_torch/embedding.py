"""Token and segment embeddings (EMBED), and the logits, which map vectors back to tokens."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import framework, precision, softmax
from .projection import Projection

__all__ = ["Embedding", "Logits", "SegmentEmbedding"]

# takes a shape, a dtype and, if known, the lowest and highest value by name
Check = Callable[..., None]


class Table(nn.Embedding):
    """An `nn.Embedding` initialized from a normal distribution of std `d^-1/2` (INIT)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def look_up(self, index_bt: Tensor) -> Tensor:
        """Looks up rows without checks. ONNX counts negative indices from the end; exported graphs
        map them out of range instead.
        """
        index_bt = index_bt.long()
        if framework.exporting():
            index_bt = torch.where(index_bt < 0, self.num_embeddings, index_bt)
        return super().forward(index_bt)


class Embedding(Table):
    """`x = multiplier sqrt(d)^scale table[token]`, or with `token @ table` for soft one-hot rows:
    `b t d`.

    Half-precision dtypes multiply by sqrt(d) in float32, as torch does with Python numbers;
    round_scale first rounds sqrt(d) to the dtype.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        scale: bool,
        round_scale: bool = False,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__(vocabulary, width)
        # the name that `transformers` and `peft` use
        self.embed_scale = width**0.5 if scale else None
        self.round_scale, self.multiplier = round_scale, multiplier

    def check_ids(self, token: Tensor) -> None:
        """Raises ValueError on tokens that `forward` rejects."""
        check_values([of_vocabulary(token, self.num_embeddings)])

    def forward(self, token: Tensor) -> Tensor:
        self.check_ids(token)
        return self.look_up(token)

    def look_up(self, token: Tensor) -> Tensor:
        """Computes `forward` of checked tokens, since a model checks all of its ids at once."""
        if token.is_floating_point():
            x_btd = token.to(self.weight.dtype) @ self.weight
        else:
            x_btd = super().look_up(token)
        return self.scaled(x_btd)

    def scaled(self, x_btd: Tensor) -> Tensor:
        """Multiplies table rows by sqrt(d), if the config sets scale_embedding, and multiplier."""
        y_btd = x_btd if self.multiplier == 1 else precision.upcast_half(x_btd) * self.multiplier
        if self.embed_scale is not None:
            rounded = self.round_scale
            y_btd = y_btd * (x_btd.new_full((), self.embed_scale) if rounded else self.embed_scale)
        return y_btd.to(x_btd.dtype)

    def extra_repr(self) -> str:
        scale = "" if self.embed_scale is None else f", embed_scale={self.embed_scale}"
        return super().extra_repr() + scale


class SegmentEmbedding(Table):
    """`x = table[segment]`, `b s d`: a learned vector for the sentence that a token belongs to."""

    def check_ids(self, segment_bs: Tensor) -> None:
        """Raises ValueError on segments that `forward` rejects."""
        check = partial(checks.check_rows, "segment", rows=self.num_embeddings)
        check_values([(segment_bs, check)])

    def forward(self, segment_bs: Tensor) -> Tensor:
        self.check_ids(segment_bs)
        return self.look_up(segment_bs)


class Logits(Projection):
    """`logits = scale (x W + b)`, `b t v`; with a cap, `cap tanh(logits / cap)` (SOFTCAP). If tied,
    the weight is that of an embedding.
    """

    def __init__(
        self, width: int, vocabulary: int, bias: bool, scale: float = 1.0, cap: float | None = None
    ) -> None:
        super().__init__(width, vocabulary, bias)
        self.scale, self.cap = scale, cap

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.in_features)
        return scaled_and_capped(super().forward(x_btd), self.scale, self.cap)


def token_embedding(config: TransformerConfig, vocabulary: int) -> Embedding:
    """Returns the token embedding of a config for this vocabulary."""
    scale = config.scale_embedding, config.round_embedding_scale, config.embedding_multiplier
    return Embedding(vocabulary, config.model_width, *scale)


def logits(config: TransformerConfig, vocabulary: int) -> Logits:
    """Returns the logits layer of a config for this vocabulary."""
    width, scale, cap = config.model_width, config.logit_scale, config.logit_cap
    return Logits(width, vocabulary, config.output_bias, scale, cap)


def scaled_and_capped(logits_btv: Tensor, scale: float, cap: float | None) -> Tensor:
    """Applies scale and cap to logits; half precision rounds once."""
    if scale == 1 and cap is None:
        return logits_btv
    wide_btv = precision.upcast_half(logits_btv) * scale
    return (wide_btv if cap is None else softmax.soft_cap(wide_btv, cap)).to(logits_btv.dtype)


def check_ids(*tokens: tuple[Tensor, int]) -> None:
    """Raises ValueError on tokens outside their vocabulary."""
    check_values([of_vocabulary(token, vocabulary) for token, vocabulary in tokens])


def of_vocabulary(token: Tensor, vocabulary: int) -> tuple[Tensor, Check]:
    """Pairs tokens with the check that they are in this vocabulary."""
    return token, partial(checks.check_tokens, "token", vocabulary=vocabulary)


def check_values(given: Sequence[tuple[Tensor, Check]]) -> None:
    """Calls each tensor's check with shape and dtype, then for integers also with their bounds.

    All bounds are read from the device in one transfer. Tensors without values
    (`framework.has_values`) are only checked for axes and dtype.
    """
    for x, check in given:
        if x.is_nested:
            raise ValueError(
                "ids must be a dense tensor with shorter rows padded; got a nested tensor"
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
        check(x.shape, precision.dtype_name(x.dtype), lowest=lowest, highest=highest)
