"""Continuing prompts with decoders since Llama: the tokens of transformers, for every family, on every backend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import FIRST as OLDER
from decoder_folders import KINDS, drawn, rope
from hugging_face_folders import Drawn, made
from kinds import conformance
from model_folders import FOUR_NEEDS
from test_generate import Pair, assert_alike

from rosettaformer.files.checkpoints import view
from rosettaformer.use.inference.models import Model, open_model

PROMPTS = [[5, 1, 12], [7, 8, 9, 0, 11, 12, 13, 2], [6]]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 12, "eos_token_id": (4, 9)},
    "beams": {"max_new_tokens": 9, "num_beams": 3, "num_return_sequences": 2, "eos_token_id": (4,), "length_penalty": 0.6},
    "penalty": {"max_new_tokens": 12, "repetition_penalty": 1.4},
    "runs": {"max_new_tokens": 14, "no_repeat_ngram_size": 2},
}
FIRST = ("llama", "gemma3_text", "phi3")  # run by `make test`


def pair_of(folder: Path, drawn: Drawn, seed: int = 0) -> Pair:
    theirs = made(drawn._replace(dtype="float32", options={}), seed)
    theirs.save_pretrained(folder)
    # Only Phi-3's class rereads a text that grows beyond the original length; without a cache all do
    switches = view(folder).config.rotary_switches
    return Pair(folder, theirs, cached=not switches or drawn.kind.startswith("Phi3"))


def searches(pair: Pair, model: Model, names: Any = tuple(SEARCHES)) -> None:
    """If repeated n-grams are forbidden, transformers counts padding as text."""
    for name in names:
        assert_alike(pair, model, PROMPTS[1:2] if name == "runs" else PROMPTS, SEARCHES[name])


@pytest.mark.parametrize(
    ("family", "seed"),
    [(family, 0) for family in FIRST]
    + [conformance((family, seed)) for family in OLDER for seed in range(4) if seed or family not in FIRST]
    + [conformance(family, seed) for family in KINDS if family not in OLDER for seed in range(4)],
)
def test_every_search_is_that_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    """With windows and original lengths shorter than the texts, every type of rotary positions, and left-padded prompts."""
    pair = pair_of(tmp_path, drawn(family, seed), seed)
    searches(pair, pair.ours)


# run by `make test`: a family on each framework
OF_BACKENDS = {"torch": "qwen3", "tf": "mistral", "jax": "smollm3"}


@pytest.mark.parametrize(
    ("backend", "family"),
    [(backend, family) if first == family else conformance((backend, family)) for backend, first in OF_BACKENDS.items() for family in OLDER]
    + [conformance(backend, family) for backend in OF_BACKENDS for family in KINDS if family not in OLDER],
)
def test_every_backend_gives_the_tokens_of_transformers(tmp_path: Path, backend: str, family: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    pair = pair_of(tmp_path, drawn(family, 1), 1)
    names = ["greedy"] if OF_BACKENDS[backend] == family else ["greedy", "beams"]
    searches(pair, open_model(pair.checkpoint, backend, "float32"), names)


LONG = {
    "window": ("mistral", {"sliding_window": 9}),
    "longrope": ("phi3", {"original_max_position_embeddings": 140}),
    "longrope, crossed by the answer": ("phi3", {"original_max_position_embeddings": 155}),
    "dynamic": ("llama", {"max_position_embeddings": 140}),
    "dynamic, crossed by the answer": ("llama", {"max_position_embeddings": 155}),
}


@pytest.mark.parametrize(
    ("backend", "name"), [("numpy", name) for name in LONG] + [conformance((backend, name)) for backend in OF_BACKENDS for name in LONG]
)
def test_a_prompt_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path, backend: str, name: str) -> None:
    """And longer than the positions seen in training, which are no limit; in one step if frequencies depend on the length of a call."""
    family, entries = LONG[name]
    made_of, kind = drawn(family, 0), name.partition(",")[0]
    entries = dict(entries)
    if kind != "window":
        entries["rope_parameters"] = rope(kind, np.random.default_rng(1), made_of.settings["head_dim"])
    pair = pair_of(tmp_path, made_of._replace(settings=made_of.settings | {"sliding_window": None} | entries))
    rng = np.random.default_rng(2)
    prompts = [rng.integers(5, pair.checkpoint.config.target_vocabulary, length).tolist() for length in (150, 20)]
    model = pair.ours if backend == "numpy" else open_model(pair.checkpoint, backend, "float32")
    assert_alike(pair, model, prompts, {"max_new_tokens": 10})
