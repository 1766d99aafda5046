"""Continuing prompts with the decoders since Llama: the tokens that transformers chooses, for every family, on every backend."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import FIRST as OLDER
from decoder_folders import KINDS, drawn, rope
from hugging_face_folders import Drawn, made
from kinds import conformance
from model_folders import FOUR_NEEDS

from rosettaformer.checkpoints import view
from rosettaformer.inference.generation import Answer, generate
from rosettaformer.inference.models import Model, open_model
from rosettaformer.inference.options import GenerationOptions

PAD = 3
PROMPTS = [[5, 1, 12], [7, 8, 9, 0, 11, 12, 13, 2], [6]]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 12, "eos_token_id": (4, 9)},
    "beams": {"max_new_tokens": 9, "num_beams": 3, "num_return_sequences": 2, "eos_token_id": (4,), "length_penalty": 0.6},
    "penalty": {"max_new_tokens": 12, "repetition_penalty": 1.4},
    "runs": {"max_new_tokens": 14, "no_repeat_ngram_size": 2},
}
FIRST = ("llama", "gemma3_text", "phi3")  # run by `make test`


class Pair:
    """A model of transformers, and the same here."""

    def __init__(self, folder: Path, drawn: Drawn, seed: int = 0) -> None:
        self.theirs = made(drawn._replace(dtype="float32", options={}), seed)
        self.theirs.save_pretrained(folder)
        self.checkpoint = view(folder)
        # Only Phi-3's class reads a text anew when it grows beyond the original length; without a cache all do
        self.uncached = bool(self.checkpoint.config.rotary_switches) and not drawn.kind.startswith("Phi3")

    def open(self, backend: str = "numpy", dtype: str = "float64") -> Model:
        return open_model(self.checkpoint, backend, dtype)

    def wanted(self, prompts: list[list[int]], settings: dict[str, Any]) -> list[list[int]]:
        """What `generate` of transformers gives, without the prompts. Of the model a copy, which keeps no length of an earlier text."""
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options = {**settings, "eos_token_id": list(settings.get("eos_token_id", ())) or None, "use_cache": not self.uncached}
        found = copy.deepcopy(self.theirs).generate(ids, attention_mask=mask, do_sample=False, pad_token_id=PAD, **options)
        return [row.tolist() for row in found[:, width:]]


def assert_alike(pair: Pair, model: Model, prompts: list[list[int]], settings: dict[str, Any]) -> None:
    events = [event for event in generate(model, prompts, GenerationOptions(**settings)) if isinstance(event, Answer)]
    found = [answer.tokens for answer in sorted(events, key=lambda answer: (answer.prompt, answer.answer))]
    wanted = pair.wanted(prompts, settings)
    assert len(found) == len(wanted)
    for tokens, row in zip(found, wanted, strict=True):
        assert [*tokens, *[PAD] * (len(row) - len(tokens))] == row, settings


def searches(pair: Pair, model: Model, names: Any = tuple(SEARCHES)) -> None:
    """Of a text in which runs may not repeat, transformers counts the padding."""
    for name in names:
        assert_alike(pair, model, PROMPTS[1:2] if name == "runs" else PROMPTS, SEARCHES[name])


@pytest.mark.parametrize(
    ("family", "seed"),
    [(family, 0) for family in FIRST]
    + [conformance((family, seed)) for family in OLDER for seed in range(4) if seed or family not in FIRST]
    + [conformance(family, seed) for family in KINDS if family not in OLDER for seed in range(4)],
)
def test_every_search_is_that_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    """With windows and original lengths shorter than the texts, every kind of rotary positions, and prompts padded on the left."""
    pair = Pair(tmp_path, drawn(family, seed), seed)
    searches(pair, pair.open())


# run by `make test`: a family on each framework
OF_BACKENDS = {"torch": "qwen3", "tf": "mistral", "jax": "smollm3"}


@pytest.mark.parametrize(
    ("backend", "family"),
    [(backend, family) if first == family else conformance((backend, family)) for backend, first in OF_BACKENDS.items() for family in OLDER]
    + [conformance(backend, family) for backend in OF_BACKENDS for family in KINDS if family not in OLDER],
)
def test_every_backend_gives_the_tokens_of_transformers(tmp_path: Path, backend: str, family: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    pair = Pair(tmp_path, drawn(family, 1), 1)
    searches(pair, pair.open(backend, "float32"), ["greedy"] if OF_BACKENDS[backend] == family else ["greedy", "beams"])


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
    """And than the positions of the training, which are no limit; in one step where frequencies depend on the length of a call."""
    family, entries = LONG[name]
    model, kind = drawn(family, 0), name.partition(",")[0]
    entries = dict(entries)
    if kind != "window":
        entries["rope_parameters"] = rope(kind, np.random.default_rng(1), model.settings["head_dim"])
    pair = Pair(tmp_path, model._replace(settings=model.settings | {"sliding_window": None} | entries))
    rng = np.random.default_rng(2)
    prompts = [rng.integers(5, pair.checkpoint.config.target_vocabulary, length).tolist() for length in (150, 20)]
    assert_alike(pair, pair.open(backend, "float64" if backend == "numpy" else "float32"), prompts, {"max_new_tokens": 10})
