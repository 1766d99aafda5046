"""Known bugs of sinusoidal positions: frequencies, columns, and where they are added."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, positional_encoding
from reference_numpy.values import Text

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_result

LEARNED, ENCODING = "positional_encoding.position_embedding", "positional_encoding.positional_encoding"


def _before_every_layer(side: str, stack: str) -> Callable:
    """Adds the positions before every layer of the encoder or decoder instead of only the first."""

    def altered(original: Callable, parameters: Any, config: Any, token: Array, *rest: Any, **options: Any) -> Array:
        added: list[Array] = []

        def kept(function: Callable, *given: Any) -> Array:
            added.append(function(*given))
            return added[-1]

        def with_positions(layer: Callable, own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            same = own is parameters[stack]["layers"]["0"] or not added
            return layer(own, config, x_btd if same else x_btd + added[0], *others)

        with patched({LEARNED: kept, ENCODING: kept, f"layers.{stack}_layer": with_positions}):
            return original(parameters, config, token, *rest, **options)

    return altered


def _of_the_index(stack: str) -> Callable:
    """Adds the sinusoids of the index in the row before every layer of a stack, including the
    first.

    Learned positions are unaffected.
    """

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        encoding = positional_encoding.positional_encoding

        def with_positions(layer: Callable, own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            return layer(own, config, x_btd + encoding(np.arange(x_btd.shape[1])[None], x_btd.shape[2], x_btd.dtype), *others)

        with patched({ENCODING: on_result(np.zeros_like), f"layers.{stack}_layer": with_positions}):
            return original(*args, **options)

    return altered


def _after_the_source(original: Callable, parameters: Any, config: Any, source: Any, *rest: Any, **options: Any) -> Array:
    length = 0 if source is None else Text.of(source).ids.shape[1]

    def going_on(numbered: Callable, config: Any, side: str, *given: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = numbered(config, side, *given)
        return mask_bt, position_bt + length if side == "target" else position_bt

    with patched({"inputs.masked_positions": going_on}):
        return original(parameters, config, source, *rest, **options)


Exponent = Callable[[np.ndarray, int], np.ndarray]  # (pairs 0 .. n-1, d) -> exponents of base 10000


def arranged(interleaved_btd: np.ndarray, layout: str) -> np.ndarray:
    """Rearranges interleaved sines and cosines into the layout."""
    if layout == "interleaved":
        return interleaved_btd
    return np.concatenate([interleaved_btd[..., 0::2], interleaved_btd[..., 1::2]], axis=-1)


def _frequencies(formula: Callable[[np.ndarray, int], np.ndarray], cosines_first: bool = False) -> Replaces:
    """Replaces the frequencies by a formula of the interleaved columns 0 .. d-1 and d."""

    def altered(
        original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64, layout: str = "interleaved"
    ) -> np.ndarray:
        column = np.arange(width)
        angle_btd = position_bt[..., None] * formula(column, width)
        return arranged(np.where(column % 2 == cosines_first, np.sin(angle_btd), np.cos(angle_btd)), layout).astype(dtype)

    return {ENCODING: altered}


def of_base(base: float, cosines_first: bool = False) -> Replaces:
    """Uses another base than 10000, with the paper's columns."""
    return _frequencies(lambda column, width: arithmetic.power(base, -2.0 * (column // 2) / width), cosines_first)


def _halves(exponent: Exponent, cosines_first: bool = False, instead_of: str = "") -> Replaces:
    """Puts sines and cosines in two halves. exponent: (pairs 0 .. n-1, d) -> exponents.

    instead_of: the only layout that changes; empty for all.
    """

    def altered(
        original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64, layout: str = "interleaved"
    ) -> np.ndarray:
        if instead_of not in ("", layout):
            return original(position_bt, width, dtype, layout)
        angle = position_bt[..., None] * arithmetic.power(10000.0, -exponent(np.arange((width + 1) // 2), width))
        halves = (np.cos(angle), np.sin(angle)) if cosines_first else (np.sin(angle), np.cos(angle))
        return np.concatenate(halves, axis=-1)[..., :width].astype(dtype)

    return {ENCODING: altered}


def _ratio(factor: float) -> Exponent:
    """`factor i / d`; the paper's factor is 2."""
    return lambda pair, width: factor * pair / width


def _timescales(count: Callable[[int], float] = lambda width: (width + 1) // 2) -> Exponent:
    """`i / (n - 1)`: the last of n timescales is 10000. count: width -> n."""
    return lambda pair, width: pair / max(count(width) - 1, 1)


def _interleaved(exponent: Exponent) -> Replaces:
    """Uses the paper's columns with exponents that are a formula of the pairs and d."""
    return _frequencies(lambda column, width: arithmetic.power(10000.0, -exponent(column // 2, width)))


def _half_precision_angles(
    original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64, layout: str = "interleaved"
) -> np.ndarray:
    if not arithmetic.is_half(np.dtype(dtype)):
        return original(position_bt, width, dtype, layout)
    column = np.arange(width)
    frequency = arithmetic.power(10000.0, -2.0 * (column // 2) / width).astype(dtype)
    angle = (position_bt[..., None].astype(dtype) * frequency).astype(np.float32)
    return arranged(np.where(column % 2 == 0, np.sin(angle), np.cos(angle)), layout).astype(dtype)


def _even_only(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64, layout: str = "interleaved") -> np.ndarray:
    table = original(position_bt, width, dtype, layout)
    table[..., 1::2] += np.zeros((width + 1) // 2, table.dtype)  # as many cosines as sines
    return table


ALTERED: Altered = {
    "PE25": {
        "transformer.encode": _before_every_layer("source", "encoder"),
        "transformer.decode": _before_every_layer("target", "decoder"),
    },
    "PE26": {"transformer.transformer": _after_the_source},
    "PE1": _interleaved(_ratio(4.0)),
    "PE2": _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * column / width)),
    "PE3": _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * ((column + 1) // 2) / width)),
    "PE4": _halves(_timescales()),
    "PE6": _frequencies(lambda column, width: arithmetic.exp((column // 2) * (-math.log(10000.0) / width // 2))),
    "PE7": of_base(1000.0),
    "PE8": {ENCODING: _even_only},
    "PE12": {},
    "PE20": of_base(10000.0, cosines_first=True),
    "PE21": {ENCODING: _half_precision_angles},
    "PE28": _halves(_ratio(2.0), instead_of="tensor2tensor"),
}
VARIANTS: Variants = {
    "PE25": {
        "sinusoids of the index in the row are added before every layer, regardless of padding": {
            "transformer.encode": _of_the_index("encoder"),
            "transformer.decode": _of_the_index("decoder"),
        }
    },
    "PE1": {
        "the exponent is i/d: every pair has too high a frequency": _interleaved(_ratio(1.0)),
        "the exponent's sign is lost: positions are multiplied by 10000^(2i/d)": _interleaved(_ratio(-2.0)),
    },
    "PE2": {
        "every column has its own exponent j/d": _frequencies(lambda column, width: arithmetic.power(10000.0, -1.0 * column / width)),
    },
    "PE4": {
        "sines and cosines are in two halves, with the paper's exponents 2i/d": _halves(_ratio(2.0), instead_of="interleaved"),
        "cosines and sines are in two halves, with n - 1 timescales": _halves(_timescales(), cosines_first=True),
        "cosines and sines are in two halves, with the paper's exponents 2i/d": _halves(_ratio(2.0), cosines_first=True),
        "sines and cosines are in two halves, with exponents i/d": _halves(_ratio(1.0)),
        "sines and cosines are in two halves, with exponents 4i/d": _halves(_ratio(4.0)),
        "sinusoids have n - 1 timescales (interleaved columns)": _interleaved(_timescales()),
        "sinusoids have n - 1 timescales, n = d/2 rounded down (interleaved columns)": _interleaved(_timescales(lambda width: width // 2)),
        "sinusoids have n - 1 timescales, n = d/2 unrounded (interleaved columns)": _interleaved(_timescales(lambda width: width / 2)),
        "sines and cosines are in two halves, with n - 1 timescales, n = d/2 rounded down": _halves(_timescales(lambda width: width // 2)),
        "sines and cosines are in two halves, with n - 1 timescales, n = d/2 unrounded": _halves(_timescales(lambda width: width / 2)),
    },
    "PE7": {f"the sinusoidal base is {base:.0f} instead of 10000": of_base(base) for base in (100.0, 1e5, 5e5, 1e6)},
}
