"""Entries of config.json about rotary positions.

The library now writes `rope_parameters`, for all layers or by kind of layer. Earlier versions wrote
`rope_theta`, `rope_scaling`, `partial_rotary_factor` and `rope_local_base_freq`.
Source: transformers/modeling_rope_utils.py, 5.23.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer, is_number
from reference_numpy.rotary_scaling import SCALINGS, RotaryScaling

from .family import Joint

# rope_type -> kind of scaling
TYPES = {"default": "none", **{name: name for name in SCALINGS if name != "none"}}
# parameters of a scaling -> entries of rope_parameters
NAMES = {
    "factor": "factor", "original_length": "original_max_position_embeddings", "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "truncate",
    "attention_factor": "attention_factor", "short_factors": "short_factor", "long_factors": "long_factor",
}  # fmt: skip
_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", NAMES["original_length"]}
_BESIDE = {"yarn": {"mscale", "mscale_all_dim"}, "longrope": {"factor"}}  # inputs of the attention factor
GLOBAL, LOCAL = "full_attention", "sliding_attention"
_OF_GLOBAL = {"rotary_base": "rope_theta", "rotary_scaling": "rope_parameters"}
_OF_LOCAL = {"local_rotary_base": "rope_theta", "local_rotary_scaling": "rope_parameters"}
_NOTE = "`rope_scaling` takes precedence over `rope_parameters`; top-level entries fill in what these leave out"


def flat(
    theta: float,
    positions: int,
    *,
    partial: float | None = None,
    original: int | None = None,
    types: Collection[str] = tuple(TYPES),
    older: Mapping[str, str] | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Joint:
    """Returns the joint of a family whose layers all rotate in the same way.

    theta, positions: the library's defaults of `rope_theta` and `max_position_embeddings`. partial:
    its default of `partial_rotary_factor`, None if only 1 is supported. original: the default of
    `original_max_position_embeddings`, if the class has that entry. types: the supported
    `rope_type` values. older: old name of a `rope_type` -> new name. usual: its default of
    `rope_parameters`.
    """

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        label = "rope_scaling" if entries["rope_scaling"] else "rope_parameters"
        given = _object(entries[label] if entries[label] is not None else usual, label)
        length = entries[NAMES["original_length"]]
        base, scaling = _read(given, label, entries, length, entries["rope_theta"], older or {}, types)
        share = _first(given.get("partial_rotary_factor"), entries["partial_rotary_factor"], partial, 1.0)
        if partial is None and share != 1:
            raise ValueError(f"partial_rotary_factor of {label} must be 1, the only supported value; got {share!r:.100}")
        return {
            **dict.fromkeys(("rotary_base", "local_rotary_base"), base),
            **dict.fromkeys(("rotary_scaling", "local_rotary_scaling"), scaling),
            "rotary_fraction": share,
        }

    def write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
        kinds = [config.layer_kind(layer) for layer in range(config.encoder_layers + config.decoder_layers)]
        kind = next((kind for kind in kinds if not kind.window), kinds[0])
        parameters = _written(kind.base, kind.scaling)
        if partial is not None:
            parameters["partial_rotary_factor"] = config.rotary_fraction
        result = {"rope_parameters": parameters, **_positions(said, kind.scaling)}
        if original is not None:
            result[NAMES["original_length"]] = kind.scaling.original_length or said.get(NAMES["original_length"], original)
        return result

    entries = {
        "rope_parameters": None, "rope_scaling": None, "rope_theta": theta, "partial_rotary_factor": None,
        NAMES["original_length"]: original, "max_position_embeddings": positions,
    }  # fmt: skip
    fields = _OF_GLOBAL | _OF_LOCAL | {"rotary_fraction": "partial_rotary_factor"}
    return Joint(entries, fields, read, write, _NOTE, kept=("max_position_embeddings",))


def by_layer_type(
    theta: float, local_theta: float, positions: int, local: str | None = "rope_local_base_freq", globally: str = "rope_theta"
) -> Joint:
    """Returns the joint of a family whose local and global layers rotate differently.

    theta, positions: see `flat`. local, globally: the entries for the bases of local and global layers in
    earlier versions.
    """
    older = {local: local_theta} if local else {}

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        given = _object(entries["rope_parameters"], "rope_parameters")
        if others := [name for name in given if name not in (GLOBAL, LOCAL) and given[name] is not None]:
            raise ValueError(f"rope_parameters must have only {GLOBAL} and {LOCAL}; got {', '.join(map(str, others)):.100}")
        result: dict[str, Any] = {}
        bases = (entries[globally], entries[local] if local else local_theta)
        for name, fields, base in zip((GLOBAL, LOCAL), (_OF_GLOBAL, _OF_LOCAL), bases, strict=True):
            label = f"{name} of rope_parameters"
            own = _object(given.get(name), label) if entries["rope_parameters"] is not None else {"rope_type": "default"}
            if name == GLOBAL and entries["rope_scaling"] is not None:
                label, own = "rope_scaling", own | _object(entries["rope_scaling"], "rope_scaling")
            found, scaling = _read(own, label, entries, None, base)
            if _first(own.get("partial_rotary_factor"), 1.0) != 1 or scaling.truncate is False:  # the class ignores both
                raise ValueError(f"{label} must have partial_rotary_factor 1 and truncate true")
            result |= zip(fields, (found, scaling), strict=True)
        return result

    def write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
        of_global = _written(config.rotary_base, config.rotary_scaling)
        of_local = _written(config.local_rotary_base, config.local_rotary_scaling)
        length = _positions(said, config.rotary_scaling) | _positions(said, config.local_rotary_scaling)
        return {"rope_parameters": {GLOBAL: of_global, LOCAL: of_local}, **length}

    entries = {
        "rope_parameters": None, "rope_scaling": None, globally: theta, "max_position_embeddings": positions, **older,
    }  # fmt: skip
    note = f"`rope_parameters` has {GLOBAL} and {LOCAL}; `rope_scaling` applies to the former"
    fields = _OF_GLOBAL | _OF_LOCAL | ({"local_rotary_base": local} if local else {})
    return Joint(entries, fields, read, write, note, kept=("max_position_embeddings",))


def _read(
    given: Mapping[str, Any],
    label: str,
    entries: Mapping[str, Any],
    original: Any,
    theta: Any,
    older: Mapping[str, str] | None = None,
    types: Collection[str] = tuple(TYPES),
) -> tuple[Any, RotaryScaling]:
    """Returns base and scaling. label: for errors. original: takes precedence over its entry."""
    kind = _first(given.get("rope_type"), given.get("type"), "default")
    kind = (older or {}).get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in types:
        raise ValueError(f"rope_type of {label} must be one of {', '.join(types)}; got {kind!r:.100}")
    wanted, longest = SCALINGS[TYPES[kind]], entries["max_position_embeddings"]
    known = _ALWAYS | {NAMES[name] for name in wanted} | _BESIDE.get(kind, set())
    if others := [name for name, value in given.items() if name not in known and value is not None]:
        raise ValueError(f"{label} with rope_type {kind} does not have {', '.join(map(str, others)):.100}; remove it")
    values = {name: given.get(NAMES[name]) for name in wanted}
    if "original_length" in wanted:
        values["original_length"] = longest if kind == "dynamic" else _first(original, values["original_length"], longest)
    if kind == "yarn":
        values |= {"beta_fast": values["beta_fast"] or 32, "beta_slow": values["beta_slow"] or 1}
        values["truncate"] = given.get("truncate", True)
    try:
        if "attention_factor" in wanted:
            factor = given.get("factor")
            factor = _ratio(longest, values["original_length"]) if factor is None else factor
            values |= {"factor": factor} if kind == "yarn" else {}
            values["attention_factor"] = _first(values["attention_factor"], _attention_factor(kind, factor, given, values))
        scaling = RotaryScaling.from_dict({"kind": TYPES[kind], **values})
    except (ValueError, TypeError) as error:
        text = re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), str(error))
        raise ValueError(f"{label}: {text}") from None
    return _first(given.get("rope_theta"), theta), scaling


def _ratio(longest: Any, original: Any) -> float:
    for name, value in (("max_position_embeddings", longest), (NAMES["original_length"], original)):
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1; got {value!r:.100}")
    return float(longest / original)


def _attention_factor(kind: str, factor: Any, given: Mapping[str, Any], values: Mapping[str, Any]) -> float:
    """Returns the library's factor of cosine and sine if `attention_factor` is not set."""
    if not is_number(factor) or factor <= 0:
        raise ValueError(f"factor must be a number greater than 0; got {factor!r:.100}")
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        original = values["original_length"]
        if not is_integer(original) or original < 2:
            raise ValueError(f"original_length must be an integer of at least 2; got {original!r:.100}")
        return math.sqrt(1 + math.log(factor) / math.log(original))
    scales = [given.get(name) for name in ("mscale", "mscale_all_dim")]
    if not all(scales):
        scales = [1]
    if not all(map(is_number, scales)):
        raise ValueError(f"mscale and mscale_all_dim must be numbers; got {scales!r:.100}")
    found = [0.1 * scale * math.log(factor) + 1.0 for scale in scales]  # type: ignore[operator]
    return float(found[0] / found[1]) if len(found) > 1 else found[0]


def _written(base: float, scaling: RotaryScaling) -> dict[str, Any]:
    """Returns the rope_parameters of a base and a scaling."""
    kind = next(name for name, own in TYPES.items() if own == scaling.kind)
    values = {NAMES[name]: getattr(scaling, name) for name in SCALINGS[scaling.kind]}
    if kind == "dynamic":  # derived from max_position_embeddings
        del values[NAMES["original_length"]]
    lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    return {"rope_type": kind, "rope_theta": base, **values, **lists}


def _positions(said: Mapping[str, Any], scaling: RotaryScaling) -> dict[str, Any]:
    """Returns max_position_embeddings if the scaling depends on it."""
    return {"max_position_embeddings": scaling.original_length} if scaling.kind == "dynamic" else {}


def _object(value: Any, label: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{label} must be an object; got {value!r:.100}")
    return dict(value or {})


def _first(*values: Any) -> Any:
    """Returns the first value that is not None."""
    return next((value for value in values if value is not None), None)
