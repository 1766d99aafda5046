"""The supported classes of `transformers`' tokenizers, each built from its vocabulary and settings.

Source: transformers/models/*/tokenization_*.py of bert, gpt2, llama, qwen2, gemma, roberta, xlm_roberta and camembert, 5.23.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

_TEXT = ("input_ids", "attention_mask")
# tokens, and the pairs that are merged; or pieces with their scores, of which none is merged
Vocabulary = tuple[Any, list[tuple[str, str]]]


class Kind(NamedTuple):
    """A class of tokenizers. files: of its vocabulary, if there is no tokenizer.json. special: its default special tokens. ends: those
    before a text and after each. doubled: whether two ends separate a pair, which has no segments. make: None if tokenizer.json describes
    all of it. padding_side: where the class pads. charsmap: whether the class takes the precompiled normalizer of tokenizer.json.
    """

    input_names: tuple[str, ...] = _TEXT
    files: tuple[str, ...] = ()
    load: Callable[..., Vocabulary] = lambda *files: ({}, [])
    special: Mapping[str, str] = {}
    ends: tuple[str, ...] = ()
    make: Callable[[Vocabulary, Mapping[str, Any]], tokenizers.Tokenizer] | None = None
    padding_side: str = "right"
    doubled: bool = False
    charsmap: bool = False


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


def _pieces(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Llama 2: pieces of a text whose spaces are written, merged by rank, and bytes of what has no piece."""
    inner, prefix = tokenizers.Tokenizer(models.BPE(*vocabulary, fuse_unk=True, byte_fallback=True)), settings.get("add_prefix_space")
    scheme = "never" if prefix is False else "always" if settings.get("legacy", False) else "first"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if scheme != "never" else []
    inner.decoder = decoders.Sequence([*_OF_PIECES, *strip])
    return inner


def _normal_pieces(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Gemma: as `_pieces`, without a space before the text."""
    unknown = str(settings["unk_token"])
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, fuse_unk=True, unk_token=unknown, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", _SPACE)
    inner.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    inner.decoder = decoders.Sequence(_OF_PIECES)
    return inner


def _words_of_bytes(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Qwen 2: bytes of words and single digits, merged by rank."""
    inner = tokenizers.Tokenizer(models.BPE(*vocabulary, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    inner.normalizer, inner.decoder = normalizers.NFC(), decoders.ByteLevel()
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated", invert=False)
    prefix = settings.get("add_prefix_space") or False
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])
    return inner


def _likely_pieces(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of XLM-RoBERTa and CamemBERT: the likeliest pieces of each word, whose space is written before it."""
    pieces, unknown = vocabulary[0], str(settings["unk_token"])
    if not isinstance(pieces, list):
        raise ValueError("its model must have a vocabulary of pieces with scores")
    inner = tokenizers.Tokenizer(models.Unigram([(piece, score) for piece, score in pieces], _place(pieces, unknown), byte_fallback=False))
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    metaspace = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    inner.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return inner


def _place(pieces: Sequence[Any], unknown: str) -> int:
    """Returns the id of the unknown token."""
    found = next((number for number, (piece, _) in enumerate(pieces) if piece == unknown), None)
    if found is None:
        raise ValueError(f"it must have the tokens {unknown}")
    return found


_SPACE = "\u2581"  # how a space is written
_OF_PIECES = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTE_PAIRS = ("vocab.json", "merges.txt")
BACKEND, LLAMA = "TokenizersBackend", "LlamaTokenizer"
_BERT = Kind(
    input_names=("input_ids", "token_type_ids", "attention_mask"),
    files=("vocab.txt",),
    load=lambda file: (models.WordPiece.read_file(str(file)), []),
    special={"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    ends=("cls_token", "sep_token"),
    make=_word_pieces,
)
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>",
    "mask_token": "<mask>",
}  # fmt: skip
KINDS: Mapping[str, Kind] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT._replace(input_names=_TEXT),
    "GPT2Tokenizer": Kind(
        files=_BYTE_PAIRS,
        load=lambda vocabulary, merges: models.BPE.read_file(str(vocabulary), str(merges)),
        special=dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
        make=_byte_pairs,
    ),
    LLAMA: Kind(special={"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, make=_pieces, padding_side="left"),
    "Qwen2Tokenizer": Kind(
        files=_BYTE_PAIRS,
        load=lambda vocabulary, merges: models.BPE.read_file(str(vocabulary), str(merges)),
        special=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
        make=_words_of_bytes,
    ),
    "GemmaTokenizer": Kind(
        special={"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"},
        make=_normal_pieces,
        padding_side="left",
    ),
    "RobertaTokenizer": Kind(
        files=_BYTE_PAIRS,
        load=lambda vocabulary, merges: models.BPE.read_file(str(vocabulary), str(merges)),
        special=_ROBERTA,
        ends=("cls_token", "sep_token"),
        make=_byte_pairs,
        doubled=True,
    ),
    **dict.fromkeys(
        ("XLMRobertaTokenizer", "CamembertTokenizer"),
        Kind(special=_ROBERTA, ends=("bos_token", "eos_token"), make=_likely_pieces, doubled=True, charsmap=True),
    ),
    BACKEND: Kind(),
}
# other names of the library for these
ALIASES = {
    **dict.fromkeys(("ElectraTokenizer", "LayoutLMTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("PreTrainedTokenizer", "PythonBackend"), BACKEND),
}
