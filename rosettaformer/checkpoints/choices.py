"""The config of a foreign checkpoint: sizes as its tensors' shapes show them, choices that no shape shows as the user tells them."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from reference_numpy import TransformerConfig, preset
from reference_numpy.suggestions import nearest

from .reading import parse_json

__all__ = ["parse_settings", "resolve"]

_FIELDS = tuple(field.name for field in dataclasses.fields(TransformerConfig))
_SIZES = ("source_vocabulary", "target_vocabulary", "model_width", "feed_forward_width", "encoder_layers", "decoder_layers")
_PER_HEAD = ("key_value_heads", "key_size", "value_size")


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """The mapping that FIELD=VALUE texts declare; values are numbers, true, false, none, or names.

    Raises ValueError listing every text without a field, unknown field and field set twice.
    """
    result: dict[str, Any] = {}
    problems = []
    for text in settings:
        field, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(f"a setting must be FIELD=VALUE; got {text!r}")
        elif field not in _FIELDS:
            problems.append(f"unknown config field {field!r}{nearest(field, _FIELDS)}")
        elif field in result:
            problems.append(f"{field} is set twice")
        else:
            result[field] = _value(value)
    if problems:
        raise ValueError("; ".join(problems))
    return result


def resolve(
    shown: Mapping[str, Any], preset_name: str | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[TransformerConfig | None, list[str]]:
    """The config, and every contradiction between what the tensors show and what the user says.

    A preset speaks for its choices and not for its sizes, which are the paper's. Its heads count only at its own width: at another they
    would be a guess that no shape refutes.
    """
    told = dict(settings or {})
    base = preset(preset_name).to_dict() if preset_name else {}
    if base.get("model_width") != shown["model_width"]:
        base.pop("heads", None)
    claims = {name: value for name, value in base.items() if name not in (*_SIZES, *_PER_HEAD)} | told
    shown, problems = _split_heads(shown, claims)
    problems += [
        f"{name} is {claims[name]!r} by {'--set' if name in told else f'the preset {preset_name}'}, but the tensors show {value!r}"
        for name, value in shown.items()
        if name in claims and claims[name] != value
    ]
    fields = claims | shown
    if unknown := [name for name in _FIELDS if name not in fields and name not in _PER_HEAD]:
        problems.append(f"the shapes cannot tell {', '.join(unknown)}: give --set FIELD=VALUE for each, or --preset")
    if unknown or "key_size" not in fields:
        return None, problems
    try:
        return TransformerConfig.from_dict(fields), problems
    except ValueError as error:
        return None, [*problems, str(error)]


def _split_heads(shown: Mapping[str, Any], claims: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is shown, with what nn.Transformer fixes: each of h heads has its own key and value, of size d / h."""
    width, heads = shown["model_width"], claims.get("heads")
    if "heads" not in claims:
        return dict(shown), []
    if type(heads) is not int or heads < 1 or width % heads:
        return dict(shown), [f"heads must be an integer that divides model_width={width}; got {heads!r}"]
    return {**shown, "key_value_heads": heads, "key_size": width // heads, "value_size": width // heads}, []


def _value(text: str) -> Any:
    word = {"true": "true", "false": "false", "none": "null", "null": "null"}.get(text.lower(), text)
    try:
        value = parse_json(word)
    except ValueError:
        return text
    return value if value is None or isinstance(value, (bool, int, float)) else text
