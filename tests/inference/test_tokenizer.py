"""A folder's tokenizer: `transformers` reads it in a process isolated from its files, and every problem is one message."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from model_folders import byte_pairs, edit, pieces, word_pieces

pytest.importorskip("transformers")

from rosettaformer.use.inference import tokenizer as module
from rosettaformer.use.inference.tokenizer import Tokenizer

EMPTY = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "a" * 40: 3}, "unk_token": "?"}
SLOW, TEXT = "(x+x+)+y", "x" * 19 + " "
BERT = {"model_type": "bert"}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def of_words(folder: Path, **parts: Any) -> Tokenizer:
    """Returns a tokenizer of few words."""
    content = {"version": "1.0", "added_tokens": [], "model": WORDS} | EMPTY | parts
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return Tokenizer(folder, None, {})


def refusal(action: Any) -> str:
    """Returns the message, one line without source locations or advice to run code or download."""
    with pytest.raises(ValueError) as caught:
        action()
    text = str(caught.value)
    assert text.strip() and not any(part in text for part in ("\n", ".py", "Traceback", "trust_remote_code", "https://"))
    return text


def test_files_of_a_vocabulary_are_read_as_tokenizer_json_is(tmp_path: Path) -> None:
    """WordPiece from vocab.txt; byte pairs from vocab.json and merges.txt."""
    size = word_pieces(tmp_path)
    found = Tokenizer(tmp_path, size, BERT)
    rows = found.batch([("the quick", "lazy dog"), "fox"], 0)
    assert rows.mask_bs.sum(axis=1).tolist()[0] > rows.mask_bs.sum(axis=1).tolist()[1]
    assert rows.segment_bs[0].any() and not rows.segment_bs[1].any()
    assert (rows.token_bs[1][~rows.mask_bs[1]] == found.id_of("pad_token")).all()
    second = found.second(("the quick", "lazy dog"), 0)
    assert rows.segment_bs[0, second] == 1 and not rows.segment_bs[0, :second].any()
    assert found.batch(["the quick brown fox the lazy dog"], 5).token_bs.shape == (1, 5)
    whole, files = tmp_path / "whole", tmp_path / "files"
    for folder in (whole, files):
        folder.mkdir()
    byte_pairs(whole)
    model = json.loads((whole / "tokenizer.json").read_text())["model"]
    (files / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (files / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    ids = [Tokenizer(folder, None, {"model_type": "gpt2"}).prompt("née the fox") for folder in (whole, files)]
    assert ids[0] == ids[1] and ids[0]


def test_ids_come_back_as_texts_and_words(tmp_path: Path) -> None:
    pieces(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    found = Tokenizer(tmp_path, None, {"model_type": "llama"})
    ids = found.prompt("the fox ж")
    assert found.text(ids).strip() == "the fox ж"
    assert any(map(found.is_byte, ids)) and not found.is_byte(ids[0])
    assert len(found.words(ids)) == len(ids) and all(found.words(ids))


def test_the_model_must_have_every_token(tmp_path: Path) -> None:
    """A table may be rounded up; added tokens count, and a text must not contain a token that the model lacks."""
    size = word_pieces(tmp_path)
    for vocabulary in (size, -(-size // 128) * 128):
        assert Tokenizer(tmp_path, vocabulary, BERT).prompt("fox")
    for vocabulary in (size // 2, 2 * size + 1):
        assert str(vocabulary) in refusal(lambda number=vocabulary: Tokenizer(tmp_path, number, BERT))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": size}))
    assert Tokenizer(tmp_path, size + 1, BERT).prompt("<|user|>")
    found = Tokenizer(tmp_path, size, BERT)
    assert str(size) in refusal(lambda: found.prompt("<|user|>"))


def test_a_folder_opened_again_is_read_again(tmp_path: Path) -> None:
    first = of_words(tmp_path)
    second = of_words(tmp_path, model=WORDS | {"vocab": {"b": 0, "?": 1}})
    assert (first.prompt("b"), second.prompt("b")) == ([1], [0])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", [1]), ("tokenizer_config.json", ...), ("special_tokens_map.json", 3), ("added_tokens.json", [1]),
        ("tokenizer_config.json", {"added_tokens_decoder": 3}), ("tokenizer_config.json", {"model_max_length": "x"}),
        ("tokenizer.json", {}), ("tokenizer.json", 3), ("tokenizer.json", {"model": {}}),
        ("tokenizer.json", {"model": WORDS | {"vocab": 1}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_message(tmp_path: Path, file: str, content: Any) -> None:
    """A broken link, left by an interrupted download, is not a missing file. Code in the folder never runs."""
    of_words(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / file).unlink(missing_ok=True)
    if content is ...:
        (tmp_path / file).symlink_to("nowhere")
    else:
        (tmp_path / file).write_text(json.dumps(content))
    text = refusal(lambda: Tokenizer(tmp_path, None, {}).batch(["a"], 0))
    assert str(tmp_path) in text or "tokenizer" in text
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_a_tokenizer_is_one_message(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(lambda: Tokenizer(tmp_path, None, BERT))
    (tmp_path / "tokenizer.model").write_bytes(b"no sentence pieces")
    assert str(tmp_path) in refusal(lambda: Tokenizer(tmp_path, None, {"model_type": "llama"}))


def test_a_panic_is_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From the `tokenizers` package, on a regular expression, when encoding and decoding."""
    refusal(lambda: of_words(tmp_path, pre_tokenizer=split("(a+)+b")).prompt("a" * 40))
    refusal(lambda: of_words(tmp_path, decoder={"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}).text([3]))
    assert capfd.readouterr().err == ""


def test_what_does_not_end_is_ended_and_the_next_call_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_words(tmp_path, pre_tokenizer=split(SLOW))
    monkeypatch.setattr(module, "LIMIT", 0.5)
    started = time.monotonic()
    refusal(lambda: made.prompt(TEXT * 600))
    assert time.monotonic() - started < 5
    monkeypatch.undo()
    assert made.prompt("a") == [0]


def test_a_fork_starts_a_process_of_its_own(tmp_path: Path) -> None:
    made = of_words(tmp_path)
    child = os.fork()
    if not child:
        os._exit(0 if module._child() is not None and made.prompt("b") == [1] else 1)
    assert made.prompt("a") == [0]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_special_tokens_and_sides_are_those_of_the_files(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    edit(tmp_path, "tokenizer_config.json", mask_token=None, padding_side="left", truncation_side="left")
    found = Tokenizer(tmp_path, None, BERT)
    rows = found.batch(["the quick brown fox", "fox"], 0)
    assert rows.mask_bs[1, -1] and not rows.mask_bs[1, 0]
    assert found.batch(["the quick brown fox"], 4).token_bs[0, -2] == rows.token_bs[0, -2]
    assert found.id_of("sep_token") is not None
