"""Defects of the positional encoding: its frequencies, its columns."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .defect import Defect

__all__ = ["DEFECTS", "ENCODING"]

ENCODING = "positional_encoding.positional_encoding"


def _frequencies(formula: Callable[[np.ndarray, int], np.ndarray]) -> Callable:
    """Interleaved sines and cosines whose frequencies are a formula of the columns 0 .. d-1 and of d."""

    def altered(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
        column = np.arange(width)
        angle_btd = position_bt[..., None] * formula(column, width)
        return np.where(column % 2 == 0, np.sin(angle_btd), np.cos(angle_btd)).astype(dtype)

    return altered


def _of_base(base: float) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda column, width: arithmetic.power(base, -2.0 * (column // 2) / width)


def _halves(exponent: Callable[[np.ndarray, int], np.ndarray], cosines_first: bool = False) -> Callable:
    """Sines in one half and cosines in the other, with exponents that are a formula of the pairs 0 .. n-1 and of d."""

    def altered(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
        angle = position_bt[..., None] * arithmetic.power(10000.0, -exponent(np.arange((width + 1) // 2), width))
        halves = (np.cos(angle), np.sin(angle)) if cosines_first else (np.sin(angle), np.cos(angle))
        return np.concatenate(halves, axis=-1)[..., :width].astype(dtype)

    return altered


def _timescales(pair: np.ndarray, width: int) -> np.ndarray:
    """`i / (n - 1)`, n = d/2: the last of n timescales is 10000. Of an odd width n is rounded up."""
    return pair / max((width + 1) // 2 - 1, 1)


def _rounded_down(pair: np.ndarray, width: int) -> np.ndarray:
    """The same, with n rounded down."""
    return pair / max(width // 2 - 1, 1)


def _unrounded(pair: np.ndarray, width: int) -> np.ndarray:
    """The same, with n = d/2 as it is."""
    return pair / max(width / 2 - 1, 1)


def _interleaved(exponent: Callable[[np.ndarray, int], np.ndarray]) -> dict[str, Callable]:
    """The paper's columns, with exponents that are a formula of the pairs and of d."""
    return {ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -exponent(column // 2, width)))}


def _of_paper(pair: np.ndarray, width: int) -> np.ndarray:
    """`2i / d`."""
    return 2.0 * pair / width


def _cosine_first(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    column = np.arange(width)
    angle_btd = position_bt[..., None] * _of_base(10000.0)(column, width)
    return np.where(column % 2 == 0, np.cos(angle_btd), np.sin(angle_btd)).astype(dtype)


def _half_precision_angles(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    if not arithmetic.is_half(np.dtype(dtype)):
        return original(position_bt, width, dtype)
    column = np.arange(width)
    frequency = arithmetic.power(10000.0, -2.0 * (column // 2) / width).astype(dtype)
    angle = (position_bt[..., None].astype(dtype) * frequency).astype(np.float32)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


def _even_only(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    table = original(position_bt, width, dtype)
    table[..., 1::2] += np.zeros((width + 1) // 2, table.dtype)  # as many cosines as sines
    return table


_EXPONENT: dict[str, Any] = {
    "torch": "frequency = 10000 ** -(torch.arange(0, width, 2) / width)  # arange already counts 2i; one frequency per sin/cos pair",
    "tf": "frequency = 10000.0 ** -(tf.range(0, width, 2, dtype=tf.float32) / width)  # the same for the sine and the cosine of a pair",
    "jax": "frequency = 10000.0 ** -(jnp.arange(0, width, 2) / width)  # the same for the sine and the cosine of a pair",
}
DEFECTS = (
    Defect(
        id="PE1",
        title="the exponent is 2i with i already even",
        what="`sin(p / 10000^(4i/d))`: the loop's index counts 0, 2, 4, ... and is doubled once more.",
        shows="Column 0 and 1 agree, every later pair turns too slowly. Two positions and d >= 3 show it.",
        variants={
            "the exponent is i/d: every pair turns too fast": {
                ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -1.0 * (column // 2) / width))
            },
            "the exponent's sign is lost: 10000^(2i/d) is multiplied": {
                ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, 2.0 * (column // 2) / width))
            },
        },
        **_EXPONENT,
        evidence="guide, ict1022",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -4.0 * (column // 2) / width))},
    ),
    Defect(
        id="PE2",
        title="every column has its own exponent 2j/d",
        what="`10000^(2j/d)` with the column j, not the pair j // 2: a sine and its cosine turn at different speeds.",
        shows="Column 0 agrees alone. Two positions show it.",
        variants={
            "every column has its own exponent j/d": {
                ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -1.0 * column / width))
            }
        },
        **_EXPONENT,
        evidence="semillero, Kyubyong/transformer#38, jadore801120#32, DeepCTR#379, PapersReimplementations#9",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * column / width))},
    ),
    Defect(
        id="PE3",
        title="the cosine's exponent is one pair ahead",
        what="`PE(p, 2i+1) = cos(p / 10000^(2(i+1)/d))`.",
        shows="Even columns agree, odd ones do not. Two positions show it.",
        **_EXPONENT,
        evidence="SamLynnEvans/Transformer#25",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * ((column + 1) // 2) / width))},
    ),
    Defect(
        id="PE4",
        title="sines and cosines in two halves, with n-1 timescales",
        what="`[sin | cos]` instead of interleaved columns, with exponents i / (n - 1), n = d/2: tensor2tensor's; or one of the two.",
        shows="Position 0 is 0 ... 0 1 ... 1 instead of 0 1 0 1. Any position shows it.",
        torch="encoding[:, 0::2], encoding[:, 1::2] = torch.sin(angle), torch.cos(angle)",
        tf="encoding = tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1), [length, width])",
        jax="encoding = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)",
        evidence="tensor2tensor#1423, tensorflow/text#1122, allennlp#2993, multidim-positional-encoding#20, transformer-xl#119",
        variants={
            "sines and cosines in two halves, with the paper's exponents 2i/d": {ENCODING: _halves(_of_paper)},
            "cosines and sines in two halves, with n-1 timescales": {ENCODING: _halves(_timescales, cosines_first=True)},
            "cosines and sines in two halves, with the paper's exponents 2i/d": {ENCODING: _halves(_of_paper, cosines_first=True)},
            "sines and cosines in two halves, with exponents i/d": {ENCODING: _halves(lambda pair, width: pair / width)},
            "sines and cosines in two halves, with exponents 4i/d": {ENCODING: _halves(lambda pair, width: 4.0 * pair / width)},
            "interleaved, with n-1 timescales": _interleaved(_timescales),
            "interleaved, with n-1 timescales, n = d/2 rounded down": _interleaved(_rounded_down),
            "interleaved, with n-1 timescales, n = d/2 unrounded": _interleaved(_unrounded),
            "sines and cosines in two halves, with n-1 timescales, n = d/2 rounded down": {ENCODING: _halves(_rounded_down)},
            "sines and cosines in two halves, with n-1 timescales, n = d/2 unrounded": {ENCODING: _halves(_unrounded)},
        },
        replaces={ENCODING: _halves(_timescales)},
    ),
    Defect(
        id="PE6",
        title="operator precedence: -log(10000) / d // 2",
        what="`exp(i * (-log(10000) / d // 2))` is exp(-i), since the integer division comes last and rounds to -1.",
        shows="Column 0 and 1 agree, every later pair turns with e^-i instead of 10000^(-2i/d). Two positions show it.",
        torch="frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))",
        tf="frequency = tf.exp(tf.range(0, width, 2, dtype=tf.float32) * (-math.log(10000.0) / width))",
        jax="frequency = jnp.exp(jnp.arange(0, width, 2) * (-math.log(10000.0) / width))",
        evidence="LoFTR#41",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.exp((column // 2) * (-math.log(10000.0) / width // 2)))},
    ),
    Defect(
        id="PE7",
        title="base 1000 instead of 10000",
        what="`sin(p / 1000^(2i/d))`.",
        shows="Column 0 and 1 agree, every later pair turns too fast. Two positions show it.",
        **_EXPONENT,
        variants={f"base {base:.0f} instead of 10000": {ENCODING: _frequencies(_of_base(base))} for base in (100.0, 1e5, 5e5, 1e6)},
        evidence="maxjcohen/transformer#62",
        replaces={ENCODING: _frequencies(_of_base(1000.0))},
    ),
    Defect(
        id="PE8",
        title="an odd width fails",
        what="As many cosines as sines are assigned to the odd columns, of which an odd width has one less.",
        shows="An error about shapes. Any odd width shows it.",
        torch="encoding[:, 1::2] = torch.cos(angle[:, : width // 2])",
        tf="encoding = tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1), [length, -1])[:, :width]",
        jax="encoding = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, -1)[:, :width]",
        evidence="guide, ict1022",
        replaces={ENCODING: _even_only},
    ),
    Defect(
        id="PE12",
        title="the table is not a buffer",
        component="positional_encoding",
        what="The table is a plain attribute: it follows the module neither to another device or dtype nor into a checkpoint.",
        shows="An error about devices, or a mixed dtype, after `.to(...)`; on the device where it was made the values are right.",
        torch='self.register_buffer("encoding", encoding, persistent=False)',
        tf='self.encoding = self.add_weight(name="encoding", shape=shape, initializer=table, trainable=False)',
        jax="encoding = positional_encoding(position, width)  # compute it in the call: XLA folds it into a constant",
        evidence="semillero",
        replaces={},
        unobservable="the values are right; only moving or saving the module shows it",
    ),
    Defect(
        id="PE20",
        title="even columns are cosines, odd ones sines",
        what="`PE(p, 2i) = cos(p / 10000^(2i/d))`, `PE(p, 2i+1) = sin(p / 10000^(2i/d))`: sine and cosine are exchanged.",
        shows="Position 0 is 1 0 1 0 instead of 0 1 0 1. Any position shows it.",
        torch="encoding[:, 0::2], encoding[:, 1::2] = torch.sin(angle), torch.cos(angle)",
        tf="encoding = tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1), [length, width])",
        jax="encoding = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)",
        evidence="derived, not reported",
        replaces={ENCODING: _cosine_first},
    ),
    Defect(
        id="PE21",
        title="the angles of the positions are computed in half precision",
        what="Position times frequency is rounded to the half-precision dtype before the sine is taken, instead of after it.",
        shows="Far positions have angles that are off by whole radians, in half-precision dtypes only. Many positions show it.",
        torch="encoding = positional_encoding(position.float()).to(dtype)  # compute in float32, cast last; module.half() casts buffers",
        tf="encoding = tf.cast(positional_encoding(tf.cast(position, tf.float32)), self.compute_dtype)",
        jax="encoding = positional_encoding(position.astype(jnp.float32)).astype(self.dtype)",
        evidence="vllm#54620, fairseq2#65, gpt-neox#1003",
        replaces={ENCODING: _half_precision_angles},
        dtypes=("bfloat16", "float16"),
        rounding=True,
    ),
)
