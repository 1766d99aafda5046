"""Cases for PyTorch: any `nn.Module` or function of tensors."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from impl_torch import weights
from impl_torch.compiled import compiled

from ..case import Case
from ..port import Unsupported

__all__ = ["Adapter"]

# "addmm_impl_cpu_" not implemented for 'Half' · Could not run 'aten::mm' with arguments from the 'CUDA' backend
_NO_KERNEL = re.compile(r"\"(\w+)\" not implemented for '\w+'|Could not run '([\w:.]+)' with arguments from")


class Adapter:
    """Puts cases to a port: a module or namespace with `components`, and where they differ from ours `weights`, `compiled`, `modes`."""

    def __init__(self, port: Any) -> None:
        self.port = port

    def run(self, case: Case) -> Any:
        """The outputs for the case, as NumPy in the dtype that the port returned.

        Raises ValueError where the device is missing or the parameters do not fit, Unsupported where torch has no kernel.
        """
        device = _device(case.device)
        inputs = {name: _to_device(value, device) for name, value in case.inputs.items()}
        with _matmul_precision(case.device), torch.inference_mode(), _unsupported():
            return _to_numpy(self._callable(case, device)(**inputs))

    def _callable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        dtype = getattr(torch, case.dtype)
        built = self.port.components[case.component](case.config, dtype)
        if isinstance(built, torch.nn.Module):
            built = built.to(device, dtype).eval()
            if case.parameters:
                weights.load(built, case.parameters, case.config, case.component, getattr(self.port, "weights", weights.TABLE))
        if (case.mode or getattr(self.port, "modes", ("eager",))[0]) != "compiled":
            return built
        # Sizes that changed between earlier cases would otherwise make this case's graph a dynamic one.
        torch.compiler.reset()
        return getattr(self.port, "compiled", compiled)(built)

    @staticmethod
    def describe() -> dict[str, Any]:
        """Version, devices and matmul precision, for `doctor`."""
        cuda = [f"cuda: {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return {
            "version": {"torch": str(torch.__version__)},
            "devices": ["cpu", *cuda],
            "precision": torch.get_float32_matmul_precision(),
        }


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda", "cuda-tf32"):
        raise ValueError(f"device must be one of cpu, cuda, cuda-tf32; got {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device {name} needs a CUDA device; torch sees none")
    return torch.device(name.removesuffix("-tf32"))


def _to_device(value: Any, device: torch.device) -> Any:
    return weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value


def _to_numpy(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_to_numpy(item) for item in value)
    return weights.to_numpy(value) if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def _matmul_precision(device: str) -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device == "cuda-tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextlib.contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if missing := _NO_KERNEL.search(str(error)):
            raise Unsupported(missing[1] or missing[2]) from error
        raise
