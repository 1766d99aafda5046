"""Two dense layers in PyTorch with fixed values, those of the graph in `test_onnx_side`."""

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        for number, value in enumerate(self.parameters()):
            value.data = torch.cos(torch.arange(value.numel()).double() * 1.7 + number).float().reshape(value.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]
