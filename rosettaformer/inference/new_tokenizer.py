"""Makes a small tokenizer for a new random model, so that commands that read text can be tried on it.

It is of the class of the model's family and has as many tokens as the model: the special tokens under the ids that config.json gives them,
single characters, and fragments of words. It reads and writes printable ASCII; larger vocabularies also have every byte.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from ..checkpoints.hugging_face import FAMILIES
from .tokenizer_classes import BACKEND, KINDS, Kind

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
OTHERS = ".,'!?-:;()\"0123456789" + LETTERS.upper() + "\n/_=+*@#$%&<>[]{}\\|^`~"
LEAST = 1 + len(LETTERS)  # tokens beside the special ones: a space and every letter
BYTES = 256  # tokens, of a vocabulary with room for that many beside all characters
PLAIN = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write(folder: Path, entries: Mapping[str, Any]) -> None:
    """Writes tokenizer.json and tokenizer_config.json for the model of a config.json.

    Raises ValueError if the vocabulary is too small for the letters.
    """
    name = FAMILIES[entries["model_type"]].tokenizer
    kind = KINDS[name]
    special = _special(kind, entries)
    ids = dict(special.values())
    room = entries["vocab_size"] - len(ids)
    if room < LEAST:
        raise ValueError(f"vocab_size must be at least {LEAST + len(ids)} for a tokenizer; got {entries['vocab_size']}")
    make = kind.make or KINDS["Qwen2Tokenizer"].make  # a tokenizer.json says all of it: bytes
    assert make is not None
    settings = {**kind.special, **{key: token for key, (token, _) in special.items()}}
    end = special["eos_token"][0] if "eos_token" in special else ""
    settings = {key: token if token in ids else end for key, token in settings.items()}
    style = make((ids, []), settings)
    tokens, merges = (_word_pieces if isinstance(style.model, models.WordPiece) else _pairs)(style, room)
    free = (number for number in itertools.count() if number not in ids.values())
    inner = make((ids | dict(zip(tokens, free, strict=False)), merges), settings)
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(ids, key=ids.__getitem__)])
    if first := _first(name, kind, special):
        inner.post_processor = processors.TemplateProcessing(
            single=f"{first[0]}:0 $A:0", pair=f"{first[0]}:0 $A:0 $B:1", special_tokens=[first]
        )
    inner.save(str(folder / "tokenizer.json"))
    chat = {} if kind.ends or name == "GPT2Tokenizer" else {"chat_template": TEMPLATE}
    said = {"tokenizer_class": "PreTrainedTokenizerFast" if name == BACKEND else name, **settings, **chat}
    (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _special(kind: Kind, entries: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Returns the special tokens and their ids by name: those with an id in config.json, and those that the class puts around texts."""
    own = kind.special if len({*kind.special.values()}) == len(kind.special) else {}
    given = {key: entries.get(f"{key}_id") for key in PLAIN}
    ids = {key: id_ for key, id_ in given.items() if isinstance(id_, int)}
    ids = {key: id_ for key, id_ in ids.items() if key in own or not kind.ends}
    free = (number for number in itertools.count() if number not in ids.values())
    ids |= {key: next(free) for key in own if key not in ids}
    return {key: (own.get(key, PLAIN.get(key, key)), id_) for key, id_ in ids.items()}


def _first(name: str, kind: Kind, special: Mapping[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Returns the token that begins every text, if the class has one."""
    begins = name == BACKEND or (kind.padding_side == "left" and "bos_token" in kind.special)
    return special.get("bos_token") if begins else None


def _pairs(style: tokenizers.Tokenizer, room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens of byte-pair encoding and their merges, in order."""
    of_bytes = isinstance(style.decoder, decoders.ByteLevel)
    space = "\u0120" if of_bytes else "\u2581"
    written = {"\n": "\u010a"} if of_bytes else {}
    found = [space, *LETTERS, *(written.get(one, one) for one in OTHERS)][:room]
    if room >= len(found) + BYTES:
        every = sorted(pre_tokenizers.ByteLevel.alphabet()) if of_bytes else [f"<0x{byte:02X}>" for byte in range(BYTES)]
        found += [one for one in every if one not in found]
    merges = list(itertools.islice(_fragments([space, *LETTERS]), room - len(found)))
    return found + [left + right for left, right in merges], merges


def _word_pieces(style: tokenizers.Tokenizer, room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens of word pieces: characters and fragments, each as the beginning of a word and within one."""
    single = [*LETTERS, *(one for one in OTHERS if one.lower() == one != "\n")]
    longer = (left + right for left, right in _fragments([*LETTERS]))
    both = (token for piece in itertools.chain(single, longer) for token in (piece, f"##{piece}"))
    return list(itertools.islice(both, room)), []


def _fragments(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs whose union is a fragment of a word, the shorter fragments first."""
    while True:
        made = []
        for left, right in itertools.product(pieces, LETTERS):
            yield left, right
            made.append(left + right)
        pieces = made
