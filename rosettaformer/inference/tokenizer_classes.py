"""The supported classes of `transformers`' tokenizers, each built from its vocabulary and settings.

Source: tokenization_bert.py, tokenization_gpt2.py, tokenization_llama.py, tokenization_gemma.py and tokenization_qwen2.py of
transformers/models, 5.23.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

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


def _load_byte_pairs(vocabulary: Path, merges: Path) -> Vocabulary:
    """Returns the tokens and merges of two files."""
    tokens, pairs = models.BPE.read_file(str(vocabulary), str(merges))
    return tokens, pairs


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


def _byte_pairs_of_qwen(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Qwen: bytes, merged by rank within words, single digits and runs of other characters."""
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    inner.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False), use_regex=False)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Sequence([words, bytes_]), decoders.ByteLevel()
    return inner


def _pieces_of_llama(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Llama 2: pieces of text in which a space is ▁, and bytes for what none holds; a text begins with a space."""
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, fuse_unk=True, byte_fallback=True))
    spaced = settings.get("add_prefix_space", True)
    scheme = ("always" if settings.get("legacy", False) else "first") if spaced else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Sequence([*_of_pieces(), *([decoders.Strip(content=" ", left=1)] if spaced else [])])
    return inner


def _pieces_of_gemma(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Gemma: as Llama 2's, but a text begins as it is written."""
    unknown = str(settings["unk_token"])
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, fuse_unk=True, unk_token=unknown, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", _SPACE)
    inner.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous")
    inner.decoder = decoders.Sequence(_of_pieces())
    return inner


def _of_pieces() -> list[Any]:
    return [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


_SPACE = "▁"
_QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BACKEND, LLAMA = "TokenizersBackend", "LlamaTokenizer"
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
        load=_load_byte_pairs,
        special=dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
        make=_byte_pairs,
    ),
    LLAMA: Kind(special={"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, make=_pieces_of_llama),
    "GemmaTokenizer": Kind(
        special={"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"},
        make=_pieces_of_gemma,
    ),
    "Qwen2Tokenizer": Kind(
        files=("vocab.json", "merges.txt"),
        load=_load_byte_pairs,
        special=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
        make=_byte_pairs_of_qwen,
    ),
    BACKEND: Kind(),
}
# other names of the library for these
ALIASES = {
    **dict.fromkeys(("ElectraTokenizer", "LayoutLMTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("PreTrainedTokenizer", "PythonBackend"), BACKEND),
}
