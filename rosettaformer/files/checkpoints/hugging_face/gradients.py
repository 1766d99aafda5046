"""Converts gradients named like a folder's tensors to canonical names."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.suggestions import nearest

from .. import tables
from .reading import family_of


def canonical(folder: str | Path, config: TransformerConfig, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames gradients to canonical names. Gradients of tied tensors are added.

    Raises ValueError on an unknown name, on a wrong shape, and if a tensor has no gradient; an expert
    may have none, which is zero.
    """
    family = family_of(Path(folder), arrays)
    if family is None:
        raise ValueError(f"{folder} is not a folder of a supported family; name the checkpoint's folder")
    rows = family.rows(config, [family.native(key) for key in arrays])
    natives = {native.name: native for native in tables.natives(rows, config)}
    names = {row.parts[0].name: row.name for row in family.table}
    stored = {**family.twins} | {names[name]: names[other] for name, other in parameters.ties(config).items()}
    found: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        name = family.native(key)
        name = stored.get(name, name)
        if name not in natives:
            raise ValueError(f"there is no tensor {key} in the folder for this gradient{nearest(name, natives)}")
        if array.shape != natives[name].shape:
            raise ValueError(f"the gradient of {key} must have the shape {natives[name].shape}; got {array.shape}")
        found[name] = found[name] + array if name in found else array
    for name, native in natives.items():
        # A selection bias takes part in the choice of experts only; no gradient reaches an expert without tokens.
        if native.parts[0][0].name.endswith("selection_bias") or len(re.findall(r"\.\d+\.", name)) > 1:
            found.setdefault(name, np.zeros(native.shape, array.dtype))
    if missing := [name for name in natives if name not in stored and name not in found]:
        raise ValueError(f"every tensor needs a gradient; missing: {', '.join(missing[:4])}")
    return dict(tables.canonical((natives[name], found[name]) for name in natives if name in found))
