"""Continuing prompts: the tokens equal those of transformers on every backend."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import conformance
from messages import naming
from model_folders import FOUR_NEEDS, gpt2

from reference_numpy import softmax
from rosettaformer.files.checkpoints import view
from rosettaformer.use.inference.generation import Answer, Token, generate, next_scores
from rosettaformer.use.inference.models import Model, open_model
from rosettaformer.use.inference.options import GenerationOptions, defaults
from rosettaformer.use.inference.truncation import truncate

VOCABULARY, PAD = 30, 3
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 6},
    "sampling": {"max_new_tokens": 5, "do_sample": True, "num_return_sequences": 2, "top_k": 5, "temperature": 1.5},
    "beams": {"max_new_tokens": 7, "num_beams": 3, "num_return_sequences": 2, "eos_token_id": (4, 7), "repetition_penalty": 1.2},
}
PROMPTS = [[3, 4, 5], [7, 8, 9, 10, 11, 12, 13], [5]]


class Pair:
    """A transformers model and our version of it."""

    def __init__(self, folder: Path, theirs: Any, cached: bool = True) -> None:
        """cached: whether the library's cache preserves its results."""
        self.theirs, self.cached, self.checkpoint = theirs, cached, view(folder)
        self.ours: Model = open_model(self.checkpoint, dtype="float64")

    def wanted(self, prompts: list[list[int]], settings: dict[str, Any]) -> tuple[list[list[int]], list[float] | None]:
        """Returns the output of transformers' `generate` without the prompts, and the scores of beams.

        Uses a copy of the model, which remembers no length of an earlier text.
        """
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        words = [[*word] for word in settings.get("bad_words_ids", ())] or None
        ends = list(settings.get("eos_token_id", ())) or None
        options = {**settings, "eos_token_id": ends, "bad_words_ids": words}
        common = {"do_sample": False, "pad_token_id": PAD, "return_dict_in_generate": True, "output_scores": True}
        common["use_cache"] = self.cached
        found = copy.deepcopy(self.theirs).generate(ids, attention_mask=mask, **common, **options)
        scores = getattr(found, "sequences_scores", None)
        return found.sequences[:, width:].tolist(), None if scores is None else scores.tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("gpt2")
    return Pair(folder, gpt2(folder, tokenizer=False))


def answers(model: Model, prompts: list[list[int]], settings: dict[str, Any]) -> list[Answer]:
    """Returns the answers, ordered by prompt and rank."""
    found = [event for event in generate(model, prompts, GenerationOptions(**settings)) if isinstance(event, Answer)]
    return sorted(found, key=lambda answer: (answer.prompt, answer.answer))


def assert_alike(pair: Pair, model: Model, prompts: list[list[int]], settings: dict[str, Any]) -> Any:
    """Asserts that the answers have transformers' tokens and beam scores; returns them."""
    found, (ids, scores) = answers(model, prompts, settings), pair.wanted(prompts, settings)
    for answer, wanted in zip(found, ids, strict=True):
        assert [*answer.tokens, *[PAD] * (len(wanted) - len(answer.tokens))] == wanted, (prompts, settings)
    return found, scores


def random_settings(rng: np.random.Generator) -> tuple[list[list[int]], dict[str, Any]]:
    """Draws prompts and all kinds of options. If repeated n-grams are forbidden there is one prompt: transformers counts its padding."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    beams = one(1, 2, 3, 4)
    settings = {
        "max_new_tokens": int(rng.integers(1, 16)),
        "min_new_tokens": one(0, 0, 3, 8),
        "num_beams": beams,
        "num_return_sequences": int(rng.integers(1, beams + 1)),
        "repetition_penalty": one(1.0, 1.0, 1.3, 0.8, 2.0),
        "no_repeat_ngram_size": one(0, 0, 1, 2, 3),
        "length_penalty": one(1.0, 0.0, 0.6, 2.0, -1.0),
        "early_stopping": one(True, False, "never"),
        "eos_token_id": tuple(rng.choice(VOCABULARY, one(0, 1, 2, 8), replace=False).tolist()),
        "bad_words_ids": tuple(tuple(rng.integers(2, VOCABULARY, one(1, 1, 2)).tolist()) for _ in range(one(0, 9))),
    }
    count = 1 if settings["no_repeat_ngram_size"] else rng.integers(1, 4)
    return [rng.integers(2, VOCABULARY, rng.integers(1, 7)).tolist() for _ in range(count)], settings


@pytest.mark.filterwarnings("ignore:Unfeasible length")
@pytest.mark.parametrize(("models", "trials"), [(1, 10), pytest.param(6, 40, marks=pytest.mark.conformance)])
def test_the_ids_of_greedy_search_and_beams_are_those_of_transformers(tmp_path: Path, models: int, trials: int) -> None:
    """With every penalty and option, several ends, and prompts of different lengths; for beams also their scores."""
    for seed in range(models):
        pair = Pair(tmp_path, gpt2(tmp_path, seed, tokenizer=False))
        for trial in range(trials):
            prompts, settings = random_settings(np.random.default_rng([seed, trial]))
            found, scores = assert_alike(pair, pair.ours, prompts, settings)
            if scores is not None:
                np.testing.assert_allclose([answer.score for answer in found], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "search"),
    [
        conformance((backend, search)) if backend in ("tf", "jax") and search != "greedy" else (backend, search)
        for backend in FOUR_NEEDS
        for search in SEARCHES
    ],
)
def test_every_backend_gives_the_same_answers(pair: Pair, backend: str, search: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend], reason=f"{FOUR_NEEDS[backend]} is not installed")
    model = open_model(pair.checkpoint, backend)
    found, wanted = answers(model, PROMPTS, SEARCHES[search]), answers(pair.ours, PROMPTS, SEARCHES[search])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    np.testing.assert_allclose([answer.score for answer in found], [answer.score for answer in wanted], rtol=1e-4)


@pytest.mark.parametrize("search", SEARCHES)
def test_an_answer_does_not_depend_on_the_other_prompts(pair: Pair, search: str) -> None:
    """Nor on the padding they cause, whatever its id; only random numbers depend on the index of the prompt."""
    together = answers(pair.ours, PROMPTS, {**SEARCHES[search], "no_repeat_ngram_size": 2})
    for pad_id in (0, 7, 1000):
        assert answers(pair.ours, PROMPTS, {**SEARCHES[search], "no_repeat_ngram_size": 2, "pad_token_id": pad_id}) == together
    for number, prompt in enumerate(PROMPTS):
        others = [[2]] * number  # shorter prompts
        alone = answers(pair.ours, [*others, prompt], {**SEARCHES[search], "no_repeat_ngram_size": 2})
        tokens = [[answer.tokens for answer in found if answer.prompt == number] for found in (alone, together)]
        assert tokens[0] == tokens[1]


@pytest.mark.parametrize("trial", range(40))
def test_a_token_is_drawn_from_the_distribution_of_transformers(pair: Pair, trial: int) -> None:
    """After penalties, temperature, top-k and top-p, in this order, the processors of transformers give the same probabilities, also for
    equal logits, which occur in half precision.
    """
    import torch

    rng = np.random.default_rng(trial)
    settings = {
        "temperature": float(rng.uniform(0.3, 3)), "top_k": int(rng.integers(0, 12)), "top_p": float(rng.choice([1.0, 0.9, 0.5, 0.1])),
        "repetition_penalty": float(rng.choice([1.0, 1.7])), "no_repeat_ngram_size": int(rng.integers(0, 3)),
    }  # fmt: skip
    if trial >= 20:
        settings |= {
            "min_p": float(rng.choice([0.0, 0.05, 0.3])), "typical_p": float(rng.choice([1.0, 0.9, 0.4])),
            "epsilon_cutoff": float(rng.choice([0.0, 0.05])), "eta_cutoff": float(rng.choice([0.0, 0.1])),
        }  # fmt: skip
    text = rng.integers(0, VOCABULARY, (1, 9))
    logits = rng.normal(scale=3, size=(1, VOCABULARY)).astype(np.float32)
    if trial % 2:
        logits = logits.round()
    theirs, _ = pair.theirs._prepare_generation_config(None, do_sample=True, min_new_tokens=12, eos_token_id=[3, 4], **settings)
    pair.theirs._prepare_special_tokens(theirs)
    processors = pair.theirs._get_logits_processor(theirs, input_ids_seq_length=5, device="cpu")
    wanted = torch.softmax(processors(torch.tensor(text), torch.tensor(logits)), dim=-1).numpy()
    options = GenerationOptions(do_sample=True, eos_token_id=(3, 4), **settings)
    scores = next_scores(logits, text, np.ones_like(text, bool), options, ends=False)
    found = softmax.softmax(truncate(scores[0], options))[None]
    if trial % 2 and settings["top_p"] < 1:  # the library's sort decides which equal tokens remain at its edge
        found, wanted = np.sort(found), np.sort(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)
    assert 0 < (found > 0).sum() < VOCABULARY


def test_the_seed_decides_what_is_drawn(pair: Pair) -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        return [answer.tokens for answer in answers(pair.ours, [[3]], {"do_sample": True, "num_return_sequences": 3, "seed": seed})]

    assert drawn(0) == drawn(0)
    assert len({*drawn(0), *drawn(1)}) == 6


def test_tokens_come_one_by_one_before_their_answer(pair: Pair) -> None:
    events = [*generate(pair.ours, PROMPTS, GenerationOptions(**SEARCHES["greedy"]))]
    assert isinstance(events[0], Token)
    for prompt in range(3):
        *tokens, answer = (event for event in events if event.prompt == prompt)
        assert answer == Answer(prompt, 0, tuple(token.id for token in tokens), answer.score)
    assert [type(event) for event in generate(pair.ours, PROMPTS, GenerationOptions(**SEARCHES["beams"]))] == [Answer] * 6


def test_where_no_token_may_follow_an_answer_ends(pair: Pair) -> None:
    """No token may repeat: after all tokens of the vocabulary none is left."""
    for beams in (1, 2):
        (found,) = answers(pair.ours, [[3]], {"max_new_tokens": 60, "no_repeat_ngram_size": 1, "num_beams": beams})
        assert sorted((3, *found.tokens)) == [*range(VOCABULARY)]


@pytest.mark.parametrize("own", [True, False])
def test_defaults_are_those_of_the_folder(tmp_path: Path, own: bool) -> None:
    """From generation_config.json, or from config.json without it; then the defaults of transformers."""
    transformers = pytest.importorskip("transformers")
    model = gpt2(tmp_path, tokenizer=False, eos_token_id=5)
    if own:
        model.generation_config.update(max_new_tokens=9, num_beams=3, length_penalty=0.3, eos_token_id=[5, 6], repetition_penalty=1.5)
        model.generation_config.save_pretrained(tmp_path)
    else:
        (tmp_path / "generation_config.json").unlink()
    import torch

    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    ids = theirs.generate(torch.tensor([[3, 4]]), attention_mask=torch.ones(1, 2)).tolist()[0][2:]
    checkpoint = view(tmp_path)
    (found,) = answers(open_model(checkpoint), [[3, 4]], defaults(checkpoint.foreign))
    assert list(found.tokens) == ids
    assert len(ids) in ((20,) if not own else range(1, 10))


def test_entries_that_are_not_supported_are_refused_by_name() -> None:
    entries = {"token_healing": True, "guidance_scale": 1, "use_cache": False, "KIND": 3, "top_h": None}
    with pytest.raises(ValueError, match=r"token_healing=True, KIND=3$"):
        defaults({"generation_config.json": entries})
    assert defaults({"generation_config.json": {"pad_token_id": -1, "cache_implementation": "hybrid"}}) == {}
    assert defaults({"config.json": entries | {"top_k": 7, "eos_token_id": 3}}) == {"top_k": 7, "eos_token_id": (3,)}


@pytest.mark.parametrize(
    ("settings", "length", "wanted"),
    [
        ({}, 5, 20), ({}, 50, 14), ({}, 64, 1), ({"max_length": 30}, 10, 20), ({"max_length": 30, "max_new_tokens": 3}, 10, 3),
        ({"max_new_tokens": 61}, 4, 61),
        ({}, 65, "prompt … 64 … 65"),
        ({"max_length": 10}, 10, "max_length … 10 … 10"),
        ({"max_new_tokens": 62}, 4, "max_new_tokens … 61 … 4 … 62"),
    ],
)  # fmt: skip
def test_answers_have_room_in_the_positions(settings: dict[str, Any], length: int, wanted: int | str) -> None:
    options = GenerationOptions(**settings)
    if isinstance(wanted, int):
        assert options.most(length, 64) == wanted
    else:
        with pytest.raises(ValueError, match=naming(wanted)):
            options.most(length, 64)


def test_the_last_position_is_read(pair: Pair) -> None:
    """transformers generates as many tokens."""
    settings = {"max_new_tokens": 62, "eos_token_id": ()}
    (found,), (wanted,) = answers(pair.ours, [[3, 4, 5]], settings), pair.wanted([[3, 4, 5]], settings)[0]
    assert list(found.tokens) == wanted


def test_options_that_do_not_go_together_are_refused() -> None:
    for settings, message in (
        ({"do_sample": True, "num_beams": 2}, "do_sample … num_beams=1 … got 2"),
        ({"num_return_sequences": 2}, "num_return_sequences … num_beams"),
        ({"temperature": -1, "top_p": 2}, "temperature … -1 … top_p … 2"),
        ({"temperature": 0.0, "do_sample": True}, "do_sample … 0 … 0"),
        ({"bad_words_ids": ((),)}, "bad_words_ids must be"),
        ({"stop_strings": ("",)}, "stop_strings must be"),
        ({"early_stopping": "always"}, "early_stopping must be True, False or never; got 'always'"),
        ({"num_beams": 10**9}, "num_beams … 4096 … 1000000000"),
        ({"max_new_tokens": 10**9}, "max_new_tokens … 65536 … None … 1000000000"),
    ):
        with pytest.raises(ValueError, match=naming(message)):
            GenerationOptions(**settings)
    with pytest.raises(ValueError, match=naming("every … prompt")):
        next(generate(None, [[3], []], GenerationOptions()))


@pytest.mark.parametrize(("settings", "rows"), [({"num_beams": 200}, 400), ({"do_sample": True, "num_return_sequences": 300}, 600)])
def test_answers_have_room_in_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], rows: int) -> None:
    """They are rejected before any allocation."""
    monkeypatch.setattr("rosettaformer.use.inference.generation.physical_memory", lambda: 10**6)
    monkeypatch.setattr(pair.ours, "start", None)
    with pytest.raises(ValueError, match=naming(f"memory … GB … {rows} … GB")):
        answers(pair.ours, [[3, 4, 5], [6]], settings)


def test_entries_of_sampling_do_not_matter_where_nothing_is_drawn(pair: Pair) -> None:
    """Some folders have them: a temperature of 0, and truncation of an unused distribution."""
    entries = {
        "do_sample": False, "temperature": 0.0, "min_p": 0.1, "typical_p": 0.9, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1,
        "stop_strings": "x", "bad_words_ids": [[3], [4, 5]],
    }  # fmt: skip
    found = defaults({"generation_config.json": entries})
    assert found["stop_strings"] == ("x",)
    assert found["bad_words_ids"] == ((3,), (4, 5))
    assert not GenerationOptions(**found).do_sample
    with pytest.raises(ValueError, match="temperature"):
        GenerationOptions(**found | {"do_sample": True})


def test_bad_words_are_of_the_vocabulary_and_stop_strings_need_a_text(pair: Pair) -> None:
    for settings in ({"bad_words_ids": ((VOCABULARY,),)}, {"stop_strings": ("a",)}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            answers(pair.ours, [[3]], settings)
