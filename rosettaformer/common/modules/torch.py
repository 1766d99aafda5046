"""The interface for PyTorch modules."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from impl_torch.weights import from_numpy, to_numpy

from . import DEVICES
from .recording import Enter, Leave, Recording, of_rows

__all__ = ["calls", "device", "eager", "function", "gradients", "is_tensor", "like", "paths", "tensor", "to_numpy", "variables"]


def is_tensor(value: Any) -> bool:
    """Whether the value is a tensor."""
    return isinstance(value, torch.Tensor)


def tensor(array: Any) -> torch.Tensor:
    """Converts an array to a tensor of the nearest supported dtype."""
    return torch.as_tensor(array)


def like(array: np.ndarray, tensor: torch.Tensor) -> torch.Tensor:
    """Converts an array to a tensor with the other tensor's dtype and device."""
    return from_numpy(array, tensor.device).to(tensor.dtype)


def device(name: str, names: Sequence[str] = DEVICES) -> torch.device:
    """Returns a device; cuda-tf32 is cuda with TF32 products. Raises ValueError if unavailable."""
    if name not in names:
        raise ValueError(f"device must be one of {', '.join(names)}; got {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device {name} needs a CUDA device; torch finds none")
    return torch.device(name.removesuffix("-tf32"))


def eager() -> contextlib.AbstractContextManager[None]:
    """Does nothing: modules run eagerly unless compiled from outside."""
    return contextlib.nullcontext()


def function(module: torch.nn.Module) -> Callable[..., Any]:
    """Returns the function that a call runs, with the module's arguments."""
    return module.forward


def paths(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields every module by path, from the outermost; a shared module only at its first path."""
    yield from module.named_modules()


def variables(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every parameter and buffer; a shared one under each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


@contextlib.contextmanager
def calls(rows: Iterable[tuple[str, torch.nn.Module]], enter: Enter, leave: Leave) -> Iterator[None]:
    """Reports calls through hooks, which also disable the fused paths of torch's layers."""
    rows = [*rows]
    recording = Recording(of_rows(rows), enter, leave)

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        return recording.begin(module, module.forward, args, kwargs)

    def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        recording.end(module, output)

    handles = []
    for module in {id(module): module for _, module in rows}.values():
        handles += [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after, with_kwargs=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradients(outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor], sought: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns contiguous gradients of the sum of cotangent * output; zeros for unused tensors."""
    pairs = [(output, cotangent.to(output.dtype)) for output, cotangent in zip(outputs, cotangents, strict=True) if output.requires_grad]
    active = [tensor for tensor in sought if tensor.requires_grad] if pairs else []
    pulled = torch.autograd.grad([one for one, _ in pairs], active, [one for _, one in pairs], allow_unused=True) if active else ()
    found = dict(zip(map(id, active), pulled, strict=True))
    each = (found.get(id(tensor)) for tensor in sought)
    return [
        torch.zeros_like(tensor, requires_grad=False) if gradient is None else gradient.contiguous()
        for tensor, gradient in zip(sought, each, strict=True)
    ]
