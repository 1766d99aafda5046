"""`rosettaformer classify`: labels and probabilities of lines equal those of transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR, PORTS
from invoke import invoke, refused, succeeded
from kinds import conformance
from messages import mentions
from model_folders import FOUR_NEEDS, NUMPY, bert, gpt2

from rosettaformer.comparison.one_model.subject import open_subject
from rosettaformer.use.inference.attention import inputs_of
from rosettaformer.use.inference.folder import open_folder

LINES = [
    "the quick brown fox", "Zoë!", "", "don't stop " * 20, "the lazy dog\tjumps over", "北京\t" + "words " * 40, "the fox\t", "\tthe fox",
    "the [SEP] fox\t[CLS] [MASK]",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("classify")
    return folder, bert(folder, 3)


def classified(folder: Path, lines: list[str], *arguments: object) -> list[dict[str, Any]]:
    return succeeded("classify", folder, *(arguments or NUMPY), "--json", stdin="".join(f"{line}\n" for line in lines)).rows


def wanted(model: tuple[Path, Any], lines: list[str], padding_side: str = "right") -> np.ndarray:
    """Returns the logits of transformers for each line separately."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model[0], padding_side=padding_side)
    given = [tokenizer(*line.split("\t"), truncation=True, padding=True, return_tensors="pt") for line in lines]
    with torch.no_grad():
        return np.concatenate([model[1](**one).logits.numpy() for one in given])


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def probabilities(rows: list[dict[str, Any]]) -> list[list[float]]:
    return [[*row["probabilities"].values()] for row in rows]


def assert_alike(model: tuple[Path, Any], lines: list[str] = LINES, function: Callable[[np.ndarray], np.ndarray] = softmax) -> None:
    np.testing.assert_allclose(probabilities(classified(model[0], lines)), function(wanted(model, lines)), rtol=1e-5)


@pytest.mark.parametrize("backend", [*FOUR[:2], *map(conformance, PORTS[1:])])
def test_probabilities_are_those_of_transformers(model: tuple[Path, Any], backend: str) -> None:
    """For texts and pairs, long and empty ones, single and in batches."""
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    logits = wanted(model, LINES)
    for size in (1, 4):
        rows = classified(model[0], LINES, "--backend", backend, "--batch-size", size)
        np.testing.assert_allclose(probabilities(rows), softmax(logits), rtol=1e-4)
        assert [row["line"] for row in rows] == [*range(1, len(LINES) + 1)]
        assert [row["label"] for row in rows] == [("bad", "so-so", "good")[best] for best in logits.argmax(-1)]
        assert ["\t".join([row["text"], *([row["pair"]] if "pair" in row else [])]) for row in rows] == LINES


@pytest.mark.parametrize(
    ("entries", "segments"),
    [
        ({"tokenizer_class": "TokenizersBackend"}, False), ({"tokenizer_class": "BertTokenizerFast"}, True),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, True),
    ],
)  # fmt: skip
def test_a_pair_has_segments_where_the_tokenizer_gives_them(
    model: tuple[Path, Any], tmp_path: Path, entries: dict[str, Any], segments: bool
) -> None:
    """In `classify`, `attention` and `report`; the probabilities equal those of transformers."""
    import transformers

    shutil.copytree(model[0], folder := tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(model[0]).backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(entries | {"pad_token": "[PAD]", "model_max_length": 24}))
    assert_alike((folder, model[1]))
    assert open_subject(folder, "the lazy", "fox").inputs["segment_bs"].any() == segments
    found = open_folder(folder, "attend")
    assert inputs_of(found.checkpoint.config, found.tokenizer, "the lazy", "fox")[0]["segment_bs"].any() == segments


def test_a_bad_line_costs_its_own_row(model: tuple[Path, Any]) -> None:
    """A line that is not a text, or three texts; the others are classified in any batch, and the exit code shows it."""
    lines = [b"the quick", b"a\tb\tc", b"\xff\xfe", b"", b"the\tdog", b"x" * 200_000]
    good = [classified(model[0], [lines[place].decode()])[0]["probabilities"] for place in (0, 3, 4)]
    for size in (1, 4):
        found = invoke("classify", model[0], *NUMPY, "--json", "--batch-size", size, stdin=b"\n".join(lines))
        rows = found.rows
        assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6]
        for place, wanted_row in zip((0, 3, 4), good, strict=True):
            np.testing.assert_allclose([*rows[place]["probabilities"].values()], [*wanted_row.values()], rtol=1e-10)
        errors = [rows[place]["error"] for place in (1, 2, 5)]
        assert mentions(errors[0], "line … 3")
        assert "must be UTF-8; got the byte 0xff" in errors[1] and "must be at most 100000 bytes long" in errors[2]
        assert found.code == 2 and mentions(found.err, "Error: 3 of 6 … \n  line 2: a line … \n")
    shown = invoke("classify", model[0], *NUMPY, stdin=b"\n".join(lines)).out.splitlines()
    assert len(shown) == 6 and shown[1] == f"error\t{errors[0]}"


def test_a_text_without_a_token_is_no_text_of_padding(model: tuple[Path, Any], tmp_path: Path) -> None:
    """An empty text under a tokenizer that adds no special tokens; transformers fails on it."""
    import tokenizers

    shutil.copytree(model[0], folder := tmp_path / "model")
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    errors = invoke("classify", folder, *NUMPY, stdin="the\n\n").err
    assert mentions(errors, "Error: 1 of 2 … line 2: … text … ''")
    assert mentions(refused("attention", folder, *NUMPY, "--text", "", "--out", tmp_path / "page.html"), "text … ''")


def test_a_line_in_is_a_line_out(model: tuple[Path, Any]) -> None:
    found = invoke("classify", model[0], *NUMPY, stdin="\n".join(LINES))
    rows = classified(model[0], LINES)
    lines = found.out.splitlines()
    assert len(lines) == len(LINES)
    for line, row in zip(lines, rows, strict=True):
        assert line == f"{row['label']}\t" + "  ".join(f"{name} {value:.4f}" for name, value in row["probabilities"].items())


@pytest.mark.parametrize(
    ("entries", "classes", "function"),
    [
        ({"problem_type": "multi_label_classification"}, 3, lambda x: 1 / (1 + np.exp(-x))),
        ({"problem_type": "regression"}, 3, lambda x: x),
        ({"num_labels": 1, "id2label": {0: "LABEL_0"}}, 1, lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_other_problems(tmp_path: Path, entries: dict[str, Any], classes: int, function: Any) -> None:
    """As in the pipeline of transformers: sigmoids of several labels, and the number of a regression."""
    assert_alike((tmp_path, bert(tmp_path, **entries)), function=function)
    assert len(classified(tmp_path, ["the"])[0]["probabilities"]) == classes


def test_a_model_of_one_segment_reads_texts_alone(tmp_path: Path) -> None:
    assert_alike((tmp_path, bert(tmp_path, type_vocab_size=1)), ["the lazy dog"])
    errors = refused("classify", tmp_path, *NUMPY, stdin="the\tdog\nthe dog\n")
    assert mentions(errors, "1 of 2 … line 1 … 2 segments (type_vocab_size) … 1")


def test_mistakes_are_one_message(model: tuple[Path, Any], tmp_path: Path) -> None:
    assert mentions(refused("classify", model[0] / "vocab.txt", stdin="a\n"), "folder … model")
    gpt2(tmp_path)
    errors = refused("classify", tmp_path, *NUMPY, stdin="a\n")
    assert mentions(errors, "encoder-only … BERT … encoder_layers=0 … decoder_layers=2")
    assert mentions(refused("generate", model[0], *NUMPY, "--prompt", "a"), "decoder … decoder_layers=0")


def test_a_model_without_the_head_and_another_tokenizer_are_said_at_once(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    bert(tmp_path)
    config = transformers.BertConfig.from_pretrained(tmp_path)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n")
    errors = refused("classify", tmp_path, *NUMPY, stdin="a\n")
    assert mentions(errors, "(classes=0)")
    assert f"must have the {config.vocab_size} tokens of the model" in errors
