"""Layer normalisation."""

import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import precision

__all__ = ["LayerNorm"]


class LayerNorm(nn.LayerNorm):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM), by `F.layer_norm`;
    scale is `weight`, offset is `bias`.

    Its kernels compute half-precision dtypes in float32, including the offset. The CPU's backward
    kernel keeps the mean in the half-precision dtype and adds up in it, so it is given float32.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__(width, eps=epsilon)

    def forward(self, x_btd: Tensor) -> Tensor:
        checks.check_features("x", x_btd.shape, self.weight.shape[0])
        tensors = (x_btd, self.weight, self.bias)
        x, scale, offset = (
            map(precision.upcast_half, tensors) if x_btd.device.type == "cpu" else tensors
        )
        return F.layer_norm(x, scale.shape, scale, offset, self.eps).to(x_btd.dtype)
