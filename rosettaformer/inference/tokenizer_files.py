"""Reads the files of a folder's tokenizer as `transformers` 5 does: its class, its vocabulary, and the tokens added to it.

Source: `AutoTokenizer.from_pretrained`, `PreTrainedTokenizerBase._from_pretrained` and `TokenizersBackend.__init__`, 5.23. A class that the
library builds from a vocabulary takes the vocabulary of tokenizer.json, and its normalizer from tokenizer_config.json; TokenizersBackend is
tokenizer.json as it stands.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, normalizers, processors

from reference_numpy.fields import is_integer

from ..checkpoints.hugging_face import FAMILIES
from ..reading import parse_json, read_object, read_text
from ..tokenizer_calls import failures
from . import tokenizer_entries
from .tokenizer_classes import ALIASES, BACKEND, KINDS, LLAMA, Kind, Vocabulary
from .tokenizer_entries import ADDITIONAL, EXTRA, SPECIAL, special, token

WHOLE, LARGEST = "tokenizer.json", 1 << 27
MOST = 1 << 32  # ids that the package has room for


class Files(NamedTuple):
    """A tokenizer, what its files say about it (special tokens as texts), and the names of what it gives a model. size: the number of its
    tokens, without special ones that the class adds and the vocabulary lacks.
    """

    inner: tokenizers.Tokenizer
    settings: Mapping[str, Any]
    input_names: Sequence[str]
    size: int


def read(folder: Path, entries: Mapping[str, Any]) -> Files:
    """Returns the tokenizer of a folder. entries: the model's config.json.

    Raises ValueError if there is none, if its files are damaged, and on an unsupported class.
    """
    said = tokenizer_entries.read(folder / "tokenizer_config.json")
    name = _class(folder, said, entries)
    kind = KINDS[name]
    files = [WHOLE] if (folder / WHOLE).is_file() else [*kind.files]
    if not files or not all((folder / file).is_file() for file in files):
        wanted = ", or ".join(filter(None, (WHOLE, " and ".join(kind.files))))
        raise ValueError(f"a folder with a tokenizer of the class {name} has {wanted}; {folder} has none of them")
    try:
        with failures():
            return _made(folder, kind, files, said)
    except ValueError as error:
        these = "are" if len(files) > 1 else "is"
        raise ValueError(f"{' and '.join(files)} of {folder} {these} no tokenizer: {error}") from None


def _class(folder: Path, said: Mapping[str, Any], entries: Mapping[str, Any]) -> str:
    """Returns the class that the folder names, if its family lets it, else that of the family, else the one that has such files."""
    named, kind = said.get("tokenizer_class", entries.get("tokenizer_class")), entries.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family and not family.tokenizer_named:
        return family.tokenizer
    if named is not None:
        name = named.removesuffix("Fast") if isinstance(named, str) else ""
        name = ALIASES.get(name, name)
        if name not in KINDS:
            known = f"{', '.join(KINDS)}, or PreTrainedTokenizerFast, which is {WHOLE} as it stands"
            raise ValueError(f"tokenizer_class of {folder} must be one of {known}; got {named!r:.100}")
        return BACKEND if name == LLAMA and _of_bytes(folder / WHOLE) else name
    if family:
        return family.tokenizer
    fitting = (name for name, kind in KINDS.items() if kind.files and (folder / kind.files[0]).is_file())
    return next(fitting, BACKEND) if not (folder / WHOLE).is_file() else BACKEND


def _of_bytes(path: Path) -> bool:
    """Whether a tokenizer.json is of bytes, as those of Llama 3, which name the class of Llama 2."""
    return path.is_file() and '"ByteLevel"' in read_text(path, LARGEST)


def _made(folder: Path, kind: Kind, files: Sequence[str], said: Mapping[str, Any]) -> Files:
    """Builds the tokenizer from these files."""
    text, *_ = [read_text(folder / file, LARGEST) for file in files]
    whole = _whole(text) if files == [WHOLE] else {}
    settings, added = _settings(folder, kind, said, whole)
    frame = _frame(whole) if whole else None
    if kind.make is None:
        inner = tokenizers.Tokenizer.from_str(text)
    else:
        inner = kind.make(_vocabulary(whole) if whole else kind.load(*(folder / file for file in files)), settings)
        if frame is not None and frame.post_processor is not None:
            inner.post_processor = frame.post_processor
        if kind.charsmap and (charsmap := _charsmap(whole.get("normalizer"))):
            inner.normalizer = normalizers.Precompiled(charsmap)
    own = inner.get_vocab(with_added_tokens=True)
    _add(inner, settings, added)
    every, extra = inner.get_vocab(with_added_tokens=True), {*kind.special.values()} - own.keys()
    size = 1 + max((number for token, number in every.items() if token not in extra), default=-1)
    inner.post_processor = _ends(inner, kind, settings) or inner.post_processor
    inner.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    texts = {key: str(value) if isinstance(value, AddedToken) else value for key, value in settings.items()}
    settings = {"padding_side": kind.padding_side} | _sides(frame) | texts
    inner.no_padding()
    inner.no_truncation()
    return Files(inner, settings, settings.get("model_input_names", kind.input_names), size)


def _whole(text: str) -> dict[str, Any]:
    """Returns the content of a tokenizer.json. Raises ValueError if it has no model, or added tokens without numbers."""
    whole = parse_json(text)
    if not isinstance(whole, dict) or not isinstance(whole.get("model"), dict):
        raise ValueError("it must be a JSON object with a model")
    added = whole.get("added_tokens", [])
    if not isinstance(added, list) or not all(isinstance(one, dict) and is_integer(one.get("id")) for one in added):
        raise ValueError(f"its added_tokens must be a list of tokens with their numbers; got {added!r:.100}")
    return whole


def _frame(whole: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns a tokenizer.json without its vocabulary: what stands around texts, and how they are padded and cut."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return tokenizers.Tokenizer.from_str(json.dumps({**whole, "model": model, "added_tokens": []}))


def _sides(frame: tokenizers.Tokenizer | None) -> dict[str, Any]:
    """Returns the sides on which a tokenizer.json pads and cuts, and its padding."""
    padding, truncation = (frame.padding, frame.truncation) if frame is not None else (None, None)
    found = {"padding_side": padding["direction"], "pad_token": padding["pad_token"]} if padding else {}
    return found | ({"truncation_side": truncation["direction"]} if truncation else {})


def _charsmap(normalizer: Any) -> bytes | None:
    """Returns the map of characters in a normalizer, or in one of a sequence."""
    if not isinstance(normalizer, Mapping):
        return None
    for one in (normalizer, *(normalizer.get("normalizers") or ())):
        if isinstance(one, Mapping) and one.get("type") == "Precompiled" and isinstance(one.get("precompiled_charsmap"), str):
            return base64.b64decode(one["precompiled_charsmap"])
    return None


def _vocabulary(whole: Mapping[str, Any]) -> Vocabulary:
    """Returns the tokens and merges of a tokenizer.json."""
    vocabulary, merges = whole["model"].get("vocab"), whole["model"].get("merges", [])
    ids = vocabulary.values() if isinstance(vocabulary, dict) else ()
    numbered = isinstance(vocabulary, (dict, list)) and all(is_integer(id_) and 0 <= id_ < MOST for id_ in ids)
    if not numbered or not isinstance(merges, list) or not all(isinstance(pair, (str, list)) for pair in merges):
        raise ValueError("its model must have a vocabulary of tokens to ids, and merges of pairs")
    pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges]
    if wrong := next((pair for pair in pairs if len(pair) != 2 or not all(isinstance(one, str) for one in pair)), None):
        raise ValueError(f"a merge must be a pair of tokens; got {wrong!r:.100}")
    return vocabulary, pairs


def _settings(folder: Path, kind: Kind, said: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, AddedToken]]:
    """Returns the settings of a tokenizer, and the tokens added to its vocabulary, by number.

    special_tokens_map.json, added_tokens.json and the added tokens of tokenizer.json count only if tokenizer_config.json has no
    added_tokens_decoder.
    """
    around = ("add_bos_token", "add_eos_token") if whole else ()  # a tokenizer.json describes what stands around a text
    settings = {key: value for key, value in said.items() if key not in around}
    _rename(settings, not settings.get(EXTRA))
    own = {key: special(value) for key, value in settings.pop(EXTRA).items()} if isinstance(settings.get(EXTRA), Mapping) else {}
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in settings:
        added = {int(number): token(value) for number, value in settings.pop("added_tokens_decoder").items()}
    else:
        settings |= tokenizer_entries.read(folder / "special_tokens_map.json")
        known = {str(special(settings[key])) for key in SPECIAL if settings.get(key)}
        known |= {str(special(value)) for value in settings.get(EXTRA) or ()}
        for content, number in _numbers(folder / "added_tokens.json").items():
            added[number] = AddedToken(content, normalized=content not in known, special=content in known)
        for value in whole.get("added_tokens", ()):
            added[value["id"]] = token(value)
    _rename(settings, EXTRA not in settings)
    settings["model_specific_special_tokens"] = own
    by_text = {one.content: one for one in added.values()}
    settings = {**kind.special, **{key: special(value) for key, value in settings.items()}}
    for key in SPECIAL:
        if settings.get(key) is not None:
            settings[key] = by_text.get(str(settings[key]), settings[key])
    return settings, added


def _rename(settings: dict[str, Any], absent: bool) -> None:
    """Takes additional special tokens for the extra ones, if these are absent."""
    if absent and ADDITIONAL in settings:
        settings[EXTRA] = settings.pop(ADDITIONAL)


def _add(inner: tokenizers.Tokenizer, settings: Mapping[str, Any], added: Mapping[int, AddedToken]) -> None:
    """Adds tokens, in the order of their numbers, and the special tokens that are not among them."""
    named = [settings[key] for key in SPECIAL if settings.get(key) is not None]
    own = settings["model_specific_special_tokens"]
    others = [value for key, value in settings.items() if key.endswith("_token") and key not in {*SPECIAL, *own}]
    named += [value for kind in (AddedToken, str) for value in others if isinstance(value, kind)]
    named += own.values()
    tokens: list[Any] = [one for _, one in sorted(added.items())]
    known = {one.content for one in [*inner.get_added_tokens_decoder().values(), *tokens]}
    for one in [*named, *(settings.get(EXTRA) or ())]:
        if str(one) not in known and one not in tokens:
            tokens.append(one)
    texts = {str(one) for one in named}
    tokens = [AddedToken(one, special=True) if isinstance(one, str) else one for one in tokens]
    for one in tokens:
        one.special = one.special or one.content in texts
    inner.add_tokens(tokens)


def _ends(inner: tokenizers.Tokenizer, kind: Kind, settings: Mapping[str, Any]) -> Any:
    """Returns the post-processor that puts the class's or the settings' tokens around texts; None if tokenizer.json's does."""
    if kind.ends:
        first, last = (str(settings[key]) for key in kind.ends)
        single, pair = f"{first}:0 $A:0 {last}:0", f"{last}:0 $B:0 {last}:0" if kind.doubled else f"$B:1 {last}:1"
    else:
        wanted = {key: settings.get(f"add_{key}") and settings.get(key) for key in ("bos_token", "eos_token") if f"add_{key}" in settings}
        if inner.post_processor is not None and not wanted:
            return None
        first, last = (str(wanted.get(key) or "") for key in ("bos_token", "eos_token"))
        single, pair = (" ".join(part for part in (first and f"{first}:{number}", f"${text}:{number}", last and f"{last}:{number}") if part)
                        for number, text in enumerate("AB"))  # fmt: skip
    special = [(token, inner.token_to_id(token)) for token in dict.fromkeys((first, last)) if token]
    return processors.TemplateProcessing(single=single, pair=f"{single} {pair}", special_tokens=special)


def _numbers(path: Path) -> dict[str, int]:
    """Returns the numbers of the tokens that an added_tokens.json names."""
    numbers = read_object(path, optional=True)
    if wrong := [name for name, number in numbers.items() if not is_integer(number)]:
        raise ValueError(f"{path} must map tokens to their numbers; got {wrong[0]!r:.100}: {numbers[wrong[0]]!r:.100}")
    return numbers
