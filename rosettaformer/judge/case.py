"""A case: one question to a port, as data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh

from ..files.checkpoints.strict import DTYPES, numpy_dtype
from .stored import Stored

SUITE_RELEASE = 1  # of the cases; grows with a release of rosettaformer that ships new ones
REAL, LAST = "real", "last"  # what of the outputs is compared


@dataclass(frozen=True)
class Case:
    """What a port is given: a component, its config, parameters and inputs, and how to run it.

    inputs: by the argument names of the reference's function; arrays, plain values such as `causal=True`, or tuples of them. A nested
    mapping has dotted names: `keep.layers.0.self_attention_dropout`, `gradients.hidden.kernel`, `strategy.end_id`.
    parameters: by canonical name, relative to the component.
    catches: the defects of the catalogue that this case must reveal.
    core: whether it is one of its component's few cases that a quick check runs; a full check runs all.
    shared: the kernels that all heads share, each for its own slice of the width: zero except for one block, whose gradient is the sum over
    the heads.
    twice: the port answers twice and must answer the same.
    release: the suite release that first ships the case. excluded: why the case cannot be run on a port; empty if it can.
    folder: where the parameters also are as Hugging Face's folders, one for each dtype and named after it; empty if they are not. compared:
    what of the outputs is compared, `REAL` tokens or the `LAST` position; everything if empty. outputs: the names of those that are; all if
    empty.
    mesh: the devices that the port computes on; None if it is one.
    splits: the numbers of target tokens that an artefact reads at a time, with its cache; empty if all at once. outside: the side whose ids
    are out of range somewhere; empty if none are. too_large: the dtypes in which there is no memory
    for the case, with the reason.
    A case is declared in float64; `at` gives the case that a port runs.
    """

    name: str
    component: str
    config: TransformerConfig
    inputs: Mapping[str, Any]
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    catches: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    core: bool = False
    twice: bool = False
    release: int = 1
    excluded: str = ""
    shared: tuple[str, ...] = ()
    folder: str = ""
    compared: str = ""
    outputs: tuple[str, ...] = ()
    dtype: str = "float64"
    device: str = "cpu"
    mode: str = ""  # "": the port's default mode
    mesh: Mesh | None = None
    splits: tuple[int, ...] = ()
    outside: str = ""
    too_large: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Returns the stable identity of the case, without how it is run."""
        return f"{self.component}/{self.name}"

    @property
    def size(self) -> int:
        """Returns the size of its arrays in bytes, without parameters that are in a folder too."""
        inputs = sum(value.nbytes for value in self.inputs.values() if isinstance(value, np.ndarray))
        if self.folder:
            return inputs
        if isinstance(self.parameters, Stored):
            return inputs + self.parameters.nbytes
        return inputs + sum(array.nbytes for array in self.parameters.values())

    def at(self, dtype: str, device: str = "cpu", mode: str = "") -> "Case":
        """Returns the case with every floating array rounded to dtype, to be run on that device in that mode."""
        return dataclasses.replace(
            self,
            inputs={name: _cast(value, dtype) for name, value in self.inputs.items()},
            parameters=self.parameters.at(dtype)
            if isinstance(self.parameters, Stored)
            else {name: _cast(value, dtype) for name, value in self.parameters.items()},
            dtype=dtype,
            device=device,
            mode=mode,
        )

    @property
    def real_bt(self) -> np.ndarray | None:
        """The mask of the real tokens, of the target if there is one; None if all are real."""
        return next((self.inputs[name] for name in MASKS if self.inputs.get(name) is not None), None)

    def part(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what is compared of a port's outputs: 0 takes the place of whatever they are at padding.

        An output without the axes `b t` of the tokens is returned as it is.
        """
        found = {name: array for name, array in outputs.items() if not self.outputs or name in self.outputs}
        if self.compared == LAST:
            return {name: array[:, -1:] if array.ndim == 3 else array for name, array in found.items()}
        if self.compared == REAL and self.real_bt is not None:
            return {name: _zero_at_padding(name, array, self.real_bt) for name, array in found.items()}
        return found


MASKS = ("target_mask_bt", "source_mask_bs")


def pinned(suite: Any) -> int:
    """Returns the suite release that a port pins. Raises ValueError unless it is one that this package has."""
    if type(suite) is not int or not 1 <= suite <= SUITE_RELEASE:
        raise ValueError(
            f"suite must be a suite release from 1 to {SUITE_RELEASE}; got {suite!r}. Upgrade rosettaformer, or remove `suite`: "
            "a port that pins no release is asked every case"
        )
    return suite


def _zero_at_padding(name: str, array: np.ndarray, real_bt: np.ndarray) -> np.ndarray:
    axes = "lbtd" if name.endswith("_lbtd") else "btv"
    start = axes.index("b")
    if array.ndim != len(axes) or array.shape[start : start + 2] != real_bt.shape:
        return array
    return np.where(real_bt[..., None], array, array.dtype.type(0))


def _cast(value: Any, dtype: str) -> Any:
    floating = isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):  # values beyond the dtype's range become infinite
        return value.astype(numpy_dtype(dtype)) if floating else value
