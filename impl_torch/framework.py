"""What a traced program does not know: the values of its tensors, and the kernels that will run it."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["bounds", "exporting", "has_values", "same_size"]


def has_values(token: Tensor) -> bool:
    """Whether the host may look at the values: not in a trace, nor of a fake or meta tensor, nor of one that `torch.func` wraps."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode() is not None:
        return False
    return not (token.is_meta or is_fake(token) or torch._C._functorch.is_functorch_wrapped_tensor(token))


def bounds(x: Tensor) -> list[Any]:
    """The lowest and the highest value, in one transfer from the device; nothing where there are no values to look at."""
    if not has_values(x) or not x.numel():
        return []
    return torch.stack((x if x.is_floating_point() else x.long()).aminmax()).tolist()


def exporting() -> bool:
    """Whether the graph that is traced may run elsewhere than in torch: `torch.export`, ONNX, `make_fx` and `jit.trace`."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch.jit.is_tracing() or get_proxy_mode() is not None


def same_size(one: int, other: int) -> bool:
    """Whether two sizes are equal in every run of the graph; of symbols that may be equal by chance it is not."""
    same = one == other
    return bool(same) if isinstance(same, Tensor) else statically_known_true(same)  # sizes are tensors in `jit.trace`
