"""Short formats of numbers."""

import math

from ..judge.compare import HIGHEST

UNITS = ("KiB", "MiB", "GiB", "TiB")


def number(value: float | None, digits: int = 2) -> str:
    """Returns the value with a few digits; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if value == 0:
        return "0"
    if size < 1e-3 or size >= 1e5:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}g}" if size < 10 ** (digits - 1) else f"{value:,.0f}" if size >= 100 else f"{value:.3g}"


def units(value: float | None) -> str:
    """Returns an error in noise units, with two digits."""
    if value is None:
        return ""
    if value >= HIGHEST:
        return "inf"
    if value >= 1000:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def size(mib: float | None) -> str:
    """Returns a size in bytes, KiB, MiB, GiB or TiB; a dash for None, NaN and infinity."""
    if mib is None or not math.isfinite(mib):
        return "–"
    count = mib * 1024**2
    if count < 1024:
        return f"{count:.0f} bytes"
    power = min(len(UNITS), int(math.log(count, 1024) + 1e-9))
    value = count / 1024**power
    return f"{value:,.0f} {UNITS[power - 1]}" if value >= 99.5 else f"{value:.3g} {UNITS[power - 1]}"
