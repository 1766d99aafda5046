"""Several projections of one input as one matrix product, in the CPU library's fastest layout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import framework

__all__ = ["FusedProjection"]

# Bytes of a kernel from which the faster product outweighs the cost of calling it in a graph.
CALLED_FROM = 1 << 20
# Multiplications of a float32 product from which oneDNN's speedup outweighs its call, 10 us: for a
# packed kernel, and for a plain one.
PACKED_FROM, PLAIN_FROM = 1 << 19, 1 << 21


class FusedProjection(framework.Moving):
    """`y = x [W_1 W_2 ..] + [b_1 b_2 ..]`: projections of one input, for inference.

    sizes: the width of each output.
    """

    def __init__(self, *parts: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.sizes = parts[0].in_features, [part.out_features for part in parts]
        self.weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self._choose()

    def _choose(self) -> None:
        """Chooses the library from the kernel's device and dtype; unpacks the kernel."""
        self.packed: Tensor | None = None
        self._library = library(self.weight)
        self._one_dnn = self._library == "onednn" and self.weight.dtype == torch.float32
        self._packed_for, self._called = (0, 0), self.weight.nbytes >= CALLED_FROM

    @contextmanager
    def _moving(self, fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Moves kernel and bias, plain attributes, since parameters take twice as long to find."""
        self.weight, self.bias = fn(self.weight), None if self.bias is None else fn(self.bias)
        self._choose()
        yield

    def pack(self, rows: int) -> None:
        """Packs the kernel for 2 to 64 rows in the layout of the CPU library, which is two to three
        times faster with 8 rows. MKL's layout also depends on the number of threads.
        """
        if not self._library or not 1 < rows <= 64:
            return
        if self._one_dnn and rows * self.weight.numel() < PACKED_FROM:
            return
        if self._packed_for != (wanted := (rows, torch.get_num_threads())):
            self.packed = framework.packed(self.weight, rows, self._library)
            self._packed_for = wanted

    def forward(self, x_btd: Tensor) -> Tensor:
        # Packed products have no gradients, and under autocast the dtypes differ.
        if x_btd.dtype != self.weight.dtype or (x_btd.requires_grad and torch.is_grad_enabled()):
            return F.linear(x_btd, self.weight, self.bias)
        rows, compiling = x_btd.shape[0] * x_btd.shape[1], torch.compiler.is_compiling()
        packed = self.packed if rows == self._packed_for[0] else None
        one_dnn = one_dnn_linear if compiling else framework.one_dnn_linear
        # eager steps, and their program `programs.program`
        called = not compiling or (self._called and torch.compiler.is_exporting())
        if packed is not None and called:
            if self._library == "mkl":
                return framework.mkl_linear(x_btd, packed, self.weight, self.bias, rows)
            return one_dnn(x_btd, packed, self.bias)
        gains = self._called if compiling else rows * self.weight.numel() >= PLAIN_FROM
        if self._one_dnn and gains:
            return one_dnn(x_btd, self.weight if packed is None else packed, self.bias)
        return F.linear(x_btd, self.weight, self.bias)


# Graphs and programs call this op: Inductor's rules only take constants for packed kernels, and
# pack float32 kernels only for MKL.
one_dnn_linear = torch.library.custom_op(
    "impl_torch::one_dnn_linear", framework.one_dnn_linear, mutates_args=()
)


@one_dnn_linear.register_fake
def _(x_btd: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x_btd.new_empty((*x_btd.shape[:-1], weight.shape[0]))


def library(weight: Tensor) -> str:
    """Returns the CPU library with the fastest products of a packed kernel; "" if there is none.

    For bfloat16 that is oneDNN. For float32 it is MKL on Intel processors; on others MKL is slow: a
    product of 4 rows and 768 x 3072 takes 0.45 ms on a core of an AMD EPYC, plain or packed, and
    0.13 by oneDNN; with 2048 rows 93 and 41.
    """
    if weight.device.type != "cpu":
        return ""
    one_dnn = "onednn" if torch.backends.mkldnn.is_available() else ""
    if weight.dtype == torch.bfloat16:
        return one_dnn if one_dnn and framework.has_bfloat16() else ""
    if weight.dtype != torch.float32:
        return ""
    is_intel = "Intel" in torch.cpu.get_capabilities().get("cpu_name", "")
    return "mkl" if torch.backends.mkl.is_available() and is_intel else one_dnn
