"""Makes a small tokenizer for a new random model, so that commands that read text can be tried on it.

It is of the class of the model's family and has as many tokens as the model: the special tokens under the ids that config.json gives them,
single characters, and fragments of words. It reads and writes printable ASCII; larger vocabularies also have every byte.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, pre_tokenizers, processors

from ..checkpoints.hugging_face import FAMILIES
from .tokenizer_classes import BACKEND, KINDS, Kind

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
OTHERS = ".,'!?-:;()\"0123456789" + LETTERS.upper() + "\n/_=+*@#$%&<>[]{}\\|^`~"
LEAST = 1 + len(LETTERS)  # tokens beside the special ones: a space and every letter
BYTES = 256  # tokens, of a vocabulary with room for that many beside all characters
WORDS = ("BertTokenizer", "DistilBertTokenizer")  # classes of word pieces
SCORED = ("XLMRobertaTokenizer", "CamembertTokenizer")  # classes whose pieces have scores
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
    named, ids = _special(kind, entries)
    room = entries["vocab_size"] - len(ids)
    if room < LEAST:
        raise ValueError(f"vocab_size must be at least {LEAST + len(ids)} for a tokenizer; got {entries['vocab_size']}")
    make = kind.make or KINDS["Qwen2Tokenizer"].make  # a tokenizer.json says all of it: bytes
    assert make is not None
    settings = {key: named.get(key, named.get("eos_token", "")) for key in {**kind.special, **named}}
    tokens, merges = _word_pieces(room) if name in WORDS else _pairs(name not in SCORED and _of_bytes(make, settings), room)
    free = (number for number in itertools.count() if number not in ids.values())
    numbered = ids | dict(zip(tokens, free, strict=False))
    scored = [[token, -1.0] for token in sorted(numbered, key=numbered.__getitem__)]
    vocabulary: Any = scored if name in SCORED else numbered
    inner = make((vocabulary, merges), settings)
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(ids, key=ids.__getitem__)])
    if first := _first(name, kind, named):
        inner.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0", pair=f"{first}:0 $A:0 $B:1", special_tokens=[(first, ids[first])]
        )
    inner.save(str(folder / "tokenizer.json"))
    chat = {} if kind.ends or name == "GPT2Tokenizer" else {"chat_template": TEMPLATE}
    said = {"tokenizer_class": "PreTrainedTokenizerFast" if name == BACKEND else name, **settings, **chat}
    (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _special(kind: Kind, entries: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the special tokens by name, and their ids: those of config.json, and the next free ones for others of the class."""
    own = kind.special if kind.ends or len({*kind.special.values()}) == len(kind.special) else {}
    given = {key: entries[f"{key}_id"] for key in PLAIN if isinstance(entries.get(f"{key}_id"), int) and (key in own or not kind.ends)}
    named = {**own, **{key: own.get(key, PLAIN[key]) for key in given}}
    ids = {named[key]: id_ for key, id_ in given.items()}
    for token in dict.fromkeys(named.values()):
        if token not in ids:
            ids[token] = next(number for number in itertools.count() if number not in ids.values())
    return named, ids


def _of_bytes(make: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a class writes texts as bytes."""
    return isinstance(make(({str(settings.get("unk_token")): 0}, []), settings).decoder, decoders.ByteLevel)


def _first(name: str, kind: Kind, named: Mapping[str, str]) -> str | None:
    """Returns the token that begins every text, if the class has one."""
    begins = name == BACKEND or (kind.padding_side == "left" and "bos_token" in kind.special)
    return named.get("bos_token") if begins else None


def _pairs(of_bytes: bool, room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns tokens, and the pairs whose merges make the longer ones, in order. of_bytes: a text is written as bytes."""
    space = "\u0120" if of_bytes else "\u2581"
    written = {"\n": "\u010a"} if of_bytes else {}
    found = [space, *LETTERS, *(written.get(one, one) for one in OTHERS)][:room]
    if room >= len(found) + BYTES:
        every = sorted(pre_tokenizers.ByteLevel.alphabet()) if of_bytes else [f"<0x{byte:02X}>" for byte in range(BYTES)]
        found += [one for one in every if one not in found]
    merges = list(itertools.islice(_fragments([space, *LETTERS]), room - len(found)))
    return found + [left + right for left, right in merges], merges


def _word_pieces(room: int) -> tuple[list[str], list[tuple[str, str]]]:
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
