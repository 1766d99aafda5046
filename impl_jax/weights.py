"""Weights: canonical NumPy parameters into any Flax NNX module and back, bit by bit."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical

__all__ = ["TABLE", "export", "from_numpy", "load", "to_numpy"]

TABLE = layout.CANONICAL  # the modules hold kernels as the reference declares them


def load(
    module: nnx.Module,
    parameters: Mapping[str, np.ndarray],
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> None:
    """Puts canonical parameters into the module's variables, each on the devices where it lies.

    Raises one ValueError that lists every missing, unexpected and misshapen tensor, every other
    dtype, and every parameter of the module that would keep its old value; the module is then
    unchanged.
    """
    variables = _variables(module, config, component, table)
    problems = [
        f"{name} must be {variable.dtype}; got {parameters[name].dtype}"
        for name, (_, variable) in variables.items()
        if name in parameters and parameters[name].dtype != variable.dtype
    ]
    native: dict[str, np.ndarray] = {}
    try:
        native = layout.to_native(parameters, table, config, component)
        canonical.match(
            native, {native_name: variable.shape for native_name, variable in variables.values()}
        )
    except ValueError as error:
        problems.insert(0, str(error).removeprefix(_HEADLINE))
    problems += [
        f"no row of the weight table loads the module's {path}"
        for path in _others(module, variables)
    ]
    if problems:
        raise ValueError(_HEADLINE + "\n  ".join(problems))
    for native_name, variable in variables.values():
        variable.set_value(
            from_numpy(native[native_name], getattr(variable.get_value(), "sharding", None))
        )


def export(
    module: nnx.Module,
    config: TransformerConfig,
    component: str = "transformer",
    table: layout.Table = TABLE,
) -> dict[str, np.ndarray]:
    """The module's parameters by canonical name, C-contiguous.

    Raises ValueError if they are not the config's, and if the module has one that would be left
    out, such as an adapter's.
    """
    variables = _variables(module, config, component, table)
    if left_out := [
        f"no array would hold the module's {path}" for path in _others(module, variables)
    ]:
        raise ValueError(
            "the module cannot be exported by this config and table:\n  " + "\n  ".join(left_out)
        )
    native = {
        native_name: to_numpy(variable.get_value()) for native_name, variable in variables.values()
    }
    return layout.from_native(native, table, config, component)


def to_numpy(tensor: jax.Array) -> np.ndarray:
    """A copy of the same bits; bfloat16 is `ml_dtypes.bfloat16`, which is JAX's own bfloat16."""
    return np.array(tensor)


def from_numpy(
    array: np.ndarray, device: jax.Device | jax.sharding.Sharding | None = None
) -> jax.Array:
    """A copy of the same bits, on that device or on the default one.

    Without jax_enable_x64 JAX has no 64-bit types: integers that fit become 32-bit; other arrays
    raise ValueError.
    """
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    if held != array.dtype and not (
        array.dtype.kind in "iu" and np.array_equal(array.astype(held), array)
    ):
        raise ValueError(
            f"{array.dtype} needs jax_enable_x64; without it JAX would round to {held}"
        )
    return jax.device_put(
        np.array(array, held), device
    )  # of a copy, since JAX may share the memory of an array


_HEADLINE = "parameters do not fit:\n  "


def _variables(
    module: nnx.Module, config: TransformerConfig, component: str, table: layout.Table
) -> dict[str, tuple[str, nnx.Variable[Any]]]:
    """Canonical name -> native name and the variable of that name.

    Raises ValueError that lists those that the module lacks.
    """
    found, missing = {}, []
    for name, axes in canonical.axes(config, component).items():
        native_name, _ = layout.native(name, axes, table)
        node = _walk(module, native_name)
        if isinstance(node, nnx.Variable):
            found[name] = (native_name, node)
        else:
            missing.append(f"the module has no variable {native_name} for {name}")
    if missing:
        raise ValueError(
            _HEADLINE
            + "\n  ".join(
                [
                    *missing,
                    *(
                        f"no row of the weight table loads the module's {path}"
                        for path in _others(module, found)
                    ),
                ]
            )
        )
    return found


def _others(
    module: nnx.Module, variables: Mapping[str, tuple[str, nnx.Variable[Any]]]
) -> list[str]:
    """The paths of the module's parameters that are none of these."""
    known = {id(variable) for _, variable in variables.values()}
    nodes = nnx.iter_graph(module)
    return [
        ".".join(map(str, path))
        for path, node in nodes
        if isinstance(node, nnx.Param) and id(node) not in known
    ]


def _walk(node: Any, path: str) -> Any:
    """What stands at a dotted path of attributes, keys and indices; None if it leads nowhere."""
    for part in path.split("."):
        try:
            node = (
                getattr(node, part)
                if hasattr(node, part)
                else node[int(part) if part.isdigit() else part]
            )
        except (IndexError, KeyError, TypeError):
            return None
    return node
