"""Defects of the precision in which everything computes."""

from collections.abc import Callable

import numpy as np

from ..reference.tolerance import to_tf32
from .defect import Defect

__all__ = ["DEFECTS"]


def _rounded_operands(original: Callable, subscripts: str, *operands: np.ndarray) -> np.ndarray:
    return original(subscripts, *(to_tf32(operand) for operand in operands))


DEFECTS = (
    Defect(
        id="PRC1",
        title="float32 contractions round their operands to TF32",
        component="transformer",
        what="A matrix product of float32 keeps 10 bits of each factor's mantissa (TF32; 7 on TPUs, which use bfloat16) instead of 23.",
        shows="Relative errors of 1e-3 in whatever multiplies matrices, in float32 only, and only on some devices. Any input shows it.",
        torch='torch.set_float32_matmul_precision("highest")',
        tf="tf.config.experimental.enable_tensor_float_32_execution(False)",
        jax='jax.config.update("jax_default_matmul_precision", "highest")',
        evidence="jax#7010, jax#10413",
        replaces={"arithmetic.einsum": _rounded_operands},
        rounding=True,
    ),
)
