"""`rosettaformer fill-mask`: predicted tokens at a mask equal those of the transformers pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR, PORTS
from invoke import invoke, refused, succeeded
from kinds import conformance
from messages import mentions
from model_folders import FOUR_NEEDS, NUMPY, bert, edit

NONE = "mask … [MASK] … 24"
TEXTS = [
    "the quick [MASK] fox",
    "[MASK] Zoë, [MASK] went to 北京!",
    "[MASK]",
    "don't [PAD] stop [MASK] : 1,234.5 words [SEP] the [MASK] dog",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Returns a folder and the transformers pipeline on it, in float64."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("fill")
    bert(folder, 4, kind="BertForMaskedLM")
    edit(folder, "tokenizer_config.json", clean_up_tokenization_spaces=True)
    return folder, transformers.pipeline("fill-mask", str(folder), dtype="float64")


def filled(folder: Path, texts: list[str], *arguments: object) -> list[list[list[dict[str, Any]]]]:
    words = [word for text in texts for word in ("--text", text)]
    rows = succeeded("fill-mask", folder, "--json", *words, *(arguments or NUMPY)).rows
    assert [(row["line"], row["text"]) for row in rows] == [*enumerate(texts, start=1)]
    return [row["masks"] for row in rows]


def assert_alike(found: list[list[list[dict[str, Any]]]], wanted: list[Any], bound: float) -> None:
    """Asserts the same tokens and texts in the same order, with the same probabilities."""
    for masks, theirs in zip(found, wanted, strict=True):
        for mask, expected in zip(masks, theirs if isinstance(theirs[0], list) else [theirs], strict=True):
            for name in ("token", "token_str", "sequence"):
                assert [one[name] for one in mask] == [one[name] for one in expected]
            np.testing.assert_allclose([one["score"] for one in mask], [one["score"] for one in expected], rtol=0, atol=bound)


@pytest.mark.parametrize("top_k", [5, 1, 30])
def test_tokens_are_those_of_the_pipeline(model: tuple[Path, Any], top_k: int) -> None:
    """For texts of different lengths in one batch: one mask, several, next to special tokens, and next to padding written in the text."""
    wanted = model[1](TEXTS, top_k=top_k)
    assert_alike(filled(model[0], TEXTS, *NUMPY, "--top-k", top_k), wanted, 1e-10)
    assert_alike(filled(model[0], TEXTS, *NUMPY, "--top-k", top_k, "--batch-size", 1), wanted, 1e-10)


@pytest.mark.parametrize("backend", [*FOUR[:2], *map(conformance, PORTS[1:])])
def test_every_backend_gives_the_same(model: tuple[Path, Any], backend: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    assert_alike(filled(model[0], TEXTS, "--backend", backend), model[1](TEXTS), 1e-5)


def test_texts_are_lines_too_and_are_shown_with_their_tokens(model: tuple[Path, Any], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in TEXTS[:2]), encoding="utf-8")
    shown = succeeded("fill-mask", model[0], tmp_path / "lines.txt", *NUMPY, "--top-k", 2).out
    assert shown == invoke("fill-mask", model[0], *NUMPY, "--top-k", 2, stdin=(tmp_path / "lines.txt").read_text()).out
    lines = shown.splitlines()
    best = model[1](TEXTS[0])[0]
    assert lines[0] == f"[1] {TEXTS[0]}" and lines[3] == f"[2] {TEXTS[1]}" and len(lines) == 9
    assert lines[1] == f"{best['score']:.4f}  {best['token']:6}  {best['token_str']}\t{best['sequence']}"


def test_a_text_without_a_mask_is_one_row(model: tuple[Path, Any]) -> None:
    found = invoke("fill-mask", model[0], *NUMPY, "--json", stdin=f"{TEXTS[0]}\nthe dog\n{'the ' * 40}[MASK]\n{TEXTS[2]}\n")
    assert [("masks" in row, mentions(row.get("error", ""), NONE)) for row in found.rows] == [
        (True, False), (False, True), (False, True), (True, False),
    ]  # fmt: skip
    assert found.code == 2 and mentions(found.err, "Error: 2 of 4 … text 2: … [MASK]")


def test_mistakes_are_one_message(model: tuple[Path, Any], tmp_path: Path) -> None:
    assert mentions(refused("fill-mask", model[0], *NUMPY, "--text", TEXTS[0], "--top-k", 112), "top_k … 111 … 112")
    assert mentions(refused("fill-mask", model[0], model[0] / "vocab.txt", "--text", "a"), "--text … vocab.txt")
    for kind, entries, message in (
        ("BertForSequenceClassification", {}, "masked_language_head=False"),
        ("BertForMaskedLM", {"mask_token": None}, "mask_token"),
    ):
        bert(tmp_path, kind=kind)
        edit(tmp_path, "tokenizer_config.json", **entries)
        assert mentions(refused("fill-mask", tmp_path, *NUMPY, "--text", "[MASK]"), message)
