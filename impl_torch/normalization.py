"""Layer normalisation and root-mean-square normalisation."""

import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import precision

__all__ = ["LayerNorm", "norm", "RMSNorm"]  # noqa: RUF022 - the order of the twins


class LayerNorm(nn.LayerNorm):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM), by `F.layer_norm`;
    scale is `weight`, offset is `bias`, None without one.

    Its kernels compute half-precision dtypes in float32, including the offset. The CPU's backward
    kernel keeps the mean in the half-precision dtype and adds up in it, so it is given float32.
    one_plus_scale: `1 + scale` in place of the scale. cast_before_scale: half-precision dtypes
    round what is normalised, and scale it afterwards.
    """

    def __init__(
        self,
        width: int,
        epsilon: float,
        offset: bool = True,
        one_plus_scale: bool = False,
        cast_before_scale: bool = False,
    ) -> None:
        super().__init__(width, eps=epsilon, bias=offset)
        self.one_plus_scale, self.cast_before_scale = one_plus_scale, cast_before_scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset(self)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.weight.shape[0])
        if self.cast_before_scale and precision.is_half(x_btd):
            wide_btd = F.layer_norm(x_btd.float(), self.weight.shape, eps=self.eps)
            return _scaled(self, wide_btd.to(x_btd.dtype))
        wide = x_btd.device.type == "cpu" or self.one_plus_scale
        x = precision.upcast_half(x_btd) if wide else x_btd
        scale, offset = _scale_and_offset(self, wide)
        return F.layer_norm(x, scale.shape, scale, offset, self.eps).to(x_btd.dtype)


class RMSNorm(nn.RMSNorm):
    """`y = scale x / sqrt(mean(x^2) + epsilon) + offset` over d (NORM), by `F.rms_norm`; scale is
    `weight`, offset is `bias`, None without one.

    Its kernels compute half-precision dtypes in float32, including the scale. Arguments as
    `LayerNorm`.
    """

    def __init__(
        self,
        width: int,
        epsilon: float,
        offset: bool = True,
        one_plus_scale: bool = False,
        cast_before_scale: bool = False,
    ) -> None:
        super().__init__(width, eps=epsilon)
        self.bias = nn.Parameter(self.weight.new_empty(width)) if offset else None
        self.one_plus_scale, self.cast_before_scale = one_plus_scale, cast_before_scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset(self)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.weight.shape[0])
        if self.cast_before_scale and precision.is_half(x_btd):
            return _scaled(self, F.rms_norm(x_btd, self.weight.shape, eps=self.eps))
        wide = self.one_plus_scale or self.bias is not None or self.weight.dtype != x_btd.dtype
        x = precision.upcast_half(x_btd) if wide else x_btd
        scale, offset = _scale_and_offset(self, wide)
        y_btd = F.rms_norm(x, scale.shape, scale, self.eps)
        return (y_btd if offset is None else y_btd + offset).to(x_btd.dtype)


def norm(config: TransformerConfig, width: int | None = None) -> LayerNorm | RMSNorm:
    """Returns a norm of the config over this width, by default the model's."""
    return (RMSNorm if config.norm == "rms" else LayerNorm)(
        config.model_width if width is None else width,
        config.epsilon,
        config.norm_offset,
        config.norm_one_plus_scale,
        config.norm_cast_before_scale,
    )


def _reset(norm: LayerNorm | RMSNorm) -> None:
    """Sets what is multiplied by to 1, and what is added to 0; torch's own constructors ask for it
    before there are options.
    """
    nn.init.constant_(norm.weight, 0 if getattr(norm, "one_plus_scale", False) else 1)
    if (offset := getattr(norm, "bias", None)) is not None:
        nn.init.zeros_(offset)


def _scaled(norm: LayerNorm | RMSNorm, normalised_btd: Tensor) -> Tensor:
    """`scale n + offset`, rounded after each step in the dtype of n."""
    scale, offset = _scale_and_offset(norm, False)
    y_btd = normalised_btd * scale.to(normalised_btd.dtype)
    return y_btd if offset is None else y_btd + offset.to(y_btd.dtype)


def _scale_and_offset(norm: LayerNorm | RMSNorm, wide: bool) -> tuple[Tensor, Tensor | None]:
    """Returns what multiplies and what is added; wide: in float32 if they are half-precision."""
    scale: Tensor = norm.weight
    offset: Tensor | None = norm.bias
    if wide:
        scale = precision.upcast_half(scale)
        offset = None if offset is None else precision.upcast_half(offset)
    return 1 + scale if norm.one_plus_scale else scale, offset
