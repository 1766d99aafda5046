"""Checks the entries of tokenizer_config.json and special_tokens_map.json, and reads tokens written as objects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from reference_numpy.fields import Rule, is_integer

from ..reading import read_object

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of a token beside its content


def _is_object(value: Any) -> bool:
    """Whether it is a token written as an object."""
    has_content = isinstance(value, Mapping) and isinstance(value.get("content"), str)
    return has_content and all(isinstance(value.get(key, True), bool) for key in _FLAGS)


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or _is_object(value)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, (list, dict)) and all(map(_is_token, value.values() if isinstance(value, dict) else value))


def _is_length(value: Any) -> bool:
    return (is_integer(value) or isinstance(value, float)) and value >= 0 and (value == float("inf") or value == int(value))


def _has_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(name.isascii() and name.isdigit() and len(name) < 10 for name in value)


def _is_template(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str) for one in value)
    return isinstance(value, str) or (isinstance(value, dict) and all(isinstance(one, str) for one in value.values()))


_RULES = {
    **dict.fromkeys(
        ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "add_bos_token", "add_eos_token",
         "split_special_tokens", "clean_up_tokenization_spaces", "legacy"),
        Rule(lambda value: isinstance(value, bool), "true or false"),
    ),
    **dict.fromkeys(SPECIAL, Rule(_is_token, "a text, or an object with its content")),
    **dict.fromkeys((EXTRA, ADDITIONAL), Rule(_are_tokens, "a list of tokens, or an object of names to tokens")),
    **dict.fromkeys(("padding_side", "truncation_side"), Rule(lambda value: value in ("right", "left"), "right or left")),
    **dict.fromkeys(("model_max_length", "max_len"), Rule(_is_length, "a whole number of at least 0")),
    "added_tokens_decoder": Rule(_has_numbers, "an object of numbers to tokens"),
    "chat_template": Rule(_is_template, "a text, or a list of templates with their names"),
    "model_input_names": Rule(lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value), "a list of names"),
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """Returns the entries of a file, empty if there is none; a null entry is absent, except for a special token.

    Raises ValueError naming every entry that is not as required.
    """
    entries = {name: value for name, value in read_object(path, optional=True).items() if value is not None or name in SPECIAL}
    wrong = {name: value for name, value in entries.items() if name in _RULES and value is not None and not _RULES[name].good(value)}
    if wrong:
        raise ValueError("; ".join(f"{name} of {path} must be {_RULES[name].wanted}; got {value!r:.100}" for name, value in wrong.items()))
    return entries


def token(value: Any) -> AddedToken:
    """Returns a token that is written as an object. Raises ValueError on something else."""
    if not _is_object(value):
        raise ValueError(f"an added token must be an object with its content, and flags that are true or false; got {value!r:.100}")
    return AddedToken(value["content"], **{key: value[key] for key in _FLAGS if key in value})


def special(value: Any) -> Any:
    """Returns a special token that may be written as an object, or a list of such."""
    if isinstance(value, Mapping) and "content" in value:
        return token({**value, "special": True})
    return [special(one) for one in value] if isinstance(value, list) else value
