"""Projections that multiply kernels and inputs in int8 (INT8)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import framework
from ..projection import Projections

__all__ = ["Int8Projection", "Int8Projections", "check_int8", "split"]

LARGEST, OFFSET = 127, 128  # magnitude of an int8 number here; shifts int8 to uint8
TINY = 1e-30  # lower bound of a row's largest magnitude, so that rows of zeros have a scale


class Int8Projection(framework.Moving):
    """`y = r s (x8 [W8_1 W8_2 ..]) + [b_1 b_2 ..]`: projections of one input, for inference.

    `W8 = round(W / s)` with a scale s per output, `x8 = round(x / r)` with a scale r per token, so
    that the largest magnitude is 127. Sums are int32, the rest is float32. sizes: the width of each
    output.

    oneDNN multiplies uint8 by int8 on processors with an instruction for it (VNNI, AMX); others
    would saturate sums of two products in 16 bits, so they multiply the same integers in float32.
    """

    def __init__(self, *parts: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.sizes = parts[0].in_features, [part.out_features for part in parts]
        weight = torch.cat([part.weight.detach() for part in parts]).float()
        self.scale = weight.abs().amax(dim=1).clamp(min=TINY) / LARGEST
        kernel = (weight / self.scale[:, None]).round()
        self.bias = torch.zeros(len(weight))
        if parts[0].bias is not None:
            self.bias = torch.cat([part.bias.detach() for part in parts]).float()
        packs = in_one_instruction()
        self.kernel = framework.packed_int8(kernel.to(torch.int8)) if packs else kernel
        self.zero = torch.zeros(len(weight), dtype=torch.int32)

    @contextmanager
    def _moving(self, fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Raises ValueError on an unsupported device."""
        check_int8("int8", fn(self.scale).device)
        yield

    def forward(self, x_btd: Tensor) -> Tensor:
        x_nd = x_btd.flatten(0, -2)  # halves the overhead of calling oneDNN
        y_nf = _affine(x_nd, self.kernel, self.scale, self.bias, self.zero)
        return y_nf.unflatten(0, x_btd.shape[:-1])


class Int8Projections(nn.Module):
    """An `Int8Projection` for each of several experts."""

    def __init__(self, projections: Projections) -> None:
        super().__init__()
        each, (_, inputs, outputs) = [], projections.weight.shape
        for index, kernel_dm in enumerate(projections.weight):
            with torch.device("meta"):
                part = nn.Linear(inputs, outputs, bias=projections.bias is not None)
            part.weight = nn.Parameter(kernel_dm.T)
            if projections.bias is not None:
                part.bias = nn.Parameter(projections.bias[index])
            each.append(Int8Projection(part))
        self.each = nn.ModuleList(each)

    def forward(self, x_nd: Tensor, index: int) -> Tensor:
        """Computes rows of one expert."""
        found: Tensor = self.each[index](x_nd)
        return found

    def grouped(self, x_pd: Tensor, end_x: Tensor) -> Tensor:
        """Computes rows sorted by expert; end_x: where the rows of each expert end."""
        of_each = zip(
            *((one.kernel, one.scale, one.bias, one.zero) for one in self.each), strict=True
        )
        product = grouped_int8 if torch.compiler.is_compiling() else _grouped_int8
        found: Tensor = product(x_pd, end_x, *map(list, of_each))
        return found


def in_one_instruction() -> bool:
    """Whether the processor multiplies uint8 by int8 without saturating sums of two products."""
    return bool(torch.cpu.get_capabilities().get("avx512_vnni"))


def check_int8(dtype: torch.dtype | str, device: torch.device) -> None:
    """Raises ValueError unless dtype is int8, the device a CPU, and torch has oneDNN."""
    if dtype not in ("int8", torch.int8):
        raise ValueError(f'dtype must be a torch.dtype or "int8"; got {dtype!r}')
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        had = f"device {device.type}" if device.type != "cpu" else "a torch without oneDNN"
        raise ValueError(f"dtype int8 needs a CPU and torch's oneDNN; got {had}")


def _affine(x_nd: Tensor, kernel: Tensor, scale: Tensor, bias: Tensor, zero: Tensor) -> Tensor:
    largest_n1 = x_nd.abs().amax(dim=1, keepdim=True).clamp_(min=TINY)
    # Conversion to integer truncates, so adding 0.5 rounds; the offset makes it uint8.
    shifted_nd = (x_nd * (LARGEST / largest_n1)).add_(OFFSET + 0.5).to(torch.uint8)
    if kernel.is_floating_point():
        y_nf = F.linear(shifted_nd.float() - OFFSET, kernel) * (scale / LARGEST)
    else:
        product = one_dnn_int8 if torch.compiler.is_compiling() else _one_dnn_int8
        y_nf = product(shifted_nd, kernel, scale, zero)
    return torch.addcmul(bias, y_nf, largest_n1)


def _grouped_int8(
    x_pd: Tensor,
    end_x: Tensor,
    kernels: list[Tensor],
    scales: list[Tensor],
    biases: list[Tensor],
    zeros: list[Tensor],
) -> Tensor:
    each = zip(split(x_pd, end_x), kernels, scales, biases, zeros, strict=True)
    found = [_affine(own_nd, *rest) for own_nd, *rest in each if len(own_nd)]
    return torch.cat(found) if found else x_pd.new_empty(0, len(scales[0]))


def split(x_pd: Tensor, end_x: Tensor) -> tuple[Tensor, ...]:
    """Splits rows by expert; the host waits for the sizes."""
    return x_pd.split(end_x.diff(prepend=end_x.new_zeros(1)).tolist())


def _one_dnn_int8(shifted_nd: Tensor, kernel: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Computes `s ((x8 + 128 - 128) W8) / 127`; some sizes have no fast kernel for int8 inputs."""
    given = shifted_nd, 1 / LARGEST, OFFSET, kernel, scale, zero, None, 1.0, 0
    return framework.product_int8(*given)


# Graphs call this op, since Inductor only takes constants for the kernel.
one_dnn_int8 = torch.library.custom_op("impl_torch::one_dnn_int8", _one_dnn_int8, mutates_args=())


grouped_int8 = torch.library.custom_op("impl_torch::grouped_int8", _grouped_int8, mutates_args=())


@grouped_int8.register_fake
def _(
    x_pd: Tensor, end_x: Tensor, kernels: list, scales: list, biases: list, zeros: list
) -> Tensor:
    return x_pd.new_empty(len(x_pd), len(scales[0]))


@one_dnn_int8.register_fake
def _(shifted_nd: Tensor, kernel: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return scale.new_empty(len(shifted_nd), len(scale))
