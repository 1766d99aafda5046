"""The keys of a model's config.json: what each means, where it acts, and the published value; from the family's own tables."""

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ...files.checkpoints.hugging_face import FAMILIES
from ...files.checkpoints.hugging_face.essential import essential
from ...files.checkpoints.hugging_face.family import Entry, Family
from ..components import ORDER
from ..components.config_fields import fields, fields_of
from ..components.sources import source
from .published import Model

# fields that more components are given than compute with them
ACTING = {
    "encoder_layers": ("encoder",), "decoder_layers": ("decoder",), "epsilon": ("layer_norm", "rms_norm"),
    "key_size": ("multi_head_attention",), "value_size": ("multi_head_attention",),
    **dict.fromkeys(("rotary_base", "rotary_scaling", "rotary_fraction"), ("rotary_embedding",)),
}  # fmt: skip
LAYERS = "how many layers follow one another"  # what the fields of their number mean here


@dataclass(frozen=True)
class Key:
    """A key of config.json. fields: of the config that it decides. meaning: of the first of them. beside: the key with which it decides, if
    it has no field of its own. components: those within which it acts. value: the model's; within: the key that holds it; default: the
    library's, if the key is absent; both values as config.json writes them.
    """

    name: str
    fields: tuple[str, ...]
    meaning: str
    components: tuple[str, ...]
    value: str
    default: str
    within: str = ""
    beside: str = ""


def keys(model: Model, passed: Collection[str]) -> list[Key]:
    """Returns the keys that decide something, in the order of the family's tables. passed: the components of the model's forward pass."""
    return list(_keys(model, FAMILIES[model.family], passed)) if model.family else []


def notes(model: Model) -> list[str]:
    """Returns what a reader of the table should know of keys that decide together."""
    return [joint.note for joint in FAMILIES[model.family].joints if joint.note] if model.family else []


def single(model: Model) -> dict[str, str]:
    """Returns the keys with one supported value: those that other models of the class may have, and this table leaves out."""
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


def _key(name: str, found: tuple[str, ...], passed: Collection[str], value: Any, default: Any, within: str = "", beside: str = "") -> Key:
    acting = dict.fromkeys(component for field in found for component in _acting(field, frozenset(passed)))
    meaning = "" if not found else LAYERS if found[0].endswith("_layers") else fields()[found[0]].meaning
    return Key(name, found, meaning, tuple(acting), _shown(value), _shown(default), within, beside)


def _written(entry: Entry, value: Any) -> Any:
    return next((word for word, meaning in entry.words.items() if meaning == value), value)


def _shown(value: Any) -> str:
    """Returns a value as config.json has it, an object as its pairs; of null nothing."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(part)}" for name, part in value.items())
    return {None: "", True: "true", False: "false"}.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)


@functools.cache
def _acting(field: str, passed: frozenset[str]) -> tuple[str, ...]:
    """Returns the components that depend on the field while nothing that they call does."""
    if field in ACTING:
        return tuple(one for one in ACTING[field] if one in passed) or ACTING[field]
    reading = [one for one in ORDER if one in passed and any(field == own.name for own in fields_of(one))]
    return tuple(one for one in reading if not {*reading} & {*_below(one)})


@functools.cache
def _below(component: str) -> frozenset[str]:
    """Returns the components that one calls, and those that they call."""
    own = [name for name in source(component, "reference_numpy").calls if name in ORDER and name != component]
    return frozenset(own).union(*map(_below, own))
