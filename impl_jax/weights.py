"""Converts between canonical NumPy parameters and the variables of any module, bit for bit."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical

__all__ = ["TABLE", "export", "from_numpy", "load", "to_numpy"]

TABLE = layout.CANONICAL  # modules store kernels as the reference declares them


def load(
    module: nnx.Module,
    parameters: Mapping[str, np.ndarray],
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> None:
    """Writes canonical parameters into the module's variables, each on its current devices.

    Raises one ValueError that lists every missing, unexpected and misshapen tensor, every wrong
    dtype, and every parameter that would keep its old value; the module is then unchanged.
    """
    variables, problems = _variables(module, config, component, table)
    problems += [
        f"{name} must be {variable.dtype}; got {parameters[name].dtype}"
        for name, (_, variable) in variables.items()
        if name in parameters and parameters[name].dtype != variable.dtype
    ]
    shapes = {native_name: variable.shape for native_name, variable in variables.values()}
    try:
        native = layout.to_native(parameters, table, config, component)
        canonical.match({name: native[name] for name in shapes}, shapes)
    except ValueError as error:
        problems.insert(0, str(error).removeprefix(_HEADLINE))
    if problems:
        raise ValueError(_HEADLINE + "\n  ".join(problems))
    for native_name, variable in variables.values():
        place = getattr(variable.get_value(), "sharding", None)
        variable.set_value(from_numpy(native[native_name], place))


def export(
    module: nnx.Module,
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> dict[str, np.ndarray]:
    """Returns the module's parameters by canonical name, C-contiguous.

    Raises ValueError if they do not match the config, or if one would be left out, such as an
    adapter's.
    """
    variables, problems = _variables(module, config, component, table)
    if problems:
        headline = "the module cannot be exported with this config and table:\n  "
        raise ValueError(headline + "\n  ".join(problems))
    native = {name: to_numpy(variable.get_value()) for name, variable in variables.values()}
    return layout.from_native(native, table, config, component)


def to_numpy(tensor: jax.Array) -> np.ndarray:
    """Copies an array bit for bit; bfloat16 is `ml_dtypes.bfloat16`, as everywhere in JAX."""
    return np.array(tensor)


def from_numpy(
    array: np.ndarray, device: jax.Device | jax.sharding.Sharding | None = None
) -> jax.Array:
    """Copies an array bit for bit, to this or the default device.

    Without jax_enable_x64, JAX has no 64-bit types: integers that fit become 32-bit; other arrays
    raise ValueError.
    """
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    if held != array.dtype and not (
        array.dtype.kind in "iu" and np.array_equal(array.astype(held), array)
    ):
        raise ValueError(
            f"{array.dtype} needs jax_enable_x64; without it JAX would round to {held}"
        )
    # A copy, since JAX may share the memory of an array.
    return jax.device_put(np.array(array, held), device)


_HEADLINE = "parameters do not fit:\n  "


def _variables(
    module: nnx.Module, config: TransformerConfig, component: str, table: layout.Table
) -> tuple[dict[str, tuple[str, nnx.Variable[jax.Array]]], list[str]]:
    """Returns canonical name -> native name and variable, and the problems: variables that the
    module lacks, and parameters that no row covers.
    """
    found, problems = {}, []
    for name, axes in canonical.axes(config, component).items():
        native_name, _ = layout.native(name, axes, table)
        node = _walk(module, native_name)
        if isinstance(node, nnx.Variable):
            found[name] = (native_name, node)
        else:
            problems.append(f"the module has no variable {native_name} for {name}")
    known = {id(variable) for _, variable in found.values()}
    problems += [
        f"no row of the weight table fits the module's {'.'.join(map(str, path))}"
        for path, node in nnx.iter_graph(module)
        if isinstance(node, nnx.Param) and id(node) not in known
    ]
    return found, problems


def _walk(node: Any, path: str) -> Any:
    """Returns the node at a dotted path of attributes, keys and indices, or None."""
    for part in path.split("."):
        if hasattr(node, part):
            node = getattr(node, part)
            continue
        try:
            node = node[int(part) if part.isdigit() else part]
        except (IndexError, KeyError, TypeError):
            return None
    return node
