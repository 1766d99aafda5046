"""Every text survives the round trip through tokens, and no text can spell a special token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import naming

from rosettaformer.use.training.tokens import END, PADDING, START, Tokens

PAIRS = [("uno dos tres", "one two three"), ("dos tres", "two three")] * 5
ODD = ["", " ", "<pad>", "[UNK]", "\t\r\n\0\ufeff\u2028", "é e\u0301 مرحبا 日本語", "a\u200db 👩‍👩‍👧‍👦\U0010ffff"]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(PAIRS, 300)


@given(st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(tokens: Tokens, text: str) -> None:
    (source,), (target,) = tokens.source([text]), tokens.target([text])
    assert tokens.text(source) == tokens.text(target) == text
    assert source[-1] == target[-1] == END and target[0] == START
    assert not {PADDING, START, END} & {*source[:-1]} and max(source) < tokens.vocabulary


def test_without_room_for_merges_every_token_is_a_byte() -> None:
    tokens = Tokens.train(PAIRS, 0)
    assert tokens.vocabulary == 3 + 256
    assert len(tokens.source(["añb"])[0]) == 4 + 1
    assert tokens.words(tokens.source(["ab"])[0]) == ["a", "b", "(end)"]


def test_merges_shorten_what_training_saw(tokens: Tokens) -> None:
    assert tokens.vocabulary <= 300
    assert len(tokens.source(["dos tres"])[0]) == 3


def test_what_is_stored_gives_the_same_ids(tokens: Tokens) -> None:
    stored = Tokens(str(tokens))
    assert stored.source(ODD) == tokens.source(ODD)
    assert stored.digest == tokens.digest != Tokens.train(PAIRS, 0).digest
    assert Tokens.train(PAIRS, 300).digest == tokens.digest


def test_bytes_that_are_no_text_are_replaced(tokens: Tokens) -> None:
    ((first, *_),) = tokens.source(["é"])
    assert tokens.text([START, first, END, PADDING]) == "\ufffd"


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match=naming("tokenizer's … JSON")):
        Tokens("{}")


def test_a_panic_of_the_package_is_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(str(Tokens.train(PAIRS, 0)))
    whole["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        Tokens(json.dumps(whole)).source(["a" * 40])
    assert capfd.readouterr().err == ""
