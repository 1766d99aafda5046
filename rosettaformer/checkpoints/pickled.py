"""State dicts that torch.save wrote. PyTorch is imported here only, when such a file is read or written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import install
from .checkpoint import CheckpointError

__all__ = ["SUFFIXES", "read", "write"]

SUFFIXES = (".pt", ".pth", ".bin")


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, by name. The file runs no code: it is read with weights_only=True."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    torch, weights = _torch()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever bytes in the file make the unpickler raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(path, [f"cannot be read as tensors alone (weights_only=True): {reason}"]) from None
    if not isinstance(state, Mapping):
        raise CheckpointError(path, [f"must hold a state dict, names to tensors; got {type(state).__name__}"])
    arrays, problems = {}, []
    for name, tensor in state.items():
        try:
            arrays[str(name)] = weights.to_numpy(tensor)
        except (AttributeError, TypeError, RuntimeError):  # no tensor, of no NumPy dtype, or sparse
            problems.append(f"must hold a state dict, names to dense tensors; got {name!r}: {_kind(tensor)}")
    if problems:
        raise CheckpointError(path, problems)
    return arrays


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a state dict; `path` must be free."""
    torch, weights = _torch()
    state = {name: weights.from_numpy(array) for name, array in tensors.items()}
    with path.open("xb") as file:  # given a path, torch.save would write its name into the file
        torch.save(state, file)


def _torch() -> Any:
    try:
        import torch

        from impl_torch import weights
    except ModuleNotFoundError:
        raise ValueError(f"{', '.join(SUFFIXES)} files need PyTorch: {install('torch')}; .safetensors files need nothing") from None
    return torch, weights


def _kind(value: Any) -> str:
    return f"a tensor of {value.dtype}, {value.layout}" if hasattr(value, "layout") else f"a {type(value).__name__}"
