"""Converts between canonical NumPy parameters and the tensors of any module, bit for bit.

Works for every `nn.Module` whose layout a table describes; `TABLE` is that of this package.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical

from . import precision
from .framework import is_sharded

__all__ = ["TABLE", "export", "from_numpy", "load", "tensors", "to_numpy"]

Found = dict[str, tuple[str, Tensor | None]]  # canonical name -> native name, tensor

# End of canonical name, end of native name, native axes; linear layers store outputs first.
TABLE: layout.Table = (
    *(("table", "weight", axes) for axes in ("v d", "p d", "a d")),
    *(("kernel", "weight", axes) for axes in ("(h k) d", "(g k) d", "(g e) d", "d (h e)", "f d")),
    *(("output.kernel", "output.weight", axes) for axes in ("d f", "d w")),
    *(("kernel", "weight", axes) for axes in ("w d", "1 d", "x d", "x d m", "r d", "v d", "c r")),
    ("output.kernel", "output.weight", "x m d"),
    *(("bias", "bias", axes) for axes in ("(h k)", "(g k)", "(g e)", "d", "f", "r", "v", "c")),
    *(("bias", "bias", axes) for axes in ("w", "x", "x m", "x d")),
    *((name, name, axes) for name, axes in (("selection_bias", "x"), ("sink", "h"))),
    *(("scale", "weight", axes) for axes in ("d", "k", "(h k)", "(g k)")),
    *(("offset", "bias", axes) for axes in ("d", "k", "(h k)", "(g k)")),
)


def load(
    module: nn.Module,
    parameters: Mapping[str, np.ndarray],
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> None:
    """Writes canonical parameters into the module, in place.

    Raises one ValueError with every missing, unexpected or misshapen array, every wrong dtype,
    every tensor that the module lacks or holds without values (meta), and every parameter of the
    module that would not be filled; the module is then unchanged.
    """
    found = _found(module, config, component, table)
    problems = [*_problems(module, parameters, found)]
    try:
        arrays = layout.to_native(parameters, table, config, component)
    except ValueError as error:
        raise ValueError("\n  ".join([str(error), *problems])) from None
    if problems:
        raise ValueError("parameters do not fit:\n  " + "\n  ".join(problems))
    natives = _held(found)
    canonical.match(arrays, {name: tuple(tensor.shape) for name, tensor in natives.items()})
    with torch.no_grad():
        for name, tensor in natives.items():
            values = from_numpy(arrays[name], tensor.device)
            if is_sharded(tensor):
                from torch.distributed.tensor import distribute_tensor

                values = distribute_tensor(values, tensor.device_mesh, tensor.placements)
            tensor.copy_(values)


def export(
    module: nn.Module,
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> dict[str, np.ndarray]:
    """Returns the module's parameters by canonical name, as new arrays.

    Sharded parameters are gathered, for which every process must call this. Raises ValueError if a
    parameter is missing, misshapen or without values (meta), if a parameter would be left out, or
    if two parameters differ that the config ties.
    """
    found, problems = _held(_found(module, config, component, table)), []
    for name, tensor in found.items():
        if tensor.is_meta:
            problems.append(f"the module's {name} has no values: it is on the meta device")
        other = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
        if other and not is_sharded(tensor):
            problems.append(f"the module's {name} is a {type(tensor).__name__}, not a plain tensor")
    # A parametrized tensor is computed from other parameters.
    computed = tuple(re.sub(r"([^.]+)$", r"parametrizations.\1.", name) for name in found)
    problems += [
        f"no array would hold the module's {name}"
        for name in _others(module, found.values())
        if not name.startswith(computed)
    ]
    problems += [] if problems else _untied(module, config, component, table)
    if problems:
        headline = "the module cannot be exported with this config and table:\n  "
        raise ValueError(headline + "\n  ".join(problems))
    natives = {name: to_numpy(tensor) for name, tensor in found.items()}
    return layout.from_native(natives, table, config, component)


def tensors(module: nn.Module, config: TransformerConfig) -> dict[str, Tensor]:
    """Returns a model's own tensors by canonical name, in native layout."""
    found = _found(module, config, "transformer", TABLE).items()
    return {name: tensor for name, (_, tensor) in found if tensor is not None}


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Copies a tensor, gathering a sharded one; bfloat16 becomes `ml_dtypes.bfloat16`."""
    copy = _whole(tensor.detach()).to("cpu", copy=True)
    if copy.dtype == torch.bfloat16:
        return copy.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return copy.numpy()


def from_numpy(array: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """Copies an array to a tensor on the device."""
    copy = np.array(array, order="C")
    if copy.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(copy).to(device)


def _whole(tensor: Tensor) -> Tensor:
    """Returns the tensor; gathers a `DTensor`."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def _problems(
    module: nn.Module, parameters: Mapping[str, np.ndarray], found: Found
) -> Iterator[str]:
    for name, (native_name, tensor) in found.items():
        if tensor is None:
            yield f"the module has no {native_name} for {name}"
            continue
        if tensor.is_meta:
            yield f"the module's {native_name} can hold no values: it is on the meta device"
        kind = precision.dtype_name(tensor.dtype)
        if name in parameters and str(parameters[name].dtype) != kind:
            yield f"{name} must be {kind}; got {parameters[name].dtype}"
    for native_name in _others(module, _held(found).values()):
        yield f"nothing fills the module's {native_name}"


def _others(module: nn.Module, found: Iterable[Tensor]) -> Iterator[str]:
    """Yields parameters that share no storage with these tensors, since a table may name a view."""
    storages = {tensor.untyped_storage() for tensor in found}
    for name, parameter in module.named_parameters():
        if parameter.untyped_storage() not in storages:
            yield name


def _untied(
    module: nn.Module, config: TransformerConfig, component: str, table: layout.Table
) -> Iterator[str]:
    """Yields ties of the config that the module breaks, for example by parametrizing one side."""
    letters = canonical.axes(config.replace(share_embeddings=False, tie_logits=False))
    for names in canonical.ties(config).items() if component == "transformer" else ():
        rows = [layout.fitting(name, letters[name], table) for name in names]
        pairs = [(name, row) for name, row in zip(names, rows, strict=True) if row is not None]
        natives = [name.removesuffix(end) + native_end for name, (end, native_end, _) in pairs]
        tensors = [tensor for name in natives if (tensor := _tensor(module, name)) is not None]
        if len(tensors) == 2 and tensors[0] is not tensors[1]:
            alias, stored = map(_whole, tensors)
            axes, stored_axes = (native_axes.split() for _, (_, _, native_axes) in pairs)
            if not torch.equal(alias, stored if axes == stored_axes else stored.T):
                one, other = natives
                yield f"the module's {one} must be its {other}, since the config ties them"


def _found(
    module: nn.Module, config: TransformerConfig, component: str, table: layout.Table
) -> Found:
    """Maps each canonical name to the native name and its tensor, or None."""
    for part in module.modules():
        reshard = getattr(part, "reshard", None)
        if callable(reshard):  # FSDP2 leaves gathered copies in place of its parameters
            reshard()
    found: Found = {}
    for name, letters in canonical.axes(config, component).items():
        native_name, _ = layout.native(name, letters, table)
        found[name] = native_name, _tensor(module, native_name)
    return found


def _held(found: Found) -> dict[str, Tensor]:
    """Returns the tensors that the module has, by native name."""
    return {name: tensor for name, tensor in found.values() if tensor is not None}


def _tensor(module: nn.Module, native_name: str) -> Tensor | None:
    """Returns the tensor with this name, or None."""
    node: Any = module
    for part in native_name.split("."):
        node = getattr(node, part, None)
    return node if isinstance(node, Tensor) else None
