"""The files of a tokenizer give the ids, segments and texts that `transformers` gives with the same folder; or they are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import GEMMAS
from model_folders import byte_pairs, likely_pieces, pieces, word_pieces

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from rosettaformer.inference.tokenizer import Tokenizer  # noqa: E402

USER = {"content": "<|user|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
END = {**USER, "content": "</s>", "__type": "AddedToken"}
PLAIN = USER | {"content": "brown fox", "special": False, "normalized": True}
TEXTS = [
    "The quick brown fox", "<|user|>the  <|user|> dog", "née Zoë went to 北京 😀😀!",
    "don't stop [SEP] the<|endoftext|> end", "Hello <s>World</s>",
    "[MASK] the [mask]", "brown fox\n brown FOX", "",
]  # fmt: skip
PAIRS = [("the quick", "lazy dog"), ("née", "<|user|> fox")]
# file -> content; what is None is removed
VARIANTS: dict[str, dict[str, Any]] = {
    "nothing": {"tokenizer_config.json": None},
    "backend": {"tokenizer_config.json": {"tokenizer_class": "TokenizersBackend"}},
    "fast": {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]", "pad_token": "[PAD]"}},
    "bert_fast": {"tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast"}},
    "gpt2_fast": {"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast"}},
    "distil": {"tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer"}},
    "electra": {"tokenizer_config.json": {"tokenizer_class": "ElectraTokenizerFast"}},
    "no_segments": {"tokenizer_config.json": {"model_input_names": ["input_ids", "attention_mask"]}},
    "segments": {"tokenizer_config.json": {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}},
    "cased": {"tokenizer_config.json": {"do_lower_case": False}},
    "accents": {"tokenizer_config.json": {"strip_accents": False, "tokenize_chinese_chars": False}},
    "stripped": {"tokenizer_config.json": {"do_lower_case": False, "strip_accents": True}},
    "bos": {"tokenizer_config.json": {"add_bos_token": True}},
    "ends": {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True}},
    "no_bos": {"tokenizer_config.json": {"add_bos_token": False}},
    "prefix_space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "split": {"tokenizer_config.json": {"split_special_tokens": True}},
    "cleaned": {"tokenizer_config.json": {"clean_up_tokenization_spaces": True}},
    "added": {"added_tokens.json": {"<|user|>": 900, "brown fox": 901}},
    "added_and_map": {"added_tokens.json": {"<|user|>": 900}, "special_tokens_map.json": {"additional_special_tokens": ["<|user|>"]}},
    "map": {"special_tokens_map.json": {"mask_token": USER, "bos_token": "<s>", "eos_token": {**USER, "content": "</s>"}}},
    "map_wins": {"special_tokens_map.json": {"mask_token": "<s>"}, "tokenizer_config.json": {"mask_token": "</s>"}},
    "decoder": {"tokenizer_config.json": {"added_tokens_decoder": {"900": USER, "901": PLAIN}}},
    "decoder_wins": {
        "tokenizer_config.json": {"added_tokens_decoder": {"900": PLAIN}}, "added_tokens.json": {"<|user|>": 901},
        "special_tokens_map.json": {"bos_token": "<s>"},
    },
    "strips": {"tokenizer_config.json": {"added_tokens_decoder": {"9": USER | {"lstrip": True, "rstrip": True}}, "mask_token": "<|user|>"}},
    "additional": {"tokenizer_config.json": {"additional_special_tokens": ["<|user|>", END]}},
    "extra": {"tokenizer_config.json": {"extra_special_tokens": ["<|user|>"]}},
    "extra_named": {"tokenizer_config.json": {"extra_special_tokens": {"user_token": "<|user|>"}}},
    "extra_objects": {"tokenizer_config.json": {"extra_special_tokens": {"user_token": END}}},
    "own": {"tokenizer_config.json": {"user_token": "<|user|>", "end_token": END}},
    "nulls": {"tokenizer_config.json": {"mask_token": None, "bos_token": None, "strip_accents": None, "model_max_length": None}},
    "left": {"tokenizer_config.json": {"padding_side": "left", "pad_token": "the", "truncation_side": "left"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a BERT and a GPT-2, of both kinds of files."""
    root = tmp_path_factory.mktemp("tokenizers")
    found = {name: root / name for name in ("bert_txt", "bert_json", "gpt2_txt", "gpt2_json")}
    for name, folder in found.items():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": name[:4]}))
    word_pieces(found["bert_txt"])
    (found["bert_txt"] / "tokenizer_config.json").unlink()
    own = transformers.BertTokenizer(str(found["bert_txt"] / "vocab.txt"), do_lower_case=False)
    own.backend_tokenizer.save(str(found["bert_json"] / "tokenizer.json"))
    byte_pairs(found["gpt2_json"])
    model = json.loads((found["gpt2_json"] / "tokenizer.json").read_text())["model"]
    (found["gpt2_txt"] / "vocab.json").write_text(json.dumps(model["vocab"]))
    (found["gpt2_txt"] / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""]))
    return found


def varied(base: Path, folder: Path, variant: dict[str, Any]) -> Path:
    shutil.copytree(base, folder)
    for name, entries in variant.items():
        if entries is not None:
            (folder / name).write_text(json.dumps(entries))
    return folder


def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder, None, json.loads((folder / "config.json").read_text()))


def assert_alike(folder: Path) -> None:
    library, own = transformers.AutoTokenizer.from_pretrained(folder), ours(folder)
    for text in TEXTS:
        ids = library(text)["input_ids"]
        assert own.prompt(text) == ids, text
        for special in (True, False):
            assert own.text(ids, special) == library.decode(ids, skip_special_tokens=not special), text
    for batch in (TEXTS, PAIRS):
        found = own.batch(batch, 0)
        wanted = library(batch if batch is TEXTS else [a for a, _ in batch], None if batch is TEXTS else [b for _, b in batch])
        for row, ids in enumerate(wanted["input_ids"]):
            real = found.mask_bs[row]
            assert found.token_bs[row][real].tolist() == ids
            assert found.segment_bs[row][real].tolist() == wanted.get("token_type_ids", {row: [0] * len(ids)})[row]
            assert real[:: -1 if library.padding_side == "right" else 1][-1:].all() or not real.any()
            if library.pad_token is not None:
                assert (found.token_bs[row][~real] == library.pad_token_id).all()


# model_type -> the classes that its published folders name
DECODERS = {
    "llama": ("LlamaTokenizer", "PreTrainedTokenizerFast", None), "mistral": ("LlamaTokenizer", None), "phi3": ("LlamaTokenizer", None),
    "qwen2": ("Qwen2Tokenizer", "PreTrainedTokenizerFast", None), "qwen3": ("Qwen2Tokenizer", "PreTrainedTokenizerFast", None),
    "gemma": ("GemmaTokenizer", None), "gemma2": ("GemmaTokenizer",), "gemma3_text": ("GemmaTokenizer", "PreTrainedTokenizerFast"),
    "olmo3": ("GPT2Tokenizer", None), "glm": ("PreTrainedTokenizerFast", None), "ministral": ("LlamaTokenizer", None),
    "ernie4_5": ("LlamaTokenizer", None), "helium": ("PreTrainedTokenizerFast", None), "olmo2": ("GPT2Tokenizer", None),
    "smollm3": ("PreTrainedTokenizerFast", "TokenizersBackend", None),
}  # fmt: skip
SAID: tuple[dict[str, Any], ...] = ({}, {"add_bos_token": True, "add_prefix_space": False}, {"legacy": True, "pad_token": "<|user|>"})


@pytest.mark.parametrize("kind", ["pieces", "normal", "bytes"])
def test_the_tokenizer_of_a_decoder_is_read_as_transformers_reads_it(tmp_path: Path, kind: str) -> None:
    """tokenizer.json of pieces, as of Llama 2 and of Gemma, and of bytes, as of Llama 3, whichever class a folder names."""
    (byte_pairs if kind == "bytes" else pieces)(tmp_path, *([True] if kind == "normal" else []))
    for family, classes in DECODERS.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        for named in classes if kind != "bytes" or family not in GEMMAS else ():  # whose class needs <unk>
            for said in SAID:
                own = {**said, **({} if named is None else {"tokenizer_class": named})}
                (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
                assert_alike(tmp_path)


# model_type -> the classes that its published folders name
ENCODERS = {
    "roberta": ("RobertaTokenizer", "RobertaTokenizerFast", None), "distilbert": ("DistilBertTokenizer", None),
    "xlm-roberta": ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast", None), "camembert": ("CamembertTokenizer", None),
}  # fmt: skip


@pytest.mark.parametrize("family", ENCODERS)
def test_the_tokenizer_of_an_encoder_is_read_as_transformers_reads_it(tmp_path: Path, family: str) -> None:
    {"roberta": byte_pairs, "distilbert": word_pieces}.get(family, likely_pieces)(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    for named in ENCODERS[family]:
        for said in ({}, {"add_prefix_space": family == "roberta"}):
            own = {**said, **({} if named is None else {"tokenizer_class": named})}
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
            assert_alike(tmp_path)


# of another class's files the library makes an empty vocabulary, one without an unknown token, or nothing
BERTS = {"bert_fast", "distil", "electra"}
OTHERS = {"bert_txt": {"backend", "fast", "gpt2_fast"}, "gpt2_txt": {"backend", "fast", *BERTS}, "gpt2_json": BERTS}


@pytest.mark.parametrize("base", ["bert_txt", "bert_json", "gpt2_txt", "gpt2_json"])
def test_a_folder_is_read_as_transformers_reads_it(tmp_path: Path, bases: dict[str, Path], base: str) -> None:
    """Every class, added tokens of every kind, and settings that contradict tokenizer.json."""
    for name, variant in VARIANTS.items():
        folder = varied(bases[base], tmp_path / name, variant)
        if name in OTHERS.get(base, ()):
            with pytest.raises(ValueError, match=r"of the class .* has none of them|it must have the tokens \[UNK\], "):
                ours(folder)
        else:
            assert_alike(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}, "must be one of BertTokenizer, .*; got 'T5Tok"),
        ("tokenizer_config.json", {"tokenizer_class": 3}, r"tokenizer_class of .* must be one of BertTokenizer, .*; got 3"),
        ("tokenizer_config.json", {"model_input_names": [1]}, r"model_input_names of .* must be a list of names; got \[1\]"),
        ("tokenizer_config.json", {"mask_token": 3}, "mask_token of .*_config.json must be a text, or an object with its content; got 3"),
        ("tokenizer_config.json", {"truncation_side": 3}, "truncation_side of .* must be right or left; got 3"),
        (
            "tokenizer_config.json",
            {"do_lower_case": 3, "add_bos_token": "x"},
            "do_lower_case of .* must be true or false; got 3; add_bos_token of .* must be true or false; got 'x'",
        ),
        ("special_tokens_map.json", {"strip_accents": 3}, "strip_accents of .*_map.json must be true or false; got 3"),
        ("tokenizer_config.json", {"model_max_length": -1}, "model_max_length of .* must be a whole number of at least 0; got -1"),
        ("tokenizer_config.json", {"model_max_length": 1.5}, "model_max_length of .* must be a whole number of at least 0; got 1.5"),
        ("tokenizer_config.json", {"extra_special_tokens": [1]}, "extra_special_tokens of .* must be a list of tokens, or .*; got "),
        ("tokenizer_config.json", {"added_tokens_decoder": 3}, "added_tokens_decoder of .* must be an object of numbers to tokens; got 3"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder of .* must be an object of numbers to tokens"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": "a"}}, "an added token must be an object with its content, .*; got 'a'"),
        ("tokenizer_config.json", {"unk_token": None}, "it must have the tokens unk_token"),
        ("tokenizer_config.json", [1], r"tokenizer_config.json must be a JSON object; got list"),
        ("tokenizer_config.json", ..., r"tokenizer_config.json does not exist"),
        ("added_tokens.json", [1], r"added_tokens.json must be a JSON object; got list"),
        ("added_tokens.json", {"a": "b"}, r"added_tokens.json must map tokens to their numbers; got 'a': 'b'"),
        ("tokenizer.json", {}, "tokenizer.json of .* is no tokenizer: it must be a JSON object with a model"),
        ("tokenizer.json", 3, "tokenizer.json of .* is no tokenizer: it must be a JSON object with a model"),
        ("tokenizer.json", {"model": {}}, "its model must have a vocabulary of tokens to ids, and merges of pairs"),
        ("tokenizer.json", {"model": {}, "added_tokens": [{}]}, "its added_tokens must be a list of tokens with their numbers"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, bases: dict[str, Path], file: str, content: Any, message: str) -> None:
    """A link to nothing, as of a download that was cut, is no absent file."""
    folder = varied(bases["bert_txt"], tmp_path / "a", {} if content is ... else {file: content})
    if content is ...:
        (folder / file).symlink_to("nowhere")
    with pytest.raises(ValueError, match=message):
        ours(folder)


@pytest.mark.parametrize("base", ["bert_txt", "gpt2_txt", "gpt2_json"])
def test_added_tokens_count_among_those_of_the_model(tmp_path: Path, bases: dict[str, Path], base: str) -> None:
    """Whose table may be that size, or rounded up."""
    library = transformers.AutoTokenizer.from_pretrained(varied(bases[base], tmp_path / "a", VARIANTS["added"]))
    size = 1 + max(library.get_vocab().values())
    entries = {"model_type": base[:4]}
    for vocabulary in (size, -(-size // 128) * 128):
        assert Tokenizer(tmp_path / "a", vocabulary, entries).prompt("<|user|>") == library("<|user|>")["input_ids"]
    for vocabulary in (size - 2, -(-size // 128) * 128 + 1):
        with pytest.raises(ValueError, match=f"must have the {vocabulary} tokens of the model; it has {size}"):
            Tokenizer(tmp_path / "a", vocabulary, entries)


def test_lines_of_a_vocabulary_may_end_as_in_windows(tmp_path: Path, bases: dict[str, Path]) -> None:
    folder = varied(bases["bert_txt"], tmp_path / "a", {})
    (folder / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert_alike(folder)


def test_without_a_model_type_the_files_tell_the_class(tmp_path: Path, bases: dict[str, Path]) -> None:
    for base in bases.values():
        wanted = ours(base).prompt(TEXTS[0])
        assert Tokenizer(base, None, {}).prompt(TEXTS[0]) == wanted or base.name == "bert_json"  # which is cased


def merged(rng: np.random.Generator, names: list[str]) -> dict[str, Any]:
    """The files of several variants together."""
    found: dict[str, Any] = {}
    for name in rng.choice(names, rng.integers(2, 6), replace=False):
        for file, entries in VARIANTS[name].items():
            found[file] = {**found.get(file, {}), **(entries or {})}
    return found


@pytest.mark.parametrize("trials", [6, pytest.param(100, marks=pytest.mark.conformance)])
@pytest.mark.parametrize("base", ["bert_txt", "bert_json", "gpt2_txt", "gpt2_json"])
def test_files_that_say_many_things_at_once(tmp_path: Path, bases: dict[str, Path], base: str, trials: int) -> None:
    for trial in range(trials):
        names = [name for name in VARIANTS if name not in OTHERS.get(base, ())]
        folder = varied(bases[base], tmp_path / f"{trial}", merged(np.random.default_rng(trial), names))
        assert_alike(folder)
