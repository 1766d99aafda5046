"""A tokenizer.json whose regular expressions make the package panic, or never end: one message, in time."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from rosettaformer import tokenizer_calls
from rosettaformer.inference.tokenizer import Tokenizer
from rosettaformer.training.tokens import Tokens

SLOW, TEXT = "(x+x+)+y", "x" * 19 + " "


def content(**parts: Any) -> str:
    """A tokenizer.json of few words."""
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model} | empty | parts)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tokenizer(folder: Path, **parts: Any) -> Tokenizer:
    (folder / "tokenizer.json").write_text(content(**parts))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return Tokenizer(folder, None, {})


def test_a_panic_is_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        tokenizer(tmp_path, pre_tokenizer=split("(a+)+b")).prompt("a" * 40)
    assert capfd.readouterr().err == ""


@pytest.mark.conformance
def test_a_panic_of_the_tokens_of_a_run_is_one_message() -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        Tokens(content(pre_tokenizer=split("(a+)+b"))).source(["a" * 40])


@pytest.mark.conformance
def test_what_a_decoder_panics_on_is_one_message(tmp_path: Path) -> None:
    replacing = {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}
    vocab = {"a" * 40: 0, "b": 1, "?": 2}
    made = tokenizer(tmp_path, decoder=replacing, model={"type": "WordLevel", "vocab": vocab, "unk_token": "?"})
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        made.text([0])


def test_a_regular_expression_that_does_not_end_is_one_message_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(tmp_path, pre_tokenizer=split(SLOW))
    made.prompt(TEXT)
    monkeypatch.setattr(tokenizer_calls, "LIMIT", 0.1)
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        made.prompt(TEXT * 60)
    assert time.monotonic() - started < 5
