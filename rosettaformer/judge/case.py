"""A case: one question to a port."""

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

SUITE_RELEASE = 1  # grows with each release of rosettaformer that adds cases
REAL, LAST = "real", "last"  # the part of the outputs that is compared


@dataclass(frozen=True)
class Case:
    """A question to a port: a component with its config, parameters and inputs, and how to run it.

    A case is declared in float64; `at` returns the case that a port runs.

    inputs: by the argument names of the reference's function: arrays, plain values such as
    `causal=True`, or tuples of them. Nested mappings have dotted names:
    `keep.layers.0.self_attention_dropout`, `gradients.hidden.kernel`, `strategy.end_id`.
    parameters: by canonical name, relative to the component.
    catches: the known bugs that this case must reveal.
    core: whether a quick check runs it; a full check runs every case.
    twice: the port must give the same answer twice.
    release: the suite release that added the case.
    excluded: why the case cannot run on a port; empty if it can.
    shared: the kernels that all heads share, each for its own slice of the width: zero except for
    one block, whose gradient is the sum over the heads.
    folder: a folder with the same parameters as Hugging Face checkpoints, one per dtype and named
    after it; empty if there is none.
    compared: the compared part of the outputs, `REAL` tokens or the `LAST` position; empty for all.
    outputs: the names of the compared outputs; empty for all.
    mesh: the devices that the port runs on; None for a single device.
    splits: the numbers of target tokens that an exported file with a cache reads at a time; empty
    for all at once.
    outside: the side with ids out of range; empty if there are none.
    too_large: the dtypes in which the case does not fit into memory, with the reasons.
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
        """The stable id of the case, whatever it runs in."""
        return f"{self.component}/{self.name}"

    @property
    def size(self) -> int:
        """The size of its arrays in bytes, without parameters that are also in a folder."""
        inputs = sum(value.nbytes for value in self.inputs.values() if isinstance(value, np.ndarray))
        if self.folder:
            return inputs
        if isinstance(self.parameters, Stored):
            return inputs + self.parameters.nbytes
        return inputs + sum(array.nbytes for array in self.parameters.values())

    def at(self, dtype: str, device: str = "cpu", mode: str = "") -> "Case":
        """Returns the case with all floating-point arrays rounded to dtype, for device and mode."""
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

    def given(self, inputs: Mapping[str, Any]) -> "Case":
        """Returns the case with these inputs instead of its own."""
        return dataclasses.replace(self, inputs={**self.inputs, **inputs})

    @property
    def real_bt(self) -> np.ndarray | None:
        """The mask of the target's (without a target, the source's) real tokens; None if all are real."""
        return self.inputs.get(MASKS["source" if self.inputs.get("target") is None else "target"])

    def part(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the compared part of a port's outputs, with 0 at padding and for texts without tokens.

        Other outputs without the token axes `b t` are returned unchanged.
        """
        found = {name: array for name, array in outputs.items() if not self.outputs or name in self.outputs}
        if self.compared == LAST:
            return {name: array[:, -1:] if array.ndim == 3 else array for name, array in found.items()}
        if self.compared != REAL:
            return found
        source = self.inputs.get(MASKS["source"])
        return {
            name: _zero_at_padding(name, array, source if name.startswith("encoder.") else self.real_bt) for name, array in found.items()
        }


MASKS = {"source": "source_mask_bs", "target": "target_mask_bt"}  # of each side of a model's input


def pinned(suite: Any) -> int:
    """Returns the suite release that a port pins. Raises ValueError unless this package has it."""
    if type(suite) is not int or not 1 <= suite <= SUITE_RELEASE:
        raise ValueError(
            f"suite must be a suite release from 1 to {SUITE_RELEASE}; got {suite!r}. Upgrade rosettaformer, or remove `suite` to run "
            "every case"
        )
    return suite


def _zero_at_padding(name: str, array: np.ndarray, real_bt: np.ndarray | None) -> np.ndarray:
    if real_bt is None:
        return array
    start = int(name.endswith("_lbtd"))
    real_bt = np.logical_or.reduce(real_bt, axis=1) if name == "output" and array.ndim == 2 else real_bt  # vectors of whole texts
    if array.ndim != start + real_bt.ndim + 1 or array.shape[start:-1] != real_bt.shape:
        return array
    return np.where(real_bt[..., None], array, array.dtype.type(0))


def _cast(value: Any, dtype: str) -> Any:
    floating = isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):  # values out of the dtype's range become infinite
        return value.astype(numpy_dtype(dtype)) if floating else value
