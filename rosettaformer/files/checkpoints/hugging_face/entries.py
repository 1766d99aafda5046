"""Translates between the entries of config.json and a config, using a family's table."""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.suggestions import Nearest

from .essential import essential
from .family import WRITERS, Entry, Family

_LABELS = 2  # the library's default
_IGNORING = "; if it has no effect, add --ignore "


def config_of(family: Family, entries: Mapping[str, Any], heads: Collection[str]) -> tuple[TransformerConfig | None, list[str]]:
    """Returns the config of a model with these heads, and a problem for every invalid entry."""
    renamed = {family.aliases.get(name, name): value for name, value in entries.items()}
    problems = [*_unsupported(family, renamed)]
    problems += [f"{name} and {other} are synonyms; keep one of them" for name, other in family.aliases.items()
                 if name in entries and other in entries and entries[name] != entries[other]]  # fmt: skip
    given = {entry.name: entry.default for entry in family.entries}
    given |= {name: default for joint in family.joints for name, default in joint.entries.items()} | renamed
    fields: dict[str, Any] = dict(family.fixed)
    source: dict[str, str] = {}  # field -> its entry
    for entry in family.entries:
        try:
            value = _value(entry, given)
        except ValueError as error:
            problems.append(str(error))
            continue
        for name in entry.fields:
            if name in source and fields[name] != value:
                problems.append(f"{source[name]} and {entry.name} must be equal; got {given[source[name]]} and {given[entry.name]}")
            fields[name], source[name] = value, source.get(name, entry.name)
    for joint in family.joints if not problems else ():
        source |= joint.fields
        try:
            fields |= joint.read(given)
        except ValueError as error:
            problems.append(str(error))
    fields |= {"pooler": "pooler" in heads, "masked_language_head": "masked_language_head" in heads, "classes": 0}
    if "classifier" in heads:
        fields["classes"] = labels(entries)
    if "language_head" not in heads and any(head.name == "language_head" for head in family.heads):
        fields |= {"tie_logits": True, "output_bias": False}  # the model has no output layer
    if problems:
        return None, problems
    try:
        return TransformerConfig.from_dict(fields), []
    except ValueError as error:
        return None, [_in_entries(str(error), source)]


def _value(entry: Entry, given: Mapping[str, Any]) -> Any:
    value = given[entry.name]
    if value is None:
        with contextlib.suppress(TypeError):  # a non-numeric entry already has a problem
            value = entry.otherwise(given)
    if not entry.words:
        return value
    if not isinstance(value, str) or value not in entry.words:
        raise ValueError(f"{entry.name} must be one of {', '.join(entry.words)}; got {json.dumps(value):.100}")
    return entry.words[value]


def unadvised(problem: str) -> str:
    """Removes the advice to ignore an entry from a problem."""
    return problem.partition(_IGNORING)[0]


def supported_alone(family: Family, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries that the family knows."""
    return {name: value for name, value in entries.items() if family.aliases.get(name, name) in _known(family)}


def _known(family: Family) -> set[str]:
    known = {entry.name for entry in family.entries} | family.only.keys() | family.harmless | family.ignored.keys()
    return known.union(*(joint.entries for joint in family.joints))


def _unsupported(family: Family, entries: Mapping[str, Any]) -> Iterator[str]:
    known = _known(family)
    like = Nearest(sorted(known), few=len(entries) < 1000)
    for name, value in entries.items():
        if name not in known and (value is None or re.fullmatch(WRITERS, name)):
            continue
        if name not in known:
            yield f"unknown entry {name} for {family.name}{like.to(name)}{_IGNORING}{name}"
        elif name in family.only and not any(_same(value, wanted) for wanted in supported(family, name)):
            wanted = " or ".join(map(json.dumps, supported(family, name)))
            yield f"{name} must be {wanted}, the only supported value; got {json.dumps(value):.100}"


def supported(family: Family, name: str) -> tuple[Any, ...]:
    """Returns the supported values of an entry."""
    values = family.only[name]
    return values if isinstance(values, tuple) else (values,)


def _same(value: Any, wanted: Any) -> bool:
    """Whether two values are equal; an empty list or object counts as None."""
    return (value is wanted or value in ({}, [])) if wanted is None else type(value) is type(wanted) and value == wanted


def _in_entries(text: str, source: Mapping[str, str]) -> str:
    """Rewrites a message about config fields in terms of entries; names each entry once."""
    parts = (re.sub(r"^\w+|\w+(?==)", lambda found: source.get(found[0], found[0]), part) for part in text.split("; "))
    return "; ".join(dict.fromkeys(re.split(r"; (?=\w+ must )", "; ".join(parts))))


def labels(entries: Mapping[str, Any]) -> int:
    """Counts the labels as the library does: `id2label`, else `num_labels`, else two."""
    said = entries.get("id2label")
    if isinstance(said, dict) and said and all(re.fullmatch(r"[0-9]{1,9}", str(number)) for number in said):
        return len({int(number) for number in said})
    count = entries.get("num_labels")
    return count if type(count) is int and count > 0 else _LABELS


def entries_of(family: Family, config: TransformerConfig, said: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the config.json of a config, and the reasons why the family cannot express it.

    said: an earlier config.json; its entries are kept unless they contradict the config.
    """
    own, problems = family.heads_of(config), list[str]()
    classes = family.classes_of(config)
    named = said.get("architectures")
    for chosen in sorted(classes, key=lambda name: [name] != named):
        heads = own | {head.name for head in family.heads if head.flag == "" and head.name in family.classes[chosen]}
        result = {**said, "architectures": [chosen], "model_type": family.model_type}
        if _differences(family, config, result, heads):
            dropped = {*family.aliases, *(name for joint in family.joints for name in joint.entries if name not in joint.kept)}
            result = {name: value for name, value in result.items() if name not in dropped} | _written(family, config, said)
        if not said:  # otherwise the library would use the token ids of the published vocabulary
            result = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": config.padding_id} | result
        found = _differences(family, config, result, heads)
        if not found:
            return result, []
        problems = problems or found
    return {}, problems or [f"no class of {family.name} has these heads together: {', '.join(sorted(own))}"]


def _written(family: Family, config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every entry that the config determines."""
    values = config.to_dict()
    result: dict[str, Any] = {}
    for entry in family.entries:
        value = values[entry.fields[0]]
        result[entry.name] = next((word for word, meaning in entry.words.items() if meaning == value), value)
    for joint in family.joints:
        result |= joint.write(config, said)
    if config.classes and (config.classes != labels(said) or "num_labels" in said):
        names = [f"LABEL_{number}" for number in range(config.classes)]
        result["id2label"] = {str(number): name for number, name in enumerate(names)}
        result["label2id"] = {name: number for number, name in enumerate(names)}
    return result


def _differences(family: Family, config: TransformerConfig, entries: Mapping[str, Any], heads: Collection[str]) -> list[str]:
    """Describes the entries that contradict the config."""
    found, problems = config_of(family, entries, heads)
    if found is None:
        return problems
    read, own = essential(found), essential(config)
    return [
        f"a Hugging Face {family.name} has {name}={read.get(name)!r}; got {own.get(name)!r}"
        for name in dict.fromkeys([*own, *read])
        if name not in family.unused and own.get(name) != read.get(name)
    ]
