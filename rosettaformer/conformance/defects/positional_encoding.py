"""Defects of the positional encoding."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .defect import Defect, on_arguments

__all__ = ["DEFECTS"]

ENCODING = "positional_encoding.positional_encoding"


def _frequencies(formula: Callable[[np.ndarray, int], np.ndarray]) -> Callable:
    """Interleaved sines and cosines whose frequencies are a formula of the columns 0 .. d-1 and of d."""

    def altered(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
        column = np.arange(width)
        angle_btd = position_bt[..., None] * formula(column, width)
        return np.where(column % 2 == 0, np.sin(angle_btd), np.cos(angle_btd)).astype(dtype)

    return altered


def _halves(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    count = (width + 1) // 2
    angle = position_bt[..., None] * arithmetic.power(10000.0, -np.arange(count) / max(count - 1, 1))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)[..., :width].astype(dtype)


def _even_only(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    table = original(position_bt, width, dtype)
    table[..., 1::2] += np.zeros((width + 1) // 2, table.dtype)  # as many cosines as sines
    return table


_EXPONENT: dict[str, Any] = {
    "torch": "frequency = 10000 ** -(torch.arange(0, width, 2) / width)  # arange already counts 2i; one frequency per sin/cos pair",
    "tf": "frequency = 10000.0 ** -(tf.range(0, width, 2, dtype=tf.float32) / width)  # the same for the sine and the cosine of a pair",
    "jax": "frequency = 10000.0 ** -(jnp.arange(0, width, 2) / width)  # the same for the sine and the cosine of a pair",
}
_POSITIONS: dict[str, Any] = {
    "torch": "position = torch.arange(x.size(1), device=x.device)  # axis 1 of a batch-first x; x = x + encoding[position]",
    "tf": "position = tf.range(tf.shape(x)[1]); x = x + tf.gather(encoding, position)",
    "jax": "position = jnp.arange(x.shape[1]); x = x + encoding[position]",
}
DEFECTS = (
    Defect(
        id="PE1",
        title="the exponent is 2i with i already even",
        what="`sin(p / 10000^(4i/d))`: the loop's index counts 0, 2, 4, ... and is doubled once more.",
        shows="Column 0 and 1 agree, every later pair turns too slowly. Two positions and d >= 3 show it.",
        **_EXPONENT,
        evidence="guide, ict1022",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -4.0 * (column // 2) / width))},
    ),
    Defect(
        id="PE2",
        title="every column has its own exponent 2j/d",
        what="`10000^(2j/d)` with the column j, not the pair j // 2: a sine and its cosine turn at different speeds.",
        shows="Column 0 agrees alone. Two positions show it.",
        **_EXPONENT,
        evidence="semillero, Kyubyong/transformer#38, jadore801120#32",
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
        what="`[sin | cos]` instead of interleaved columns, with exponents i / (n - 1), n = d/2: tensor2tensor's layout.",
        shows="Position 0 is 0 ... 0 1 ... 1 instead of 0 1 0 1. Any position shows it.",
        torch="encoding[:, 0::2], encoding[:, 1::2] = torch.sin(angle), torch.cos(angle)",
        tf="encoding = tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1), [length, width])",
        jax="encoding = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)",
        evidence="tensor2tensor#1423, tensorflow/text#1122",
        replaces={ENCODING: _halves},
    ),
    Defect(
        id="PE5",
        title="positions counted along the batch",
        what="Row b of the batch gets the encoding of position b, at every time step: the table is sliced by axis 0 of a batch-first "
        "input.",
        shows="Every token of a row has the same position. A batch and a length that differ show it.",
        **_POSITIONS,
        evidence="semillero",
        replaces={ENCODING: on_arguments(position_bt=lambda position_bt: np.indices(position_bt.shape)[0])},
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
        evidence="maxjcohen/transformer#62",
        replaces={ENCODING: _frequencies(lambda column, width: arithmetic.power(1000.0, -2.0 * (column // 2) / width))},
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
        id="PE9",
        title="positions are offset by 2",
        what="`PE(p + 2)`: the offset `padding_id + 1` of fairseq's tables is applied where positions count from 0 (or lost where they do "
        "not).",
        shows="Every position carries the encoding of the one two later. Any position shows it.",
        torch="x = x + encoding[:, : x.size(1)]  # no + padding_idx + 1",
        tf="x = x + encoding[:, : tf.shape(x)[1]]  # no + padding_id + 1",
        jax="x = x + encoding[:, : x.shape[1]]  # no + padding_id + 1",
        evidence="transformers#19240, fairseq#1187",
        replaces={ENCODING: on_arguments(position_bt=lambda position_bt: position_bt + 2)},
    ),
    Defect(
        id="PE10",
        title="the whole table is added, not sliced to the length",
        what="The encoding has as many positions as the table has rows (50 here), not as many as the input.",
        shows="An error about shapes or an output of another length, unless the input is as long as the table. Any other length shows it.",
        torch="x = x + self.encoding[:, : x.size(1)]",
        tf="x = x + self.encoding[:, : tf.shape(x)[1]]",
        jax="x = x + encoding[:, : x.shape[1]]",
        evidence="keras_lab",
        replaces={ENCODING: on_arguments(position_bt=np.arange(50)[None])},
    ),
    Defect(
        id="PE11",
        title="left padding is counted as positions",
        what="`position = t`, the index in the row, instead of the count from the first real token.",
        shows="A row that is padded on its left gets other outputs than the same row without padding. Left padding shows it.",
        torch="position = (torch.cumsum(mask, dim=1) - 1).clamp(min=0)  # mask: True = real token",
        tf="position = tf.maximum(tf.cumsum(tf.cast(mask, tf.int32), axis=1) - 1, 0)",
        jax="position = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)",
        evidence="transformers#7552, transformers#21080, TransformerLens#1609",
        replaces={"positional_encoding.token_positions": on_arguments(mask_bt=np.ones_like)},
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
)
