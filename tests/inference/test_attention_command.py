"""The command `attention`: the weights on its page equal those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR, PORTS
from invoke import refused, succeeded
from kinds import conformance
from messages import mentions
from model_folders import FOUR_NEEDS, bert, gpt2
from test_attention_page import held

from rosettaformer.use.inference.attention_page import LEVELS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT, PAIR = "the quick brown fox", "the lazy dog"


def shown(folder: Path, *options: str, heads: int = 6) -> dict[str, Any]:
    """Returns the only map of the page that the command writes."""
    out = folder / "page.html"
    assert mentions(succeeded("attention", folder, "--dtype", "float64", "--out", out, *options).out, f"{out} … {heads}")
    (one,) = held(out.read_text(encoding="utf-8"))
    return one


def expected(model: Any, **inputs: Any) -> np.ndarray:
    model.set_attn_implementation("eager")
    return torch.cat(model(**inputs, output_attentions=True).attentions).detach().numpy()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path, Any]:
    """Returns the folder and the model of a BERT and a GPT-2."""
    encoder, decoder = (tmp_path_factory.mktemp(name) for name in ("encoder", "decoder"))
    return encoder, bert(encoder, kind="BertModel"), decoder, gpt2(decoder)


@pytest.mark.parametrize("backend", [*FOUR[:2], *map(conformance, PORTS[1:])])
def test_the_weights_are_those_of_transformers(backend: str, models: tuple[Path, Any, Path, Any]) -> None:
    pytest.importorskip(FOUR_NEEDS[backend])
    encoder, model, decoder, other = models
    one = shown(encoder, "--backend", backend, "--text", TEXT, "--text", PAIR)
    assert one["queries"] == one["keys"] == ["[CLS]", *TEXT.split(), "[SEP]", *PAIR.split(), "[SEP]"]
    given = transformers.AutoTokenizer.from_pretrained(encoder)(TEXT, PAIR, return_tensors="pt")
    weights = expected(model, **given)
    np.testing.assert_allclose(one["weights"], weights, rtol=0, atol=0.5001 / LEVELS)
    assert (one["second"], one["keys"][one["second"]]) == (6, PAIR.split()[0])
    assert not np.allclose(expected(model, input_ids=given["input_ids"]), weights, rtol=0, atol=1e-2)

    one = shown(decoder, "--backend", backend, "--text", TEXT)
    assert "".join(one["keys"]) == TEXT
    given = transformers.AutoTokenizer.from_pretrained(decoder)(TEXT, return_tensors="pt")
    np.testing.assert_allclose(one["weights"], expected(other, input_ids=given["input_ids"]), rtol=0, atol=0.5001 / LEVELS)


def test_tokens_of_a_part_of_a_character_and_the_end_of_a_line_are_seen(models: tuple[Path, Any, Path, Any]) -> None:
    tokens = shown(models[2], "--backend", "numpy", "--text", "a\nñ€")["keys"]
    assert tokens == ["a", "↵", "Ã", "±", "â", "Ĥ", "¬"]


def test_a_text_of_an_encoder_is_cut_to_its_positions(tmp_path: Path) -> None:
    bert(tmp_path, kind="BertModel", max_position_embeddings=4)
    assert shown(tmp_path, "--backend", "numpy", "--text", TEXT)["keys"] == ["[CLS]", "the", "quick", "[SEP]"]
    assert mentions((tmp_path / "page.html").read_text(encoding="utf-8"), "4 … model")


def test_layers_and_heads_of_the_page_are_chosen(models: tuple[Path, Any, Path, Any]) -> None:
    one = shown(models[2], "--backend", "numpy", "--text", TEXT, "--layers", "1", "--heads", "0,2-2", heads=2)
    assert (one["layers"], one["heads"]) == ([1], [0, 2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", ""), "text … ''"),
        (("--text", "€" * 33), "text … 64 … 99"),
        (("--text", TEXT, "--text", PAIR), "decoder-only"),
        (("--text", TEXT, "--layers", "2"), "layers must be from 0 to 1; got 2"),
        (("--text", TEXT, "--heads", "a"), "numbers … 0,4-7 … 'a'"),
        (("--text", TEXT, "--out", "no/page.html"), "does not exist"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(
    models: tuple[Path, Any, Path, Any], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert mentions(refused("attention", models[2], "--backend", "numpy", "--out", "page.html", *words, folder=tmp_path), message)
    assert not [*tmp_path.iterdir()]
