"""Makes a small tokenizer for a new random model, to try commands that read text.

It has as many tokens as the model: special tokens with the ids in config.json, single characters,
and fragments of words, spelled as bytes. It covers printable ASCII; larger vocabularies cover every
byte.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from ...files.checkpoints.hugging_face import FAMILIES

SPACE, LETTERS = "\u0120", "etaoinshrdlcumwfgypbvkjxqz"
OTHERS = ".,'!?-:;()\"0123456789" + LETTERS.upper() + "\u010a/_=+*@#$%&<>[]{}\\|^`~"  # \u010a spells a line feed
LEAST = 1 + len(LETTERS)  # required tokens: a space and every letter
BYTES = 256  # tokens for every byte, if the vocabulary has room for them after all characters
PLAIN = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
OF_ENCODERS = {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>", "unk_token": "<unk>"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write(folder: Path, entries: Mapping[str, Any]) -> None:
    """Writes tokenizer.json and tokenizer_config.json for the model of a config.json.

    Raises ValueError if the vocabulary is too small for the letters.
    """
    encoder = FAMILIES[entries["model_type"]].fixed.get("decoder_layers") == 0
    named, ids = _special(encoder, entries)
    room = entries["vocab_size"] - len(ids)
    if room < LEAST:
        raise ValueError(f"vocab_size must be at least {LEAST + len(ids)} for a tokenizer; got {entries['vocab_size']}")
    special = sorted(ids, key=ids.__getitem__)
    tokens, merges = _pairs(room)
    free = (number for number in itertools.count() if number not in {*ids.values()})
    ids |= dict(zip(tokens, free, strict=False))
    made = Tokenizer(models.BPE(ids, merges))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    first, last = (named["cls_token"], named["sep_token"]) if encoder else (named.get("bos_token"), "")
    if first:
        segment = int(entries.get("type_vocab_size", 1) > 1)
        end = [last] if last else []
        single, pair = [first, "$A", *end], [first, "$A", *end, f"$B:{segment}", *(f"{one}:{segment}" for one in end)]
        of_ends = [(token, ids[token]) for token in {first, *end}]
        made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=of_ends)
    made.save(str(folder / "tokenizer.json"))
    inputs = ["input_ids", *["token_type_ids"] * encoder, "attention_mask"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **named}
    settings |= {} if encoder else {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _special(encoder: bool, entries: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns special tokens by name, and their ids from config.json, or else the next free ids."""
    named: dict[str, str] = {}
    ids: dict[str, int] = {}
    for name, token in PLAIN.items():
        if isinstance(id_ := entries.get(f"{name}_id"), int):
            named[name] = next((other for other, taken in ids.items() if taken == id_), token)
            ids[named[name]] = id_
    if encoder:
        ends = {"cls_token": named.get("bos_token"), "sep_token": named.get("eos_token")}
        named |= {name: ends.get(name) or token for name, token in OF_ENCODERS.items()}
    for token in named.values():
        if token not in ids:
            ids[token] = next(number for number in itertools.count() if number not in ids.values())
    return named, ids


def _pairs(room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens, and the pairs to merge into the longer ones, in order."""
    found = [SPACE, *LETTERS, *OTHERS][:room]
    if room >= len(found) + BYTES:
        found += sorted({*pre_tokenizers.ByteLevel.alphabet()} - {*found})
    merges = list(itertools.islice(_fragments([SPACE, *LETTERS]), room - len(found)))
    return found + [left + right for left, right in merges], merges


def _fragments(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs that merge into fragments of words, shorter ones first."""
    while True:
        made = []
        for left, right in itertools.product(pieces, LETTERS):
            yield left, right
            made.append(left + right)
        pieces = made
