"""The keys of a model's config.json: meaning, affected components, published value."""

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ...files.checkpoints.hugging_face import FAMILIES
from ...files.checkpoints.hugging_face.essential import essential, shortest
from ...files.checkpoints.hugging_face.family import Entry, Family
from ..components import ORDER
from ..components.config_fields import fields, fields_of
from ..components.sources import source
from .published import Model

# fields passed to more components than use them
ACTING = {
    "encoder_layers": ("encoder",), "decoder_layers": ("decoder",), "epsilon": ("layer_norm", "rms_norm"),
    "key_size": ("multi_head_attention",), "value_size": ("multi_head_attention",),
    **dict.fromkeys(("rotary_base", "rotary_scaling", "rotary_fraction"), ("rotary_embedding",)),
}  # fmt: skip
LAYERS = "number of layers"  # the meaning of the fields *_layers


@dataclass(frozen=True)
class Key:
    """A key of config.json.

    fields: the config fields it sets. meaning: of the first field. components: the components it
    affects. value: the model's value. default: the library's value if the key is absent. within:
    the key that contains it. joint: the key it is combined with, if it sets no field itself.
    """

    name: str
    fields: tuple[str, ...]
    meaning: str
    components: tuple[str, ...]
    value: str
    default: str
    within: str = ""
    joint: str = ""


def keys(model: Model, passed: Collection[str]) -> list[Key]:
    """Returns the keys with an effect, in table order. passed: components that run."""
    return list(_keys(model, FAMILIES[model.family], passed)) if model.family else []


def notes(model: Model) -> list[str]:
    """Returns notes on keys that are combined."""
    return [joint.note for joint in FAMILIES[model.family].joints if joint.note] if model.family else []


def single(model: Model) -> dict[str, str]:
    """Returns the keys for which only one value is supported, which the table omits."""
    return {name: _shown(value) for name, value in FAMILIES[model.family].only.items()} if model.family else {}


def _keys(model: Model, family: Family, passed: Collection[str]) -> Iterator[Key]:
    config = model.config
    active = [name for name in essential(config) if name not in family.unused]
    for entry in family.entries:
        found = tuple(name for name in entry.fields if name in active)
        yield _key(entry.name, found, passed, _written(entry, vars(config)[entry.fields[0]]), entry.default)
    for joint in family.joints:
        values = joint.write(config, {})
        for name, default in joint.entries.items():
            found = tuple(field for field, own in joint.fields.items() if own == name and field in active)
            within = next((own for own, value in values.items() if isinstance(value, dict) and name in value), "")
            value = values[within][name] if within else values.get(name)
            yield _key(name, found, passed, value, default, within, "" if found else next(iter(joint.entries)))


def _key(name: str, found: tuple[str, ...], passed: Collection[str], value: Any, default: Any, within: str = "", joint: str = "") -> Key:
    acting = dict.fromkeys(component for field in found for component in _acting(field, frozenset(passed)))
    meaning = "" if not found else LAYERS if found[0].endswith("_layers") else fields()[found[0]].meaning
    return Key(name, found, meaning, tuple(acting), _shown(value), _shown(default), within, joint)


def _written(entry: Entry, value: Any) -> Any:
    return next((word for word, meaning in entry.words.items() if meaning == value), value)


def _shown(value: Any) -> str:
    """Returns a value as in config.json, an object as its pairs, a list as what it repeats, null as an empty string."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join([*map(_shown, shortest(value)), "..."])
    return {None: "", True: "true", False: "false"}.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)


@functools.cache
def _acting(field: str, passed: frozenset[str]) -> tuple[str, ...]:
    """Returns the innermost components that depend on the field."""
    if field in ACTING:
        return tuple(one for one in ACTING[field] if one in passed) or ACTING[field]
    reading = [one for one in ORDER if one in passed and any(field == own.name for own in fields_of(one))]
    return tuple(one for one in reading if not {*reading} & {*_below(one)})


@functools.cache
def _below(component: str) -> frozenset[str]:
    """Returns the components that a component calls, directly or indirectly."""
    own = [name for name in source(component, "reference_numpy").calls if name in ORDER and name != component]
    return frozenset(own).union(*map(_below, own))
