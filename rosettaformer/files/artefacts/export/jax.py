"""Writes StableHLO from the JAX port: one serialized `jax.export` per function, for any sizes."""

from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp

from impl_jax.framework import device_context
from impl_jax.programs import entries
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig

from ..signature import Entry
from . import Exported, beside
from .functions import ids_of, of_config

PLATFORMS = ("cpu", "cuda", "tpu")
IDS = "int32"  # JAX has no int64 without jax_enable_x64
LIMIT = 1 << 31  # bytes that fit into the file, which is a flatbuffer
# A symbol is at least 1, but the first step has 0 earlier tokens: q is their number plus 1.
SIZES = {"p": "q - 1", "p+t": "q - 1 + t"}


def write(model: Transformer, config: TransformerConfig, kind: str, path: Path, dtype: str) -> Exported:
    """Writes one file per function. Raises ValueError on a large model or another dtype.

    A float64 model must be created under jax_enable_x64, as `device_context` sets it; otherwise JAX
    creates it in float32.
    """
    leaves = [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)]
    if others := {str(leaf.dtype) for leaf in leaves} - {dtype}:
        raise ValueError(f"the model's parameters must be {dtype}; got {', '.join(sorted(others))}")
    held = sum(leaf.nbytes for leaf in leaves)
    if held >= LIMIT:
        raise ValueError(
            f"a StableHLO export must be smaller than 2 GiB; the model's parameters take {held / (1 << 30):.1f} GiB; "
            "see docs/artefacts.md#stablehlo"
        )
    functions = of_config(config, dtype, IDS)
    model.eval()
    with device_context("cpu", dtype):
        for name, entry in functions.items():
            beside(path, name).write_bytes(_exported(model, entry).serialize())
    files = {name: beside(path, name).name for name in functions}
    versions = {name: version(name) for name in ("jax", "jaxlib", "flax")}
    return Exported(functions, files, dict.fromkeys(ids_of(config), "nan"), versions, dict.fromkeys(functions, "forward"))


def _exported(model: Transformer, entry: Entry) -> jax.export.Exported:
    """Exports a function that takes its inputs by name, in evaluation mode."""
    function = getattr(entries, entry.name)
    scope = jax.export.SymbolicScope()

    def call(**given: jax.Array) -> dict[str, jax.Array]:
        found: dict[str, jax.Array] = function(model, **given)
        return found

    call.__name__ = entry.name
    given = {}
    for tensor in entry.inputs:
        shape = jax.export.symbolic_shape(", ".join(SIZES.get(str(size), str(size)) for size in tensor.shape), scope=scope)
        given[tensor.name] = jax.ShapeDtypeStruct(shape, jnp.dtype(tensor.dtype))
    return jax.export.export(jax.jit(call), platforms=PLATFORMS)(**given)
