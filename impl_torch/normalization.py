"""Layer normalization and root-mean-square normalization (NORM)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import precision

__all__ = ["LayerNorm", "norm", "RMSNorm"]  # noqa: RUF022 - the order of the twins


class Norm(nn.Module):
    """The part common to both norms: scale is `weight` or None, offset is `bias` or None.

    one_plus_scale: multiplies by `1 + scale`. cast_before_scale: half-precision dtypes round the
    normalized values before the scale. head_size: number of features that are normalized together;
    None for all.
    """

    head_size: int | None = None

    weight: Any
    bias: Any
    normalized_shape: tuple[int, ...]
    eps: Any

    def __init__(
        self,
        width: int,
        epsilon: float,
        offset: bool = True,
        one_plus_scale: bool = False,
        cast_before_scale: bool = False,
        scale: bool = True,
    ) -> None:
        super().__init__(width, eps=epsilon, elementwise_affine=scale)
        self.bias = nn.Parameter(torch.empty(width)) if offset else None
        self.one_plus_scale, self.cast_before_scale = one_plus_scale, cast_before_scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets scale and offset to the identity; torch calls it before the options are set."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0 if getattr(self, "one_plus_scale", False) else 1)
        if (offset := getattr(self, "bias", None)) is not None:
            nn.init.zeros_(offset)

    def scaled(self, normalised_btd: Tensor) -> Tensor:
        """`scale n + offset`, rounded to the dtype of n after each step."""
        scale, offset = self.scale_and_offset(False)
        dtype = normalised_btd.dtype
        y_btd = normalised_btd if scale is None else normalised_btd * scale.to(dtype)
        return y_btd if offset is None else y_btd + offset.to(y_btd.dtype)

    def of_heads(self, x_btd: Tensor) -> Tensor:
        """Normalizes the features of each head, which has its own scale (QKNORM)."""
        kernel = F.layer_norm if isinstance(self, nn.LayerNorm) else F.rms_norm
        x_bthk = precision.upcast_half(x_btd).unflatten(-1, (-1, self.head_size))
        normalised_btd = kernel(x_bthk, x_bthk.shape[-1:], eps=self.eps).flatten(-2)
        if self.cast_before_scale:
            normalised_btd = normalised_btd.to(x_btd.dtype)
        return self.scaled(normalised_btd).to(x_btd.dtype)

    def scale_and_offset(self, wide: bool) -> tuple[Tensor | None, Tensor | None]:
        """Returns the factor and the offset, or None; wide: in at least float32."""
        scale, offset = self.weight, self.bias
        if wide:
            scale = None if scale is None else precision.upcast_half(scale)
            offset = None if offset is None else precision.upcast_half(offset)
        return scale if scale is None or not self.one_plus_scale else 1 + scale, offset


class LayerNorm(Norm, nn.LayerNorm):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM), by `F.layer_norm`.

    Its kernels compute half-precision dtypes in float32, including the offset. The CPU's backward
    kernel stores the mean and adds in the half-precision dtype, so it gets float32 instead.
    """

    def forward(self, x_btd: Tensor) -> Tensor:
        if self.head_size is not None:
            return self.of_heads(x_btd)
        checks.check_features("x", x_btd.shape, self.normalized_shape[0])
        if self.cast_before_scale and precision.is_half(x_btd):
            wide_btd = F.layer_norm(x_btd.float(), self.normalized_shape, eps=self.eps)
            return self.scaled(wide_btd.to(x_btd.dtype))
        wide = x_btd.device.type == "cpu" or self.one_plus_scale
        x = precision.upcast_half(x_btd) if wide else x_btd
        scale, offset = self.scale_and_offset(wide)
        return F.layer_norm(x, self.normalized_shape, scale, offset, self.eps).to(x_btd.dtype)


class RMSNorm(Norm, nn.RMSNorm):
    """`y = scale x / sqrt(mean(x^2) + epsilon) + offset` over d (NORM), by `F.rms_norm`.

    Its kernels compute half-precision dtypes in float32, including the scale.
    """

    def forward(self, x_btd: Tensor) -> Tensor:
        if self.head_size is not None:
            return self.of_heads(x_btd)
        checks.check_features("x", x_btd.shape, self.normalized_shape[0])
        if self.cast_before_scale and precision.is_half(x_btd):
            return self.scaled(F.rms_norm(x_btd, self.normalized_shape, eps=self.eps))
        other = self.weight is not None and self.weight.dtype != x_btd.dtype
        wide = self.one_plus_scale or self.bias is not None or other
        x = precision.upcast_half(x_btd) if wide else x_btd
        scale, offset = self.scale_and_offset(wide)
        y_btd = F.rms_norm(x, self.normalized_shape, scale, self.eps)
        return (y_btd if offset is None else y_btd + offset).to(x_btd.dtype)


def norm(config: TransformerConfig, width: int | None = None) -> LayerNorm | RMSNorm:
    """Returns the norm of the config over this width, default the model's."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    one_plus, cast = config.norm_one_plus_scale, config.norm_cast_before_scale
    flags = config.norm_offset, one_plus, cast, config.norm_scale
    return kind(width or config.model_width, config.epsilon, *flags)
