"""The tokenizer of a new random model has the model's number of tokens, and the special tokens of config.json."""

import json
from pathlib import Path

import pytest
from invoke import refused, succeeded
from kinds import every
from messages import mentions

pytest.importorskip("transformers")

from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.use.inference import new_tokenizer
from rosettaformer.use.inference.tokenizer import Tokenizer

TEXT = "Once upon a time, there were 3 bears! (Don't ask why?)"


def opened(folder: Path, family: str, **options: object) -> Tokenizer:
    new.write(family, folder, tokenizer=new_tokenizer.write, **options)
    entries = json.loads((folder / "config.json").read_text())
    return Tokenizer(folder, entries["vocab_size"], entries)


@pytest.mark.parametrize("size", ["tiny", pytest.param("small", marks=pytest.mark.conformance)])
@pytest.mark.parametrize("family", every(3, FAMILIES))
def test_it_fits_the_model(family: str, size: str, tmp_path: Path) -> None:
    made = opened(tmp_path / "model", family, size=size)
    ids = made.batch([TEXT], 0).token_bs[0].tolist()
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    assert max(ids) < said["vocab_size"]
    assert len(json.loads((tmp_path / "model" / "tokenizer.json").read_text())["model"]["vocab"]) == said["vocab_size"]
    for name in ("bos", "eos", "pad"):
        assert said.get(f"{name}_token_id") is None or made.id_of(f"{name}_token") == said[f"{name}_token_id"]
    assert made.text(ids) == TEXT
    if size == "small":  # every byte has a token
        assert made.text(made.batch(["Zoë 北京"], 0).token_bs[0].tolist()) == "Zoë 北京"


def test_it_is_the_same_for_every_seed_and_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    for seed in (0, 1):
        opened(tmp_path / str(seed), "qwen3", seed=seed)
    new.write("qwen3", tmp_path / "bare")
    first, second, bare = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("0", "1", "bare"))
    assert first["tokenizer.json"] == second["tokenizer.json"]
    assert first.keys() - bare.keys() == {"tokenizer.json", "tokenizer_config.json"}
    assert {name: first[name] for name in bare} == bare


def test_the_commands_read_and_write_texts_with_it(tmp_path: Path) -> None:
    succeeded("new-checkpoint", "llama", "--tokenizer", "--out", "model", folder=tmp_path)
    few = ("--backend", "numpy", "--max-new-tokens", "3", "--json")
    (row,) = succeeded("generate", "model", "--prompt", TEXT, *few, folder=tmp_path).rows
    assert row["prompt"] == TEXT and len(row["tokens"]) == 3
    (row,) = succeeded("generate", "model", "--chat", "--prompt", "hi", *few, folder=tmp_path).rows
    assert len(row["tokens"]) == 3
    succeeded("attention", "model", "--text", "a b", "--backend", "numpy", "--out", "page.html", folder=tmp_path)


def test_a_vocabulary_without_room_for_the_letters_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    words = ("new-checkpoint", "llama", "--tokenizer", "--set", "vocab_size=20", "--out", "model")
    assert mentions(refused(*words, folder=tmp_path), "vocab_size")
    assert [*tmp_path.iterdir()] == []
