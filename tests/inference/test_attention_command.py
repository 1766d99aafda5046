"""The command `attention`: the weights of its page are those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused
from test_attention_page import held

from rosettaformer.inference.attention_page import LEVELS

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT, PAIR = "the bank of the river", "a steep bank"
WORDS = sorted({*TEXT.split(), *PAIR.split()})


def bert(folder: Path, positions: int = 16) -> Any:
    """A tiny random BERT, saved with a vocab.txt."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n", encoding="utf-8")
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 20}
    config = transformers.BertConfig(vocab_size=5 + len(WORDS), max_position_embeddings=positions, attn_implementation="eager", **sizes)
    return saved(transformers.BertModel(config), folder)


def gpt2(folder: Path) -> Any:
    """A tiny random GPT-2, saved with a tokenizer of bytes."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT, PAIR], vocab_size=280, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {
        "n_embd": 12,
        "n_head": 3,
        "n_layer": 2,
        "n_positions": 16,
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return saved(transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="eager", **sizes)), folder)


def saved(model: Any, folder: Path) -> Any:
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.7
    model.eval().save_pretrained(folder)
    return model


def shown(folder: Path, *options: str) -> dict[str, Any]:
    """The one map of the page that the command writes."""
    out = folder / "page.html"
    outcome = invoke("attention", folder, "--dtype", "float64", "--out", out, *options)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"{out}: 6 heads, ")
    (one,) = held(out.read_text(encoding="utf-8"))
    return one


def expected(model: Any, **inputs: Any) -> np.ndarray:
    weights = model.double()(**inputs, output_attentions=True).attentions
    return np.stack([layer[0].detach().numpy() for layer in weights])


@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax"])
def test_the_weights_are_those_of_transformers(backend: str, tmp_path: Path) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(backend, backend))
    (tmp_path / "bert").mkdir()
    (tmp_path / "gpt2").mkdir()
    encoder, decoder = bert(tmp_path / "bert"), gpt2(tmp_path / "gpt2")
    one = shown(tmp_path / "bert", "--backend", backend, "--text", TEXT, "--pair", PAIR)
    assert one["queries"] == one["keys"] == ["[CLS]", *TEXT.split(), "[SEP]", *PAIR.split(), "[SEP]"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    ids, segments = torch.tensor([[words.index(token) for token in one["keys"]]]), torch.tensor([[0] * 7 + [1] * 4])
    weights = expected(encoder, input_ids=ids, token_type_ids=segments)
    np.testing.assert_allclose(one["weights"], weights, rtol=0, atol=0.5001 / LEVELS)
    assert (one["second"], one["keys"][one["second"]]) == (7, PAIR.split()[0])
    assert not np.allclose(expected(encoder, input_ids=ids), weights, rtol=0, atol=1e-2)

    one = shown(tmp_path / "gpt2", "--backend", backend, "--text", TEXT)
    assert "".join(one["keys"]) == TEXT
    found = tokenizers.Tokenizer.from_file(str(tmp_path / "gpt2" / "tokenizer.json")).encode(TEXT)
    weights = expected(decoder, input_ids=torch.tensor([found.ids]))
    np.testing.assert_allclose(one["weights"], weights, rtol=0, atol=0.5001 / LEVELS)


def test_tokens_of_a_part_of_a_character_and_the_end_of_a_line_are_seen(tmp_path: Path) -> None:
    gpt2(tmp_path)
    tokens = shown(tmp_path, "--backend", "numpy", "--text", "a\né€")["keys"]
    assert tokens == ["a", "↵", "Ã", "©", "â", "Ĥ", "¬"]


def test_a_text_of_an_encoder_is_cut_to_its_positions(tmp_path: Path) -> None:
    bert(tmp_path, positions=4)
    assert shown(tmp_path, "--backend", "numpy", "--text", TEXT)["keys"] == ["[CLS]", "the", "bank", "[SEP]"]
    assert "4, all that the model has positions for" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_model_without_a_pooler_is_read(tmp_path: Path) -> None:
    bert(tmp_path)
    wanted = shown(tmp_path, "--backend", "numpy", "--text", TEXT)
    transformers.BertModel.from_pretrained(tmp_path, add_pooling_layer=False).save_pretrained(tmp_path)
    np.testing.assert_array_equal(shown(tmp_path, "--backend", "numpy", "--text", TEXT)["weights"], wanted["weights"])


def test_what_cannot_be_read_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    gpt2(tmp_path)
    out = tmp_path / "page.html"
    for words, text in (
        (("--text", ""), "a text must have a token; got ''"),
        (("--text", "the " * 20), "a text of a decoder must have at most 16 tokens, the positions of the model; got 40"),
        (("--text", TEXT, "--pair", PAIR), "a decoder-only model reads one text; got a pair"),
    ):
        assert text in refused("attention", tmp_path, "--backend", "numpy", "--out", out, *words)
    assert "does not exist" in refused("attention", tmp_path, "--text", TEXT, "--out", tmp_path / "no" / "page.html")
    assert not out.exists()


def test_layers_and_heads_of_the_page_are_chosen(tmp_path: Path) -> None:
    gpt2(tmp_path)
    out = tmp_path / "page.html"
    outcome = invoke("attention", tmp_path, "--backend", "numpy", "--text", TEXT, "--layers", "1", "--heads", "0,2-2", "--out", out)
    assert outcome.out.startswith(f"{out}: 2 heads, ")
    (one,) = held(out.read_text(encoding="utf-8"))
    assert (one["layers"], one["heads"]) == ([1], [0, 2])
    out.unlink()
    for words, text in (
        (("--layers", "2"), "layers must be from 0 to 1; got 2"),
        (("--heads", "a"), "must be numbers and ranges, such as 0,4-7; got 'a'"),
    ):
        assert text in refused("attention", tmp_path, "--backend", "numpy", "--text", TEXT, "--out", out, *words)
    assert not out.exists()
