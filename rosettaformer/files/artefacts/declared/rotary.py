"""Searches a graph for rotary frequencies, for their inputs, or for their cosines and sines."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from reference_numpy.config import LayerKind
from reference_numpy.rotary import rotary_frequencies
from reference_numpy.rotary_scaling import RotaryScaling

from ...checkpoints.hugging_face.rotary import TYPES as _TYPES
from .evidence import COMMON, HALF_RTOL, RTOL, Evidence, Finding, Table
from .numbers import layers

_PLAIN = RotaryScaling()
TYPES = {own: name for name, own in _TYPES.items()}  # kind of scaling -> rope_type
_LONGEST = 512  # largest head size
_CLEAR = 0.999  # numbers closer to 1 fit any base
_COMPUTED = ("linear", "dynamic", "llama3", "yarn")  # scalings whose computation divides by the factor
# prefix of the fields -> the parts of rope_parameters that have them
_INSIDE = {"": ("full_attention",), "local_": ("sliding_attention",)}


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each base, scaling and head share that the graph cannot contain."""
    config, size = evidence.config, evidence.config.rotary_size
    weights = [weight for name, weight in evidence.constants.weights.items() if not name.startswith("argument")]
    unread = [weight.shape for weight in weights if weight.shape and not weight.read]
    if any(shape[-1] in (size, size // 2) and math.prod(shape[:-2]) <= 2 for shape in unread):
        return  # one of these may be the table
    of_local = config.local_rotary_base, config.local_rotary_scaling
    differ = of_local != (config.rotary_base, config.rotary_scaling)
    seen = set[tuple[float, RotaryScaling]]()
    for layer in layers(evidence):
        kind = config.layer_kind(layer)
        if not kind.rotary or (kind.base, kind.scaling) in seen:
            continue
        seen.add((kind.base, kind.scaling))
        yield from _of_kind(evidence, kind, "local_" if kind.window and differ else "")


def _of_kind(evidence: Evidence, kind: LayerKind, local: str) -> Iterator[Finding]:
    size, scaling, inside = evidence.config.rotary_size, kind.scaling, _INSIDE[local]
    needed = _final(size, kind, evidence.constants.longest)
    missing = [(name, wanted) for name, wanted in needed if not _tabled(evidence, wanted, scaling)]
    if missing:
        if other := _other_size(evidence, kind):
            config = evidence.config
            whole = config.rotary_fraction == 1 and (config.model_width not in evidence.sides or other > config.key_size)
            field, value = (
                ("key_size", config.key_size) if whole or other > config.key_size else ("rotary_fraction", config.rotary_fraction)
            )
            yield evidence.finding(field, f"{value:g}", [f"frequencies of {size} features of a head"], inside, holds=f"those of {other}")
            return
        if not _base_shown(evidence, kind, [wanted for _, wanted in needed]):
            forms: list[float | str] = [kind.base, math.log(kind.base), "frequencies with this base"]
            yield evidence.finding(f"{local}rotary_base", f"{kind.base:g}", forms, inside)
        elif not _scaling_shown(evidence, kind, missing):
            names = " and ".join(name for name, _ in missing if name)
            how = f"divided by {names}" if names else "with this scaling" if scaling.kind != "none" else "without scaling"
            looked: list[float | str] = [f"frequencies {how}", *([scaling.factor or 1.0] if scaling.kind in _COMPUTED else [])]
            yield evidence.finding(f"{local}rotary_scaling", f"of rope_type {TYPES[scaling.kind]}", looked, inside)
            return
    field = f"{local}rotary_scaling"
    yield from [*_switch(evidence, scaling, field), *_attention_factor(evidence, scaling, needed, field)][:1]


def _final(size: int, kind: LayerKind, longest: int | None) -> list[tuple[str, np.ndarray]]:
    """Returns every set of frequencies that the graph needs, and the factors that scale it."""
    scaling = kind.scaling
    original = scaling.original_length or 0
    if scaling.kind == "longrope":
        sets = {"short_factor": 1, "long_factor": original + 1}
        if longest is not None and longest <= original:
            del sets["long_factor"]
        return [(name, rotary_frequencies(size, kind.base, scaling, length)) for name, length in sets.items()]
    return [("", rotary_frequencies(size, kind.base, scaling, 1))]


def _tabled(evidence: Evidence, wanted: np.ndarray, scaling: RotaryScaling) -> bool:
    """Whether a table has all these frequencies, their wave lengths, cosines or sines."""
    factor = scaling.attention_factor or 1.0
    own = [wanted, 1 / wanted, *(scale * wave(wanted) for scale in {1.0, factor} for wave in (np.cos, np.sin))]
    return any(map(evidence.in_table, [*own, -wanted, wanted / (2 * math.pi)]))


def _other_size(evidence: Evidence, kind: LayerKind) -> int:
    """Returns the number of rotating features in a table if it is not the config's, else 0."""
    own = evidence.config.rotary_size
    lengths = {len(table.row) for table in evidence.tables}
    for size in range(_LONGEST, 3, -2) if kind.scaling.kind != "longrope" else ():
        if (
            size != own
            and lengths & {size, size // 2}
            and _tabled(evidence, rotary_frequencies(size, kind.base, kind.scaling, 1), kind.scaling)
        ):
            return size
    return 0


def _base_shown(evidence: Evidence, kind: LayerKind, needed: Sequence[np.ndarray]) -> bool:
    """Whether the graph has the base, a number derived from it, or one of its frequencies."""
    plain = rotary_frequencies(evidence.config.rotary_size, kind.base, _PLAIN, 1)
    if _base_held(evidence, kind.base) or _tabled(evidence, plain, _PLAIN):
        return True
    return any(_shares(table, wanted) for table in evidence.tables for wanted in (plain, *needed))


def _base_held(evidence: Evidence, base: float) -> bool:
    size = evidence.config.rotary_size
    if base in COMMON or evidence.holds(base, 1 / base):
        return True
    logarithms = [math.log(base), math.log2(base), *([math.log10(base)] if evidence.floats(10.0) else [])]
    steps = (1, 1 / size, 2 / size, 1 / max(size - 2, 1), 2 / max(size - 2, 1))
    forms = [sign * value * step for value in logarithms for step in steps for sign in (1, -1)]
    return any(np.isclose(evidence.scalars, form, rtol=HALF_RTOL if evidence.half else RTOL, atol=0).any() for form in forms)


def _shares(table: Table, wanted: np.ndarray) -> bool:
    """Whether a table has a frequency other than the first at its place, or a ratio of two."""
    pairs = len(wanted)
    if len(table.row) not in (pairs, 2 * pairs):
        return False
    rows = [table.row[:pairs], table.row[:: len(table.row) // pairs]]
    waves = [np.where(np.abs(wave) < _CLEAR, wave, np.nan)[1:] for wave in (wanted, np.cos(wanted), np.sin(wanted))]
    if any(np.isclose(row[1:], wave, rtol=table.rtol, atol=0).any() for row in rows for wave in waves):
        return True
    with np.errstate(all="ignore"):
        # A quotient of two numbers has the rounding error of both, in the table and in the scaling.
        return any(np.isclose(row[1:] / row[:-1], wanted[1:] / wanted[:-1], rtol=4 * table.rtol, atol=0).any() for row in rows)


def _scaling_shown(evidence: Evidence, kind: LayerKind, missing: Sequence[tuple[str, np.ndarray]]) -> bool:
    """Whether the graph may compute the frequencies that no table has."""
    scaling = kind.scaling
    if scaling.kind == "none":
        return _base_held(evidence, kind.base)
    if scaling.kind == "longrope":
        factors = {"short_factor": scaling.short_factors, "long_factor": scaling.long_factors}
        return all(evidence.in_table(factors[name] or ()) or evidence.in_table(1 / np.array(factors[name])) for name, _ in missing)
    plain = rotary_frequencies(evidence.config.rotary_size, kind.base, _PLAIN, 1)
    computed = _base_held(evidence, kind.base) or _tabled(evidence, plain, _PLAIN)  # the unscaled frequencies
    factor = scaling.factor or 1.0
    return computed and (factor in COMMON or evidence.holds(factor, 1 / factor))


def _attention_factor(
    evidence: Evidence, scaling: RotaryScaling, needed: Sequence[tuple[str, np.ndarray]], field: str
) -> Iterator[Finding]:
    factor = scaling.attention_factor
    if factor is None or factor in COMMON or evidence.holds(factor, 1 / factor, factor**2, factor**2 * evidence.config.key_size**-0.5):
        return
    if not any(evidence.in_table(factor * wave(wanted)) for _, wanted in needed for wave in (np.cos, np.sin)):
        yield evidence.finding(field, f"with an attention factor of {factor:g}", [factor, "cosines multiplied by it"])


def _switch(evidence: Evidence, scaling: RotaryScaling, field: str) -> Iterator[Finding]:
    """Searches for the length beyond which other factors apply."""
    length = scaling.original_length
    if scaling.kind == "longrope" and length and evidence.constants.longest is None:
        forms = [length, length - 1, length + 1]
        if length > 3 and not evidence.holds(*forms):
            yield evidence.finding(field, f"that change beyond {length} tokens", forms)
