"""The affine map of every projection."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FusedLinear", "Linear"]


class Linear(nn.Linear):
    """`nn.Linear` that starts as INIT says: Xavier uniform kernel, zero bias.

    `torch.ao.quantization` replaces `nn.Linear` alone and leaves every subclass as it is: that it asks for is an error, not a model that
    is as large as before. `torchao.quantization.quantize_` knows subclasses.
    """

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "qconfig":
            raise ValueError("torch.ao.quantization leaves subclasses of nn.Linear unquantised; use torchao.quantization.quantize_")
        super().__setattr__(name, value)


class FusedLinear(nn.Module):
    """What several linear layers of one input are in evaluation, as one product: their outputs side by side."""

    def __init__(self, *parts: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.sizes = parts[0].in_features, [part.out_features for part in parts]
        self.weight = torch.cat([part.weight.detach() for part in parts])
        self.bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        self._half = self.weight.dtype == torch.bfloat16
        self._packed: Tensor | None = None
        self._packed_for = (0, 0)

    def pack(self, rows: int) -> bool:
        """Lays the kernel out for so many rows as the CPU's library reads it, of 8 rows two to three times as fast as a plain one.

        In float32 that is MKL, for 2 to 64 rows, in bfloat16 oneDNN. Returns whether it could. MKL's layout belongs to the number of
        threads, too.
        """
        if not _packs(self.weight, rows):
            return False
        if self._packed_for != (wanted := (rows, torch.get_num_threads())):
            reorder = torch.ops.mkldnn._reorder_linear_weight if self._half else torch.ops.mkl._mkl_reorder_linear_weight
            self._packed, self._packed_for = reorder(self.weight, rows), wanted
        return True

    def forward(self, x_btd: Tensor) -> Tensor:
        rows = x_btd.shape[0] * x_btd.shape[1]
        packed = self._packed is not None and rows == self._packed_for[0] and x_btd.dtype == self.weight.dtype  # not so under autocast
        if torch.compiler.is_compiling() or not packed:
            return F.linear(x_btd, self.weight, self.bias)
        if self._half:
            return torch.ops.mkldnn._linear_pointwise(x_btd, self._packed, self.bias, "none", [], "")
        return torch.ops.mkl._mkl_linear(x_btd, self._packed, self.weight, self.bias, rows)


def _packs(weight: Tensor, rows: int) -> bool:
    if weight.device.type != "cpu" or not 1 < rows <= 64:
        return False
    if weight.dtype == torch.bfloat16:
        return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.backends.mkl.is_available() and weight.dtype == torch.float32
