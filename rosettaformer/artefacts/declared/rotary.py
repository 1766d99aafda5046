"""The frequencies of rotary positions: as a table, as what they are computed of, or as cosines and sines up to a length."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from reference_numpy.config import LayerKind
from reference_numpy.rotary import rotary_frequencies
from reference_numpy.rotary_scaling import RotaryScaling

from .evidence import COMMON, Evidence, Finding
from .numbers import layers

_PLAIN = RotaryScaling()
# kind of scaling -> the numbers that show it where it is computed within the graph
_SHOWN = {
    "linear": ("factor",), "dynamic": ("factor",), "llama3": ("factor", "low_frequency_factor", "high_frequency_factor"), "yarn": ("factor",),
}  # fmt: skip
# what config.json has the fields of local layers, and of the others, in
_INSIDE = {"": ("full_attention",), "local_": ("sliding_attention",)}


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields the bases, scalings and shares of a head that the graph cannot contain, once each."""
    config = evidence.config
    if _hidden(evidence):
        return
    seen = set[tuple[float, RotaryScaling]]()
    for layer in layers(evidence):
        kind = config.layer_kind(layer)
        if not kind.rotary or (kind.base, kind.scaling) in seen:
            continue
        seen.add((kind.base, kind.scaling))
        yield from _of_kind(evidence, kind, "local_" if kind.window and _differ(evidence) else "")


def _differ(evidence: Evidence) -> bool:
    config = evidence.config
    return (config.local_rotary_base, config.local_rotary_scaling) != (config.rotary_base, config.rotary_scaling)


def _hidden(evidence: Evidence) -> bool:
    """Whether a table may be among the tensors that were not read."""
    size = evidence.config.rotary_size
    return any(
        not weight.read and weight.shape and weight.shape[-1] in (size, size // 2) and math.prod(weight.shape[:-2]) <= 2
        for name, weight in evidence.constants.weights.items()
        if not name.startswith("argument")
    )


def _of_kind(evidence: Evidence, kind: LayerKind, local: str) -> Iterator[Finding]:
    size, scaling, inside = evidence.config.rotary_size, kind.scaling, _INSIDE[local]
    needed = _final(size, kind, evidence.constants.longest)
    missing = [(name, wanted) for name, wanted in needed if not _tabled(evidence, wanted, scaling)]
    if missing:
        if share := _other_share(evidence, kind):
            said = f"{evidence.config.rotary_fraction:g}"
            looked = f"frequencies of {size} features of a head; it holds those of {share}"
            yield evidence.finding("rotary_fraction", said, [looked], inside)
            return
        if not _base_shown(evidence, kind, [wanted for _, wanted in needed]):
            base = kind.base
            looked = [base, math.log(base), "frequencies of it"]
            yield evidence.finding(f"{local}rotary_base", f"{base:g}", looked, inside)
        elif scaling.kind != "none" and not _scaling_shown(evidence, scaling, missing):
            looked = _parameters(scaling)
            said = f"of rope_type {scaling.kind}"
            names = " and ".join(name for name, _ in missing if name)
            what = f"frequencies divided by {names}" if names else "frequencies scaled so"
            yield evidence.finding(f"{local}rotary_scaling", said, [what, *looked], inside)
            return
    yield from _attention_factor(evidence, scaling, needed, f"{local}rotary_scaling")


def _final(size: int, kind: LayerKind, longest: int | None) -> list[tuple[str, np.ndarray]]:
    """Returns every set of frequencies that the graph needs, by what scales it."""
    scaling = kind.scaling
    original = scaling.original_length or 0
    if scaling.kind == "longrope":
        sets = {"short_factor": 1, "long_factor": original + 1}
        if longest is not None and longest <= original:
            del sets["long_factor"]
        return [(name, rotary_frequencies(size, kind.base, scaling, length)) for name, length in sets.items()]
    return [("", rotary_frequencies(size, kind.base, scaling, 1))]


def _tabled(evidence: Evidence, wanted: np.ndarray, scaling: RotaryScaling) -> bool:
    """Whether a table has all these frequencies, or is of their waves, or of their cosines or sines."""
    factor = scaling.attention_factor or 1.0
    own = [wanted, 1 / wanted, *(scale * wave(wanted) for scale in {1.0, factor} for wave in (np.cos, np.sin))]
    return any(map(evidence.in_table, [*own, -wanted, wanted / (2 * math.pi)]))


def _other_share(evidence: Evidence, kind: LayerKind) -> int:
    """Returns how many features of a head rotate by a table of the graph, if others than the config says; 0 if that is not known."""
    own, key_size = evidence.config.rotary_size, evidence.config.key_size
    if kind.scaling.kind == "longrope":
        return 0
    sizes = [size for size in range(key_size, 3, -2) if size != own and size % 2 == 0]
    for size in sizes:
        wanted = rotary_frequencies(size, kind.base, kind.scaling, 1)
        lengths = {len(table) for table, rtol in evidence.tables if len(table) in (len(wanted), 2 * len(wanted))}
        if len(wanted) > 1 and lengths and _tabled(evidence, wanted, kind.scaling):
            return size
    return 0


def _base_shown(evidence: Evidence, kind: LayerKind, needed: Sequence[np.ndarray]) -> bool:
    """Whether the graph has the base, a number that it is computed by, or a frequency of it."""
    base, size = kind.base, evidence.config.rotary_size
    if base in COMMON or evidence.holds(base, 1 / base):
        return True
    logarithms = [logarithm(base) for logarithm in (math.log, math.log2, math.log10)]
    steps = (1, 1 / size, 2 / size, 1 / max(size - 2, 1), 2 / max(size - 2, 1))
    if evidence.holds(*(sign * value * step for value in logarithms for step in steps for sign in (1, -1))):
        return True
    plain = rotary_frequencies(size, base, _PLAIN, 1)
    if _tabled(evidence, plain, _PLAIN):
        return True
    parts = [frequency for wanted in (plain, *needed) for frequency in wanted[1:] if frequency not in COMMON]
    if any(evidence.in_table([frequency]) for frequency in parts):
        return True
    ratios = np.diff(np.log(plain))
    close = (len(table) >= len(plain) > 1 and _proportional(table, ratios) for table, _ in evidence.tables)
    return any(close)


def _proportional(table: np.ndarray, ratios: np.ndarray) -> bool:
    """Whether a table is one of the frequencies, all times the same number."""
    positive = np.sort(table[table > 0])[::-1]
    return len(positive) == len(ratios) + 1 and np.allclose(np.diff(np.log(positive)), ratios, rtol=1e-3)


def _scaling_shown(evidence: Evidence, scaling: RotaryScaling, missing: Sequence[tuple[str, np.ndarray]]) -> bool:
    if scaling.kind == "longrope":
        factors = {"short_factor": scaling.short_factors, "long_factor": scaling.long_factors}
        return all(evidence.in_table(factors[name] or ()) or evidence.in_table(1 / np.array(factors[name])) for name, _ in missing)
    values = [getattr(scaling, name) for name in _SHOWN[scaling.kind]]
    return all(value in COMMON or evidence.holds(value, 1 / value) for value in values)


def _parameters(scaling: RotaryScaling) -> list[float]:
    return [getattr(scaling, name) for name in _SHOWN.get(scaling.kind, ())]


def _attention_factor(
    evidence: Evidence, scaling: RotaryScaling, needed: Sequence[tuple[str, np.ndarray]], field: str
) -> Iterator[Finding]:
    factor = scaling.attention_factor
    if factor is None or factor in COMMON or evidence.holds(factor, 1 / factor, factor**2, factor**2 * evidence.config.key_size**-0.5):
        return
    if any(evidence.in_table(factor * wave(wanted)) for _, wanted in needed for wave in (np.cos, np.sin)):
        return
    yield evidence.finding(field, f"with attention_factor {factor:g}", [factor, "cosines multiplied by it"])
