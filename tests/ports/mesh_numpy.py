"""A port that runs a mesh in one process: the reference on each device's rows, with the parts joined. Only `data` splits.

The environment variable FAULT selects a bug: `mean`, the mean of the parts' means; `twice`, gradients added twice; `lost`, a
missing part.
"""

import dataclasses
import os

import numpy as np

from reference_numpy.sharding import chunks
from rosettaformer.judge.expectation.components import answer

FAULT = os.environ.get("FAULT", "")


def on_mesh(case):
    """Returns the joined outputs."""
    if case.mesh.model > 1 or case.component not in ("transformer", "transformer_vjp", "training_loss", "training_loss_vjp"):
        raise NotImplementedError("only the rows of a decoder's batch are split")
    given = dict(case.inputs)
    if case.component.startswith("training") and FAULT != "mean":
        given["total"] = int((given["target"][:, 1:] != case.config.padding_id).sum())
    rows = [part for part in chunks(len(given["target"]), case.mesh.data) if part.start < part.stop]
    parts = [_part(case, given, part) for part in (rows[:-1] if FAULT == "lost" else rows)]
    if case.component == "transformer":
        return np.concatenate([part["output"] for part in parts])
    factor = 2 if FAULT == "twice" and case.component.endswith("_vjp") else 1 / len(rows) if FAULT == "mean" else 1
    return {name: (sum(part[name] for part in parts) * factor).astype(value.dtype) for name, value in parts[0].items()}


def _part(case, given, rows):
    inputs = {name: value[rows] if isinstance(value, np.ndarray) and value.ndim else value for name, value in given.items()}
    return answer(dataclasses.replace(case, inputs=inputs))
