"""The affine map of every projection."""

from typing import Any

from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """`y = x W^T + b`: an `nn.Linear` that starts with a Xavier uniform kernel and a zero bias (INIT).

    `torch.ao.quantization` replaces `nn.Linear` alone and leaves its subclasses as they are; asking for it raises ValueError, where the
    model would silently stay as large as it is. `torchao.quantization.quantize_` handles subclasses.
    """

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "qconfig":
            raise ValueError("torch.ao.quantization leaves subclasses of nn.Linear unquantised; use torchao.quantization.quantize_")
        super().__setattr__(name, value)
