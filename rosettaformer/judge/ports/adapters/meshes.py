"""Cases on a mesh: calls the port file's `on_mesh` and converts its outputs to NumPy."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ...case import Case, numpy_dtype
from ...status import ON_ONE_DEVICE
from ..port import NotCovered


def answer(module: ModuleType, case: Case) -> Any:
    """Returns `on_mesh(case)` as NumPy. Raises NotCovered for NotImplementedError."""
    if not callable(function := getattr(module, "on_mesh", None)):
        raise NotCovered(ON_ONE_DEVICE)
    try:
        found = gathered(function(case))
    except NotImplementedError as error:
        raise NotCovered(str(error) or f"on_mesh does not support {case.component}") from error
    if case.component == "training_steps" and isinstance(found, Mapping) and "losses" in found:  # plain numbers without a dtype
        return {**found, "losses": np.asarray(found["losses"]).astype(numpy_dtype(case.dtype))}
    return found


def gathered(value: Any) -> Any:
    """Returns NumPy arrays of possibly sharded tensors. Collective across processes."""
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
    """Whether the port needs one process per device: `processes`, or torch without JAX."""
    said = getattr(module, "processes", None)
    if said is not None:
        return bool(said)
    return getattr(module, "framework", "") == "torch" or ("torch" in sys.modules and not {"jax", "tensorflow"} & set(sys.modules))
