"""The reference's Trainer: steps, resuming, microbatches, keep masks, padding; and the dropout sites."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from messages import mentions
from numpy.testing import assert_allclose, assert_array_equal
from strategies import configs, draw_parameters, seeds

from reference_numpy import TransformerConfig, decoding, parameters, preset, sites, transformer
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.strategy import Strategy
from reference_numpy.training import Trainer

CONFIG = preset("tiny", source_vocabulary=9, target_vocabulary=9, model_width=8, heads=2, key_value_heads=2, key_size=4, value_size=4,
                feed_forward_width=16, encoder_layers=1, decoder_layers=1, attention_dropout_rate=0.1)  # fmt: skip
# A large epsilon, so that a zero gradient and its rounding error make the same step.
RECIPE = PAPER.replace(warmup=5, epsilon=1e-3, weight_decay=0.01)
SAME: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
State = dict[str, np.ndarray]


def batch(seed: int = 0, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    source, target = rng.integers(2, 9, (rows, 5)), rng.integers(2, 9, (rows, 6))
    target[:, 0] = 1
    for row, (s, t) in enumerate(zip(rng.integers(1, 6, rows), rng.integers(2, 7, rows), strict=True)):
        source[row, s:], target[row, t:] = 0, 0
    return source, target


def trainer(recipe: Recipe = RECIPE, config: TransformerConfig = CONFIG, dtype: Any = np.float64, **options: Any) -> Trainer:
    return Trainer(config, recipe, draw_parameters(config, 1, dtype=dtype), **options)


def draw_keep(seed: int) -> dict[str, Any]:
    return sites.draw(CONFIG, 4, 5, 5, np.random.default_rng(seed))


def assert_same(actual: State, expected: State, **tolerance: Any) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert_allclose(actual[name], value, **(tolerance or {"rtol": 0, "atol": 0}), err_msg=name)


def parts(state: State, kind: str) -> State:
    return {name.removeprefix(f"{kind}."): value for name, value in state.items() if name.startswith(f"{kind}.")}


def by_hand(p: State, steps: int, recipe: Recipe) -> tuple[State, list[float]]:
    """Returns the parameters and losses after these steps on batches 0, 1, ..., with the formulas written out."""
    m, v = ({name: np.zeros_like(value) for name, value in p.items()} for _ in range(2))
    losses = []
    for n in range(1, steps + 1):
        arguments: dict[str, Any] = dict(zip(("source", "target"), batch(n - 1), strict=True)) | {"keep": draw_keep(seed=n)}
        arguments["smoothing"] = recipe.smoothing
        losses.append(float(transformer.training_loss(parameters.nest(p), CONFIG, **arguments)))
        nested = transformer.training_loss_vjp(parameters.nest(p), CONFIG, **arguments, cotangent=np.ones(()))
        g = parameters.flatten(nested["parameters"])
        norm = math.sqrt(sum((value**2).sum() for value in g.values()))
        rate = 8**-0.5 * min(n**-0.5, n * recipe.warmup**-1.5)
        for name in p:
            clipped = g[name] * min(1, (recipe.clip_norm or math.inf) / norm)
            m[name] = 0.9 * m[name] + 0.1 * clipped
            v[name] = 0.98 * v[name] + 0.02 * clipped**2
            update = m[name] / (1 - 0.9**n) / (np.sqrt(v[name] / (1 - 0.98**n)) + recipe.epsilon)
            decay = recipe.weight_decay * p[name] if name.endswith((".kernel", ".table")) else 0
            p = p | {name: p[name] - rate * (update + decay)}
    return p, losses


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_three_steps_are_the_formulas(clip_norm: float | None) -> None:
    recipe = RECIPE.replace(clip_norm=clip_norm, warmup=2)
    given_parameters = draw_parameters(CONFIG, 1)
    run, (expected, losses) = Trainer(CONFIG, recipe, given_parameters), by_hand(draw_parameters(CONFIG, 1), 3, recipe)
    actual = [run.train_step(*batch(n), keep=draw_keep(seed=n + 1)) for n in range(3)]
    assert_allclose(actual, losses, rtol=1e-10)
    assert_same(parts(run.state(), "parameters"), expected, **SAME)
    assert_same(given_parameters, draw_parameters(CONFIG, 1))
    assert run.steps == 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_resumed_run_is_bit_identical(dtype: Any) -> None:
    config = CONFIG.replace(dropout_rate=0.5)
    run, resumed = (trainer(config=config, dtype=dtype, seed=3) for _ in range(2))
    for n in range(2):
        run.train_step(*batch(n))
    resumed.load_state(run.state(), run.steps)
    for n in range(2, 5):
        assert resumed.train_step(*batch(n)) == run.train_step(*batch(n))
    assert resumed.steps == run.steps == 5
    assert_same(resumed.state(), run.state())
    assert {value.dtype for value in run.state().values()} == {np.dtype(dtype)}


def test_the_searches_are_those_of_the_model_as_it_is_and_masks_of_the_seed_and_the_step() -> None:
    config, (source, target) = CONFIG.replace(dropout_rate=0.5), batch()
    for seed, steps in ((0, 0), (0, 1), (7, 0)):
        drawn, given_masks = (trainer(config=config, seed=seed) for _ in range(2))
        drawn.steps = given_masks.steps = steps
        keep = sites.draw(config, 4, 5, 5, np.random.default_rng([seed, steps]))
        assert drawn.train_step(source, target) == given_masks.train_step(source, target, keep)
    losses = {trainer(config=config, seed=seed).train_step(source, target) for seed in range(4)}
    assert len(losses) == 4
    run, (source, target) = trainer(), batch()
    strategy = Strategy(start_id=1, end_id=2, max_new_tokens=4, beam_size=2)
    run.greedy_search(source, strategy)
    run.train_step(source, target)
    part = parameters.nest(parts(run.state(), "parameters"))
    for search in ("greedy_search", "beam_search"):
        expected = getattr(decoding, search)(part, CONFIG, source, strategy)
        for name, value in getattr(run, search)(source, strategy).items():
            assert_array_equal(value, expected[name])


@pytest.mark.parametrize("microbatches", [2, 4])
def test_microbatches_make_the_step_of_the_batch(microbatches: int) -> None:
    """Masks and rows are split alike; each part is divided by the number of labels of the whole batch, which differs between parts."""
    recipe = RECIPE.replace(clip_norm=0.5)
    whole, split = trainer(recipe), trainer(recipe.replace(microbatches=microbatches))
    for n in range(3):
        keep = draw_keep(seed=n)
        assert_allclose(split.train_step(*batch(n), keep), whole.train_step(*batch(n), keep), rtol=1e-12)
    assert_same(split.state(), whole.state(), **SAME)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_batch_whose_labels_are_all_padding(microbatches: int) -> None:
    """The loss and the gradients are 0; a first step only decays the weights."""
    run, (source, target) = trainer(RECIPE.replace(microbatches=microbatches)), batch()
    before, target[:, 1:] = parts(run.state(), "parameters"), 0
    assert run.loss(source, target) == (0.0, 0)
    assert run.train_step(source, target) == 0
    rate = 8**-0.5 * 5**-1.5
    for name, value in parts(run.state(), "parameters").items():
        share = 1 - rate * 0.01 if name.endswith((".kernel", ".table")) else 1.0
        assert_allclose(value, share * before[name], rtol=1e-14, err_msg=name)
    assert not any(value.any() for kind in ("first_moment", "second_moment") for value in parts(run.state(), kind).values())


@pytest.mark.parametrize("padding_id", [0, 3, None])
def test_loss_sums_over_the_labels_that_count(padding_id: int | None) -> None:
    config = CONFIG.replace(padding_id=padding_id)
    run, (source, target) = trainer(config=config), batch()
    summed, count = run.loss(source, target)
    logits = transformer.transformer(parameters.nest(parts(run.state(), "parameters")), config, source, target[:, :-1])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    real = [(b, t) for b, t in np.ndindex(4, 5) if target[b, t + 1] != padding_id]
    assert count == len(real)
    assert summed == pytest.approx(-sum(math.log(p[b, t, target[b, t + 1]]) for b, t in real), rel=1e-12)
    assert run.steps == 0


BAD_STEPS: dict[str, tuple[Any, ...]] = {
    "2 … 3 rows": (batch()[0][:3], batch()[1][:3]),
    "target … b t; got float64 of shape (4, 6)": (batch()[0], batch()[1] * 1.0),
    "label ids … 0 .. 8; got 10": (batch()[0], batch()[1] + 10 * (np.arange(6) == 5) * (np.arange(4) == 0)[:, None]),
    "token … 1; got shape (4, 0)": (batch()[0][:, :0], batch()[1]),
    "token … b t … b t v; got int64 of shape (4,)": (batch()[0][:, 0], batch()[1]),
    "keep … (2, 5, 8); got shape (2, 4, 8)": (
        *batch(),
        {"encoder": {"embedding_dropout": np.ones((4, 4, 8), bool)}},
    ),
}


@pytest.mark.parametrize("message", BAD_STEPS)
def test_a_refused_step_changes_nothing(message: str) -> None:
    run = trainer(RECIPE.replace(microbatches=2))
    run.train_step(*batch())
    before = run.state()
    with pytest.raises(ValueError) as caught:
        run.train_step(*BAD_STEPS[message])
    assert mentions(str(caught.value), message)
    assert run.steps == 1
    assert_same(run.state(), before)


@pytest.mark.parametrize(("dtypes", "got"), [((np.float64, np.float32), "float32, float64"), ((np.int64,), "int64")])
def test_parameters_of_another_dtype_are_refused(dtypes: tuple[Any, ...], got: str) -> None:
    values = {name: value.astype(dtypes[index % len(dtypes)]) for index, (name, value) in enumerate(draw_parameters(CONFIG, 1).items())}
    with pytest.raises(ValueError) as caught:
        Trainer(CONFIG, RECIPE, values)
    assert mentions(str(caught.value), f"float32 … float64; got {got}")


def test_parameters_that_do_not_fit_another_device_and_negative_steps_are_refused() -> None:
    values = draw_parameters(CONFIG, 1)
    with pytest.raises(ValueError, match=r"source_embedding.table.*\(9, 8\)$"):
        Trainer(CONFIG, RECIPE, {name: value for name, value in values.items() if name != "source_embedding.table"})
    with pytest.raises(ValueError, match=r"'cuda'$"):
        Trainer(CONFIG, RECIPE, values, device="cuda")
    run = trainer()
    with pytest.raises(ValueError, match=r"0; got -1$"):
        run.load_state(run.state(), -1)


RATES = {"weights_dropout": "attention_dropout_rate", "hidden_dropout": "hidden_dropout_rate"}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(configs(model_width=5), seeds)
def test_every_site_takes_a_mask_of_its_shape_and_no_other(config: TransformerConfig, seed: int) -> None:
    config, ids = config.replace(activation="gelu_erf"), (np.ones((2, 3), int), np.ones((2, 4), int))
    part = parameters.nest(draw_parameters(config, seed))
    for site, shape in sites.shapes(config, 2, 3, 4).items():
        plain = transformer.transformer(part, config, *ids, keep={})
        dropped = transformer.transformer(part, config, *ids, keep=parameters.nest({site: np.zeros(shape, bool)}))
        assert (dropped != plain).any(), site
        kept = parameters.nest({site: np.ones(shape, bool)})
        rate = RATES.get(site.rpartition(".")[2], "dropout_rate")
        for share in (0.0, 0.5):
            scaled = transformer.transformer(part, config.replace(**{rate: share}), *ids, keep=kept)
            assert np.allclose(scaled, plain, rtol=1e-12, atol=1e-12) == (share == 0), site
        for axis, size in enumerate(shape):
            wrong = np.ones((*shape[:axis], size + 1, *shape[axis + 1 :]), bool)
            with pytest.raises(ValueError, match="keep must broadcast to the input"):
                transformer.transformer(part, config, *ids, keep=parameters.nest({site: wrong}))


@pytest.mark.parametrize(
    ("field", "ends"),
    [
        ("dropout_rate", ("embedding_dropout", "attention_dropout", "feed_forward_dropout")),
        ("attention_dropout_rate", ("weights_dropout",)),
        ("hidden_dropout_rate", ("hidden_dropout",)),
    ],
)
def test_a_rate_keeps_its_share_at_its_own_sites_alone(field: str, ends: tuple[str, ...]) -> None:
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0}
    config = CONFIG.replace(**(rates | {field: 0.3}))
    masks = parameters.flatten(sites.draw(config, 40, 20, 30, np.random.default_rng(0)))
    assert masks
    assert all(site.endswith(ends) for site in masks)
    for site, mask in masks.items():
        # the share of n draws has standard deviation sqrt(0.3 * 0.7 / n); five of them are exceeded by chance once in two million
        assert abs(mask.mean() - 0.7) < 5 * math.sqrt(0.21 / mask.size), site
    assert len({mask.tobytes() for mask in masks.values()}) == len(masks)
