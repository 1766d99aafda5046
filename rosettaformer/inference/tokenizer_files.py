"""The files of a folder's tokenizer, read as `transformers` 5 reads them: its class, its vocabulary, and the tokens that are added to it.

Source: `AutoTokenizer.from_pretrained`, `PreTrainedTokenizerBase._from_pretrained` and `TokenizersBackend.__init__`, 5.23. A class that
the library builds from a vocabulary takes that of tokenizer.json, and its normalizer from tokenizer_config.json; TokenizersBackend is
tokenizer.json as it stands.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, processors

from ..checkpoints.hugging_face import FAMILIES
from ..reading import parse_json, read_json, read_text
from .tokenizer_classes import ALIASES, BACKEND, KINDS, Kind, Vocabulary

__all__ = ["Files", "read"]

WHOLE, LARGEST = "tokenizer.json", 1 << 27
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_OF_A_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_EXTRA = "extra_special_tokens"


class Files(NamedTuple):
    """A tokenizer, what its files say of it (special tokens as texts), and the names of what it gives a model. size: the number of its
    tokens, but for special ones that the class adds and the vocabulary has not.
    """

    inner: tokenizers.Tokenizer
    settings: Mapping[str, Any]
    input_names: Sequence[str]
    size: int


def read(folder: Path, entries: Mapping[str, Any]) -> Files:
    """The tokenizer of a folder. entries: what the model's config.json says.

    Raises ValueError where there is none, where its files are damaged, and on a class that is not supported.
    """
    said = _object(folder / "tokenizer_config.json")
    name = _class(folder, said, entries)
    kind = KINDS[name]
    files = [WHOLE] if (folder / WHOLE).is_file() else [*kind.files]
    if not files or not all((folder / file).is_file() for file in files):
        wanted = ", or ".join(filter(None, (WHOLE, " and ".join(kind.files))))
        raise ValueError(f"a folder with a tokenizer of the class {name} has {wanted}; {folder} has none of them")
    try:
        return _made(folder, kind, files, said)
    except Exception as error:  # tokenizers raises Exception itself
        these = "are" if len(files) > 1 else "is"
        raise ValueError(f"{' and '.join(files)} of {folder} {these} no tokenizer: {error}") from None


def _class(folder: Path, said: Mapping[str, Any], entries: Mapping[str, Any]) -> str:
    """The class that the folder names, otherwise that of the model's family, otherwise that which has such files."""
    named = said.get("tokenizer_class") or entries.get("tokenizer_class")
    if named is not None:
        name = named.removesuffix("Fast") if isinstance(named, str) else ""
        name = ALIASES.get(name, name)
        if name not in KINDS:
            known = f"{', '.join(KINDS)}, or PreTrainedTokenizerFast, which is {WHOLE} as it stands"
            raise ValueError(f"tokenizer_class of {folder} must be one of {known}; got {named!r:.100}")
        return name
    family = entries.get("model_type")
    if isinstance(family, str) and family in FAMILIES:
        return FAMILIES[family].tokenizer
    fitting = (name for name, kind in KINDS.items() if kind.files and (folder / kind.files[0]).is_file())
    return next(fitting, BACKEND) if not (folder / WHOLE).is_file() else BACKEND


def _made(folder: Path, kind: Kind, files: Sequence[str], said: Mapping[str, Any]) -> Files:
    """The tokenizer of these files."""
    first, *_ = [read_text(folder / file, LARGEST) for file in files]
    text = first if files == [WHOLE] else ""
    whole: dict[str, Any] = parse_json(text) if text else {}
    settings, added = _settings(folder, kind, said, whole)
    frame = _frame(whole) if whole else None
    if kind.make is None:
        inner = tokenizers.Tokenizer.from_str(text)
    else:
        inner = kind.make(_vocabulary(whole) if whole else kind.load(*(folder / file for file in files)), settings)
        if frame is not None and frame.post_processor is not None:
            inner.post_processor = frame.post_processor
    own = inner.get_vocab(with_added_tokens=True)
    _add(inner, settings, added)
    every, extra = inner.get_vocab(with_added_tokens=True), {*kind.special.values()} - own.keys()
    size = 1 + max((number for token, number in every.items() if token not in extra), default=-1)
    inner.post_processor = _ends(inner, kind, settings) or inner.post_processor
    inner.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    settings = _sides(frame) | {key: str(value) if isinstance(value, AddedToken) else value for key, value in settings.items()}
    names = settings.get("model_input_names", kind.input_names)
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"model_input_names must be a list of names; got {names!r:.100}")
    for side in ("padding_side", "truncation_side"):
        if settings.get(side, "right") not in ("right", "left"):
            raise ValueError(f"{side} must be right or left; got {settings[side]!r:.100}")
    inner.no_padding()
    inner.no_truncation()
    return Files(inner, settings, names, size)


def _frame(whole: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer.json without its vocabulary: what stands around texts, and how they are padded and cut."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return tokenizers.Tokenizer.from_str(json.dumps({**whole, "model": model, "added_tokens": []}))


def _sides(frame: tokenizers.Tokenizer | None) -> dict[str, Any]:
    """On which side a tokenizer.json pads and cuts, and with what."""
    padding, truncation = (frame.padding, frame.truncation) if frame is not None else (None, None)
    found = {"padding_side": padding["direction"], "pad_token": padding["pad_token"]} if padding else {}
    return found | ({"truncation_side": truncation["direction"]} if truncation else {})


def _vocabulary(whole: Mapping[str, Any]) -> Vocabulary:
    """The tokens and merges of a tokenizer.json."""
    model = whole.get("model", {})
    if not isinstance(model.get("vocab"), dict):
        raise ValueError("its model must have a vocabulary of tokens to ids")
    return model["vocab"], [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges", [])]


def _settings(folder: Path, kind: Kind, said: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, AddedToken]]:
    """What is said of a tokenizer, and the tokens that are added to its vocabulary, by number.

    special_tokens_map.json, added_tokens.json and the added tokens of tokenizer.json count where tokenizer_config.json has no
    added_tokens_decoder.
    """
    settings = {key: value for key, value in said.items() if value is not None or key in _SPECIAL}
    if whole:  # which has what stands around a text
        settings = {key: value for key, value in settings.items() if key not in ("add_bos_token", "add_eos_token")}
    _rename(settings, not settings.get(_EXTRA))
    own = settings.pop(_EXTRA) if isinstance(settings.get(_EXTRA), Mapping) else {}
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in settings:
        added = {int(number): _token(token) for number, token in settings.pop("added_tokens_decoder").items()}
    else:
        settings |= _object(folder / "special_tokens_map.json")
        special = {str(_special(settings[key])) for key in _SPECIAL if settings.get(key)}
        special |= {str(_special(token)) for token in settings.get(_EXTRA) or ()}
        for content, number in _object(folder / "added_tokens.json").items():
            added[number] = AddedToken(content, normalized=content not in special, special=content in special)
        for token in whole.get("added_tokens", ()):
            added[token["id"]] = _token(token)
    _rename(settings, _EXTRA not in settings)
    settings["model_specific_special_tokens"] = own
    by_text = {token.content: token for token in added.values()}
    settings = {**kind.special, **{key: _special(value) for key, value in settings.items()}}
    for key in _SPECIAL:
        if not isinstance(settings.get(key), (str, AddedToken, type(None))):
            raise ValueError(f"{key} must be a text; got {settings[key]!r:.100}")
        if settings.get(key) is not None:
            settings[key] = by_text.get(str(settings[key]), settings[key])
    return settings, added


def _rename(settings: dict[str, Any], absent: bool) -> None:
    """Additional special tokens are the extra ones, where these are absent."""
    if absent and "additional_special_tokens" in settings:
        settings[_EXTRA] = settings.pop("additional_special_tokens")


def _token(value: Any) -> AddedToken:
    if not isinstance(value, Mapping):
        raise ValueError(f"an added token must be an object with its content; got {value!r:.100}")
    return AddedToken(**{key: value[key] for key in _OF_A_TOKEN if key in value})


def _special(value: Any) -> Any:
    """A special token that is written as an object, or a list of such."""
    if isinstance(value, Mapping) and "content" in value:
        return _token({**value, "special": True})
    return [_special(token) for token in value] if isinstance(value, list) else value


def _add(inner: tokenizers.Tokenizer, settings: Mapping[str, Any], added: Mapping[int, AddedToken]) -> None:
    """Adds tokens, in the order of their numbers, and the special tokens that are not among them."""
    named = [settings[key] for key in _SPECIAL if settings.get(key) is not None]
    others = [value for key, value in settings.items() if key.endswith("_token") and key not in _SPECIAL]
    named += [value for kind in (AddedToken, str) for value in others if isinstance(value, kind)]
    named += settings["model_specific_special_tokens"].values()
    tokens: list[Any] = [token for _, token in sorted(added.items())]
    known = {token.content for token in [*inner.get_added_tokens_decoder().values(), *tokens]}
    for token in [*named, *(settings.get(_EXTRA) or ())]:
        if str(token) not in known and token not in tokens:
            tokens.append(token)
    texts = {str(token) for token in named}
    tokens = [AddedToken(token, special=True) if isinstance(token, str) else token for token in tokens]
    for token in tokens:
        token.special = token.special or token.content in texts
    inner.add_tokens(tokens)


def _ends(inner: tokenizers.Tokenizer, kind: Kind, settings: Mapping[str, Any]) -> Any:
    """What puts the class's tokens, or those that settings ask for, around texts; None where that of tokenizer.json does."""
    if kind.ends:
        first, last = (str(settings[key]) for key in kind.ends)
        single, pair = f"{first}:0 $A:0 {last}:0", f"$B:1 {last}:1"
    else:
        wanted = {key: settings.get(f"add_{key}") and settings.get(key) for key in ("bos_token", "eos_token") if f"add_{key}" in settings}
        if inner.post_processor is not None and not wanted:
            return None
        first, last = (str(wanted.get(key) or "") for key in ("bos_token", "eos_token"))
        single, pair = (" ".join(part for part in (first and f"{first}:{number}", f"${text}:{number}", last and f"{last}:{number}") if part)
                        for number, text in enumerate("AB"))  # fmt: skip
    special = [(token, inner.token_to_id(token)) for token in dict.fromkeys((first, last)) if token]
    return processors.TemplateProcessing(single=single, pair=f"{single} {pair}", special_tokens=special)


def _object(path: Path) -> dict[str, Any]:
    """What a file of JSON holds; nothing where there is none."""
    entries = read_json(path) if path.is_file() else {}
    if not isinstance(entries, dict):
        raise ValueError(f"{path} must hold a JSON object; got {type(entries).__name__}")
    return entries
