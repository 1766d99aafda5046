"""Hugging Face checkpoints: tiny random GPT-2 and BERT models with tokenizers that are trained on the spot."""

import json
from pathlib import Path
from typing import Any

import pytest
from hugging_face_folders import Drawn, made

TEXT = ["the quick brown fox jumps over the lazy dog", "née Zoë went to 北京 😀😀", "don't stop: 1,234.5 words!"]
NUMPY = ("--backend", "numpy", "--dtype", "float64")
FOUR_NEEDS = {"numpy": "numpy", "torch": "torch", "tf": "tensorflow", "jax": "jax"}


def gpt2(folder: Path, seed: int = 0, tokenizer: bool = True, **config: Any) -> Any:
    """Saves a GPT-2 whose only special token is the end token; returns the model."""
    pytest.importorskip("transformers")
    size, end = byte_pairs(folder) if tokenizer else (30, 0)
    sizes = {"vocab_size": size, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 64, "bos_token_id": end, "eos_token_id": end}
    return _saved("GPT2LMHeadModel", sizes | config, folder, seed)


def bert(folder: Path, seed: int = 0, kind: str = "BertForSequenceClassification", **config: Any) -> Any:
    """Saves a BERT, by default with a head of three classes; returns the model."""
    pytest.importorskip("transformers")
    sizes = {"vocab_size": word_pieces(folder), "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2,
             "intermediate_size": 20, "max_position_embeddings": 24}  # fmt: skip
    named = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
    return _saved(kind, sizes | named | config, folder, seed)


def modern(folder: Path, seed: int = 0, kind: str = "LlamaForCausalLM", **config: Any) -> Any:
    """Saves a decoder with two query heads per key head, by default a Llama; returns the model."""
    pytest.importorskip("transformers")
    sizes = {"vocab_size": pieces(folder, kind.startswith("Gemma")), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 20, "max_position_embeddings": 64, "bos_token_id": 1,
             "eos_token_id": 2, "pad_token_id": None}  # fmt: skip
    return _saved(kind, sizes | config, folder, seed)


def _saved(kind: str, settings: dict[str, Any], folder: Path, seed: int) -> Any:
    model = made(Drawn(kind, settings), seed)
    model.save_pretrained(folder)
    return model


def byte_pairs(folder: Path) -> tuple[int, int]:
    """Trains and saves a GPT-2-style tokenizer; returns its size and its end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet))
    made.save(str(folder / "tokenizer.json"))
    return made.get_vocab_size(), made.token_to_id("<|endoftext|>")


def pieces(folder: Path, normalized: bool = False) -> int:
    """Trains and saves a tokenizer like Llama 2's or Gemma's; returns its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] if normalized else ["<unk>", "<s>", "</s>"]
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    special = [*names, *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    first = "<bos>" if normalized else "<s>"
    made.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, made.token_to_id(first))])
    if normalized:
        made.normalizer = normalizers.Replace(" ", "\u2581")
    made.save(str(folder / "tokenizer.json"))
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] in names]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return made.get_vocab_size()


def likely_pieces(folder: Path) -> int:
    """Trains and saves a tokenizer like XLM-RoBERTa's; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made, names = Tokenizer(models.Unigram()), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    space = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    made.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    made.train_from_iterator(TEXT * 9, trainers.UnigramTrainer(vocab_size=90, special_tokens=names, unk_token="<unk>"))
    ends = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends)
    made.save(str(folder / "tokenizer.json"))
    return made.get_vocab_size()


def word_pieces(folder: Path) -> int:
    """Trains and saves a tokenizer like BERT's, as vocab.txt; returns its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
    tokens = sorted(made.get_vocab().items(), key=lambda pair: pair[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in tokens))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 24}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)


def edit(folder: Path, file: str = "config.json", **entries: Any) -> Path:
    """Changes entries of a JSON file; the value `...` removes an entry."""
    said = json.loads((folder / file).read_text()) | entries
    (folder / file).write_text(json.dumps({name: value for name, value in said.items() if value is not ...}))
    return folder
