"""A case: one question to a port, as data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig

from ..checkpoints.strict import DTYPES, numpy_dtype

SUITE_VERSION = 9  # grows whenever cases are added; a case says in which version it appeared
UNSAID = 8  # the version whose cases a port answers that names none


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
    since: the version of the suite in which the case appeared. excluded: why the case cannot be run on a port; empty if it can.
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
    since: int = 1
    excluded: str = ""
    shared: tuple[str, ...] = ()
    dtype: str = "float64"
    device: str = "cpu"
    mode: str = ""  # "": the port's default mode

    @property
    def id(self) -> str:
        """Returns the stable identity of the case, without how it is run."""
        return f"{self.component}/{self.name}"

    @property
    def size(self) -> int:
        """Returns the size of its arrays in bytes."""
        return sum(value.nbytes for value in (*self.inputs.values(), *self.parameters.values()) if isinstance(value, np.ndarray))

    def at(self, dtype: str, device: str = "cpu", mode: str = "") -> "Case":
        """Returns the case with every floating array rounded to dtype, to be run on that device in that mode."""
        return dataclasses.replace(
            self,
            inputs={name: _cast(value, dtype) for name, value in self.inputs.items()},
            parameters={name: _cast(value, dtype) for name, value in self.parameters.items()},
            dtype=dtype,
            device=device,
            mode=mode,
        )


def _cast(value: Any, dtype: str) -> Any:
    floating = isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):  # values beyond the dtype's range become infinite
        return value.astype(numpy_dtype(dtype)) if floating else value
