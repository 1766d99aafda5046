"""A case: one question to a port, as data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig

from ..checkpoints.strict import DTYPES, numpy_dtype

__all__ = ["DTYPES", "SUITE_VERSION", "Case", "numpy_dtype"]

SUITE_VERSION = 8  # grows whenever cases are added; a case says since which version it stands


@dataclass(frozen=True)
class Case:
    """What a port is given: a component, its config, parameters and inputs, and how to run it.

    inputs: by the argument names of the reference's function; arrays, or plain values such as `causal=True`, or tuples of them. What is
    nested in a mapping has a name with dots: `keep.layers.0.self_attention_dropout`, `gradients.hidden.kernel`, `strategy.end_id`.
    parameters: by canonical name, relative to the component.
    catches: the defects of the catalogue that this case must reveal.
    core: one of the few cases of its component that a quick check runs; a full one runs all.
    twice: the port answers two times and must answer the same.
    since: the version of the suite in which the case appeared. excluded: why the case cannot be run on a port; empty where it can.
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
    dtype: str = "float64"
    device: str = "cpu"
    mode: str = ""  # "": the port's default mode

    @property
    def id(self) -> str:
        """The stable identity of the case, without how it is run."""
        return f"{self.component}/{self.name}"

    @property
    def size(self) -> int:
        """The bytes of its arrays."""
        return sum(value.nbytes for value in (*self.inputs.values(), *self.parameters.values()) if isinstance(value, np.ndarray))

    def at(self, dtype: str, device: str = "cpu", mode: str = "") -> "Case":
        """The case with every floating array rounded to dtype, to be run on that device in that mode."""
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
    with np.errstate(over="ignore"):  # what the dtype cannot hold is infinite in it
        return value.astype(numpy_dtype(dtype)) if floating else value
