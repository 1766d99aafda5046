"""The supported classes of `transformers`' tokenizers, each built from its vocabulary and settings.

Source: transformers/models/bert/tokenization_bert.py, transformers/models/gpt2/tokenization_gpt2.py, 5.23.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

_TEXT = ("input_ids", "attention_mask")
Vocabulary = tuple[dict[str, int], list[tuple[str, str]]]  # tokens, and the pairs that are merged


class Kind(NamedTuple):
    """A class of tokenizers. files: of its vocabulary, if there is no tokenizer.json. special: its default special tokens. ends: those
    before a text and after each. make: None if tokenizer.json describes all of it.
    """

    input_names: tuple[str, ...] = _TEXT
    files: tuple[str, ...] = ()
    load: Callable[..., Vocabulary] = lambda *files: ({}, [])
    special: Mapping[str, str] = {}
    ends: tuple[str, ...] = ()
    make: Callable[[Vocabulary, Mapping[str, Any]], tokenizers.Tokenizer] | None = None


def _byte_pairs(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of GPT-2: bytes, merged by rank."""
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    inner.decoder = decoders.ByteLevel()
    return inner


def _word_pieces(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of BERT: words, and the longest pieces of each."""
    tokens, unknown = vocabulary[0], str(settings["unk_token"])
    if lacking := [str(settings[key] or key) for key in ("unk_token", "cls_token", "sep_token") if str(settings[key]) not in tokens]:
        raise ValueError(f"it must have the tokens {', '.join(lacking)}")
    inner = tokenizers.Tokenizer(models.WordPiece(tokens, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")
    return inner


BACKEND = "TokenizersBackend"
_BERT = Kind(
    input_names=("input_ids", "token_type_ids", "attention_mask"),
    files=("vocab.txt",),
    load=lambda file: (models.WordPiece.read_file(str(file)), []),
    special={"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    ends=("cls_token", "sep_token"),
    make=_word_pieces,
)
KINDS: Mapping[str, Kind] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT._replace(input_names=_TEXT),
    "GPT2Tokenizer": Kind(
        files=("vocab.json", "merges.txt"),
        load=lambda vocabulary, merges: models.BPE.read_file(str(vocabulary), str(merges)),
        special=dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
        make=_byte_pairs,
    ),
    BACKEND: Kind(),
}
# other names of the library for these
ALIASES = {
    **dict.fromkeys(("ElectraTokenizer", "LayoutLMTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("PreTrainedTokenizer", "PythonBackend"), BACKEND),
}
