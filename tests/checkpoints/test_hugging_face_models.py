"""Transformers models loaded here: the same logits, hidden states and attention maps, and a bit-exact way back."""

import json
from pathlib import Path

import numpy as np
import pytest
from backends import FOUR
from checkpoint_models import assert_same_bits
from decoder_folders import FIRST, KINDS, all_in_float64
from decoder_folders import drawn as drawn_decoder
from decoder_folders import loaded as loaded_in_float64
from hugging_face_folders import ENCODERS, ROTARY, assert_close, drawn, loaded, made, ours, saved, sides_of, theirs
from hugging_face_folders import tokens_of as tokens
from kinds import conformance

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import canonical

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

DRAWN = [(family, seed) for family in (*ENCODERS, "gpt2") for seed in range(12)]
SAMPLE = [("bert", 0), ("bert", 1), ("bert", 2), ("roberta", 0), ("roberta", 1), ("distilbert", 4), ("gpt2", 0), ("gpt2", 1)]
SAMPLE += [(family, seed) for family in ROTARY for seed in (0, 1)]


@pytest.mark.parametrize("models", [SAMPLE, conformance(DRAWN)], ids=["some", "all"])
@pytest.mark.parametrize("backend", [*FOUR[:2], *map(conformance, FOUR[2:])])
def test_a_folder_gives_the_librarys_own_numbers(tmp_path: Path, models: list[tuple[str, int]], backend: str) -> None:
    for family, seed in models:
        model = drawn(family, seed)
        folder = saved(model, tmp_path / f"{family}{seed}")
        assert bool(list(folder.glob("*.index.json"))) == bool(model.options)
        checkpoint = checkpoints.load(folder)
        library = (loaded_in_float64 if family in ROTARY else loaded)(folder, model.kind)
        assert {str(array.dtype) for array in checkpoint.parameters.values()} == {model.dtype}
        for side in sides_of(checkpoint.config):
            given = tokens(checkpoint.config, side)
            with all_in_float64():
                wanted = theirs(library, given)
            assert_close(ours(checkpoint, model.kind, given, backend), wanted, given["mask"])


@pytest.mark.parametrize("family", ROTARY)
def test_an_encoder_with_rotary_positions_reads_a_long_text(tmp_path: Path, family: str) -> None:
    """700 tokens; windows and bases differ between layers."""
    model = drawn(family, 4)._replace(dtype="float64")
    folder = saved(model, tmp_path / "a")
    token_bt = np.random.default_rng(0).integers(1, model.settings["vocab_size"], (1, 700))
    given = {"ids": token_bt, "mask": np.arange(700)[None] >= 9}
    checkpoint = checkpoints.load(folder)
    if checkpoint.config.segments:
        given["segments"] = token_bt % checkpoint.config.segments
    library = loaded_in_float64(folder, model.kind)
    with all_in_float64():
        wanted = theirs(library, given)
    assert_close(ours(checkpoint, model.kind, given), wanted, given["mask"], bound=1e-11)


def test_a_folder_with_the_names_of_the_class_gives_the_same_parameters(tmp_path: Path) -> None:
    """The library renames the tensors of a nomic BERT when it reads and writes them."""
    model = made(drawn("nomic_bert", 0))
    for name, original in (("published", True), ("class", False)):
        model.save_pretrained(tmp_path / name, save_original_format=original)
    published, own = (checkpoints.load(tmp_path / name).parameters for name in ("published", "class"))
    assert_same_bits(own, published)


OF_DECODERS = [[(family, seed) for seed in range(2)] for family in KINDS]
MORE = [conformance([(family, seed) for seed in range(2, 10)]) for family in KINDS]
FEW = [one if one[0][0] in FIRST else conformance(one) for one in OF_DECODERS]
IDS = ["some", "all", *KINDS, *(f"{family} more" for family in KINDS)]


@pytest.mark.parametrize("models", [SAMPLE, conformance(DRAWN), *FEW, *MORE], ids=IDS)
def test_a_folder_that_is_written_again_loads_strictly_and_gives_the_same_bits(tmp_path: Path, models: list[tuple[str, int]]) -> None:
    """Via a canonical file: the same names, bits and config.json, so that the library's results are bit-identical."""
    for family, seed in models:
        model = (drawn_decoder if family in KINDS else drawn)(family, seed)
        folder, new, file = (tmp_path / f"{family}{seed}{end}" for end in ("", "_new", ".safetensors"))
        saved(model, folder)
        first = checkpoints.view(folder)
        canonical.save(file, first.config, first.parameters, foreign=first.foreign)
        checkpoint = checkpoints.load(file)
        assert checkpoint.config == first.config and checkpoint.foreign == first.foreign
        assert_same_bits(checkpoint.parameters, first.parameters)
        checkpoints.save(new, checkpoint.config, checkpoint.parameters, "hugging-face", foreign=checkpoint.foreign)
        for name in ("config.json", "generation_config.json"):
            assert (new / name).exists() == (folder / name).exists()
            assert not (new / name).exists() or json.loads((new / name).read_text()) == json.loads((folder / name).read_text())
        before, after = loaded(folder, model.kind), loaded(new, model.kind)
        twins = {"cls.predictions.bias", "lm_head.bias"}  # untied models do not read them
        unused = twins if not model.settings["tie_word_embeddings"] else set()
        for name, tensor in before.state_dict().items():
            assert name in unused or torch.equal(tensor, after.state_dict()[name]), name
        given = tokens(checkpoint.config, "right")
        for name, array in theirs(before, given).items():
            np.testing.assert_array_equal(array, theirs(after, given)[name])


OWN = [family for family in ENCODERS if family not in ("bert", "electra")]  # a config does not tell these two apart


@pytest.mark.parametrize("family", ["bert", "gpt2", *map(conformance, OWN)])
def test_a_model_that_came_from_no_folder_is_written_as_one(tmp_path: Path, family: str) -> None:
    """With only the config."""
    model = drawn(family, 0)
    first = checkpoints.load(saved(model, tmp_path / "a"))
    config = first.config.replace(dropout_rate=0.25)
    checkpoints.save(tmp_path / "b", config, first.parameters, "hugging-face")
    assert checkpoints.load(tmp_path / "b").config == config
    given = tokens(config, "left")
    checkpoint = checkpoints.Checkpoint(config, first.parameters)
    assert_close(ours(checkpoint, model.kind, given), theirs(loaded(tmp_path / "b", model.kind), given), given["mask"])
