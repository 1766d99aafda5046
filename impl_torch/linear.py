"""The affine map of every projection."""

from torch import nn

__all__ = ["Linear"]


class Linear(nn.Linear):
    """`nn.Linear` that starts as INIT says: Xavier uniform kernel, zero bias."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
