"""Generation with encoder-decoders: the tokens equal those of transformers, with forced tokens, penalties and beams."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused, succeeded
from kinds import conformance
from messages import mentions
from model_folders import FOUR_NEEDS, edit

from rosettaformer.files.checkpoints import view
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.use.inference.generation import Answer, generate
from rosettaformer.use.inference.models import Model, open_model
from rosettaformer.use.inference.options import GenerationOptions, defaults

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

FAMILIES = ("bart", "marian", "pegasus", "mbart", "m2m_100")
TINY = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 9, "decoder_ffn_dim": 9}
SOURCES = [[5, 9, 12, 2], [7, 8, 20, 30, 11, 2], [2]]


class Pair:
    """A new model here and in transformers, in float64."""

    def __init__(self, folder: Path, family: str, seed: int = 0) -> None:
        import transformers

        new.write(family, folder, seed=seed, dtype="float64", settings=TINY)
        self.checkpoint = view(folder)
        said = self.checkpoint.foreign["config.json"]
        kind = getattr(transformers, said["architectures"][0])
        self.theirs = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
        self.padding, self.vocabulary = said["pad_token_id"], said["vocab_size"]
        self.end = said["eos_token_id"]
        self.ours: Model = open_model(self.checkpoint, dtype="float64")

    def wanted(self, sources: list[list[int]], settings: dict[str, Any]) -> tuple[list[list[int]], list[float] | None]:
        """Returns the answers of transformers' `generate` without the start token, and the scores of beams."""
        width = max(map(len, sources))
        ids = torch.tensor([source + [self.padding] * (width - len(source)) for source in sources])
        mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
        lists = {name: [*map(list, settings[name])] for name in ("bad_words_ids",) if name in settings}
        lists |= {name: list(settings[name]) for name in ("eos_token_id", "forced_eos_token_id") if name in settings}
        common = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
        found = self.theirs.generate(ids, attention_mask=mask, **common, **settings | lists)
        scores = getattr(found, "sequences_scores", None)
        if scores is None:
            return found.sequences[:, 1:].tolist(), None
        likely = scores > -1e8  # the others stand for hypotheses that are missing
        return found.sequences[likely, 1:].tolist(), scores[likely].tolist()


def answers(pair: Pair, model: Model, sources: list[list[int]], settings: dict[str, Any]) -> list[Answer]:
    given = GenerationOptions(**{**defaults(pair.checkpoint.foreign), **settings})
    found = [event for event in generate(model, sources, given) if isinstance(event, Answer)]
    return sorted(found, key=lambda answer: (answer.prompt, answer.answer))


def random_settings(rng: np.random.Generator, pair: Pair) -> tuple[list[list[int]], dict[str, Any]]:
    """Draws sources of different lengths and options; three quarters are beam searches."""
    beams, most = int(rng.choice([1, 2, 3, 4])), int(rng.integers(2, 12))
    id_ = lambda: int(rng.integers(3, pair.vocabulary - 1))  # noqa: E731
    settings: dict[str, Any] = {"num_beams": beams, "num_return_sequences": int(rng.integers(1, beams + 1))}
    settings |= [{"max_new_tokens": most}, {"max_length": most + 1}, {}][rng.integers(3)]
    if beams > 1:
        settings |= {"length_penalty": float(rng.choice([-1.0, 0.0, 0.6, 2.0])), "early_stopping": [True, False, "never"][rng.integers(3)]}
    choices: dict[str, Any] = {
        "forced_bos_token_id": id_(), "forced_eos_token_id": (pair.end,), "min_length": int(rng.integers(1, 6)),
        "repetition_penalty": float(rng.choice([0.7, 1.5])), "no_repeat_ngram_size": int(rng.integers(1, 4)),
        "bad_words_ids": ((id_(),), (id_(), id_())), "renormalize_logits": True, "eos_token_id": (pair.end, id_(), id_()),
        "decoder_start_token_id": id_(),
    }  # fmt: skip
    settings |= {name: value for name, value in choices.items() if rng.random() < 0.4}
    length = lambda: int(rng.integers(1, 9))  # noqa: E731
    return [[id_() for _ in range(length())] for _ in range(rng.integers(1, 4))], settings


@pytest.mark.parametrize(("families", "trials"), [(FAMILIES[:2], 6), conformance((FAMILIES, 12))], ids=str)
def test_the_ids_are_those_of_transformers(tmp_path: Path, families: tuple[str, ...], trials: int) -> None:
    for family in families:
        pair = Pair(tmp_path / family, family)
        for trial in range(trials):
            sources, settings = random_settings(np.random.default_rng([trial, len(family)]), pair)
            found, (wanted, scores) = answers(pair, pair.ours, sources, settings), pair.wanted(sources, settings)
            assert len(found) == len(wanted)
            for answer, ids in zip(found, wanted, strict=True):
                ended = list(answer.tokens) + [pair.padding] * (len(ids) - len(answer.tokens))
                assert ended == ids, (family, trial, settings)
            if scores is not None:
                np.testing.assert_allclose([answer.score for answer in found], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", *map(conformance, ("tf", "jax"))])
def test_every_backend_gives_the_same_answers(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    pair = Pair(tmp_path / "m", "m2m_100")
    model = open_model(pair.checkpoint, backend)
    for settings in ({"max_new_tokens": 6}, {"max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 2, "forced_bos_token_id": 9}):
        found, wanted = (answers(pair, one, SOURCES, settings) for one in (model, pair.ours))
        assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
        np.testing.assert_allclose([answer.score for answer in found], [answer.score for answer in wanted], rtol=1e-4)


def test_the_command_answers_sources(tmp_path: Path) -> None:
    """It prints the answer without its source; what cannot be is refused."""
    folder = tmp_path / "bart"
    succeeded("new-checkpoint", "bart", "--tokenizer", "--out", folder)
    options = ("--backend", "numpy", "--max-new-tokens", 4)
    (row,) = succeeded("generate", folder, "--prompt", "a cat", *options, "--set", "forced_bos_token_id=9", "--json").rows
    assert row["tokens"][0] == 9 and len(row["tokens"]) == 4
    assert "a cat" not in succeeded("generate", folder, "--prompt", "a cat", *options).out
    error = refused("generate", folder, "--prompt", "a cat", *options, "--set", "forced_bos_token_id=999")
    assert mentions(error, "forced_bos_token_id … 100 … 999")
    assert invoke("generate", folder, "--prompt", "x " * 700, *options).code == 2
    edit(folder, "generation_config.json", decoder_start_token_id=..., bos_token_id=...)
    assert mentions(refused("generate", folder, "--prompt", "a cat", *options), "decoder_start_token_id")
