"""Cases on a mesh: how a port's file is asked, and what it returns as NumPy."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ...case import Case, numpy_dtype
from ...status import ON_ONE_DEVICE
from ..port import NotCovered


def answer(module: ModuleType, case: Case) -> Any:
    """Returns what `on_mesh(case)` of a port's file returns, as NumPy. Raises NotCovered if it raises NotImplementedError."""
    if not callable(function := getattr(module, "on_mesh", None)):
        raise NotCovered(ON_ONE_DEVICE)
    try:
        found = gathered(function(case))
    except NotImplementedError as error:
        raise NotCovered(str(error) or f"on_mesh does not answer {case.component}") from error
    if case.component == "training_steps" and isinstance(found, Mapping) and "losses" in found:  # numbers, which have no dtype of their own
        return {**found, "losses": np.asarray(found["losses"]).astype(numpy_dtype(case.dtype))}
    return found


def gathered(value: Any) -> Any:
    """Returns whole NumPy arrays, of tensors of any framework that may be sharded; collective if one lies in several processes."""
    if isinstance(value, Mapping):
        return {name: gathered(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(gathered(part) for part in value)
    if hasattr(value, "full_tensor"):  # torch's DTensor
        value = value.full_tensor()
    if hasattr(value, "detach"):
        from impl_torch.weights import to_numpy

        return to_numpy(value)
    if hasattr(value, "addressable_shards"):  # a jax.Array
        if not (value.is_fully_addressable or value.is_fully_replicated):
            from jax.experimental.multihost_utils import process_allgather

            return process_allgather(value, tiled=True)
        return np.asarray(value)
    return value.numpy() if hasattr(value, "numpy") else value


def by_processes(module: ModuleType) -> bool:
    """Whether a port needs one process for each device: its file says `processes`, or has torch and not JAX."""
    said = getattr(module, "processes", None)
    if said is not None:
        return bool(said)
    return getattr(module, "framework", "") == "torch" or ("torch" in sys.modules and not {"jax", "tensorflow"} & set(sys.modules))
