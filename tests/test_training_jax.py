"""The training of the JAX port: beside the truth's, resumed, and with random masks."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters, preset, sites
from reference_numpy import loss as truth_loss
from reference_numpy import training as truth
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.strategy import Strategy

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

from impl_jax import attention, embedding, feed_forward, loss, optimizer, port, schedule, weights  # noqa: E402
from impl_jax.dropout import Dropout  # noqa: E402
from impl_jax.fast.compiled import compiled  # noqa: E402
from impl_jax.training import Trainer  # noqa: E402
from rosettaformer.conformance.case import Case  # noqa: E402
from rosettaformer.conformance.ports.adapters.jax import Adapter  # noqa: E402
from rosettaformer.conformance.ports.port import NotCovered  # noqa: E402

RATES = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.1}
CLOSE = 1e-10  # float64, after some steps of Adam, whose quotient makes a rounding of a small gradient larger
FAST = PAPER.replace(warmup=3)
STRATEGY = Strategy(start_id=1, end_id=2, max_new_tokens=6, beam_size=2)
MANY = FAST.replace(microbatches=2, clip_norm=0.5, weight_decay=0.1)


def config(**changes: Any) -> TransformerConfig:
    fields = {"source_vocabulary": 19, "target_vocabulary": 19, "encoder_layers": 1, "decoder_layers": 1, **RATES, **changes}
    return preset("tiny", **fields)


def values(config: TransformerConfig, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return parameters.initialise(config, seed=0, dtype=dtype)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids with padding at the end of the first row, and a last row that is padding throughout."""
    rng = np.random.default_rng(number)
    tokens = rng.integers(3, 19, (4, 7)), rng.integers(3, 19, (4, 6))
    for token in tokens:
        token[0, 4:] = token[-1] = 0
    return tokens


def keep(config: TransformerConfig, number: int) -> dict[str, Any]:
    source, target = batch(number)
    return sites.draw(config, len(source), source.shape[1], target.shape[1] - 1, np.random.default_rng(number))


def close(state: dict[str, np.ndarray], other: dict[str, np.ndarray], tolerance: float = CLOSE) -> None:
    assert sorted(state) == sorted(other)
    for name, array in state.items():
        np.testing.assert_allclose(array, other[name], rtol=0, atol=tolerance, err_msg=name)


def equals_the_truth(config: TransformerConfig, recipe: Recipe, **where: Any) -> None:
    """Five steps of both, with the same keep masks."""
    ours, other = Trainer(config, recipe, values(config), **where), truth.Trainer(config, recipe, values(config))
    for number in range(5):
        masks = keep(config, number)
        assert abs(float(ours.train_step(*batch(number), masks)) - float(other.train_step(*batch(number), masks))) < CLOSE
    close(ours.state(), other.state())
    source, target = batch(9)
    assert ours.loss(source, target) == pytest.approx(other.loss(source, target), abs=CLOSE)
    for search in ("greedy_search", "beam_search"):
        answers, wanted = (getattr(trainer, search)(source, STRATEGY) for trainer in (ours, other))
        for name, array in wanted.items():
            assert isinstance(answers[name], np.ndarray)
            np.testing.assert_allclose(answers[name], array, rtol=0, atol=CLOSE, err_msg=name)
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("recipe", [FAST, MANY], ids=["plain", "microbatches"])
@pytest.mark.parametrize("changes", [{}, dict.fromkeys(RATES, 0.0), {"norm_placement": "pre", "padding_id": None}])
def test_five_steps_equal_those_of_the_truth(recipe: Recipe, changes: dict[str, Any]) -> None:
    equals_the_truth(config(**changes), recipe)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [FAST, MANY], ids=["plain", "microbatches"])
def test_five_steps_on_cuda_equal_those_of_the_truth(recipe: Recipe) -> None:
    equals_the_truth(config(), recipe, device="cuda")


def test_microbatches_equal_one_batch_and_a_shape_is_compiled_once() -> None:
    whole, parts = (Trainer(config(), FAST.replace(microbatches=count), values(config())) for count in (1, 4))
    for number in range(3):
        losses = [float(trainer.train_step(*batch(number), keep(config(), number))) for trainer in (whole, parts)]
        assert abs(losses[0] - losses[1]) < CLOSE
    close(whole.state(), parts.state())
    assert whole.graphs == parts.graphs == 1


def test_eager_steps_are_close_to_compiled_ones() -> None:
    states = []
    for compiled_ in (True, False):
        trainer = Trainer(config(), MANY, values(config()), compiled=compiled_)
        for number in range(2):
            trainer.train_step(*batch(number))  # with the same random masks
        states.append(trainer.state())
    close(*states)


RESUME = """
import sys
import numpy as np
from tests.test_training_jax import FAST, Trainer, batch, config, values
trainer = Trainer(config(), FAST, values(config(), np.float32), seed=3)
trainer.load_state(dict(np.load(sys.argv[1])), 2)
losses = [float(trainer.train_step(*batch(number))) for number in (2, 3)]
np.savez(sys.argv[2], losses=losses, **trainer.state())
"""


def test_a_run_resumed_in_another_process_is_bit_identical(tmp_path: Path) -> None:
    trainer = Trainer(config(), FAST, values(config(), np.float32), seed=3)
    losses = []
    for number in range(4):
        if number == 2:
            np.savez(tmp_path / "state.npz", **trainer.state())
        losses.append(float(trainer.train_step(*batch(number))))
    files = [str(tmp_path / name) for name in ("state.npz", "end.npz")]
    house = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", RESUME, *files], cwd=house, check=True)
    end = np.load(files[1])
    assert losses[2:] == end["losses"].tolist()
    for name, array in trainer.state().items():
        assert array.tobytes() == end[name].tobytes(), name


def test_random_masks_are_a_function_of_seed_and_step_alone() -> None:
    trainers = [Trainer(config(), FAST, values(config(), np.float32), seed=seed) for seed in (1, 1, 2)]
    start = trainers[0].state()
    for trainer in trainers[1:]:
        trainer.train_step(*batch(5))
        trainer.load_state(start, 0)
    first = [float(trainer.train_step(*batch(0))) for trainer in trainers]
    assert first[0] == first[1] != first[2]
    trainers[0].load_state(start, 1)
    assert float(trainers[0].train_step(*batch(0))) != first[0]


def test_a_state_that_does_not_fit_lists_every_problem_and_changes_nothing() -> None:
    trainer = Trainer(config(), FAST, values(config(), np.float32))
    trainer.train_step(*batch(0))
    before = trainer.state()
    state = {name: array + 1 for name, array in before.items()}
    state["parameters.source_embedding.table"] = np.zeros((2, 3), np.float32)
    state["surplus"] = state.pop("first_moment.source_embedding.table")
    state["second_moment.source_embedding.table"] = state["second_moment.source_embedding.table"].astype(np.float64)
    with pytest.raises(ValueError, match="do not fit") as caught:
        trainer.load_state(state, 7)
    for words in (
        "parameters.source_embedding.table must have shape",
        "missing first_moment.source",
        "unexpected surplus",
        "must be float32",
    ):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="steps must be at least 0; got -1"):
        trainer.load_state(before, -1)
    assert trainer.steps == 1
    close(trainer.state(), before, 0)


def test_bad_input_is_refused_and_changes_nothing() -> None:
    trainer = Trainer(config(), FAST.replace(microbatches=3), values(config(), np.float32))
    before, (source, target) = trainer.state(), batch(0)
    for arguments, words in (
        ((source, target), "the batch must divide into 3 microbatches; got 4 rows"),
        ((source + 19, target), "token ids must lie in 0 .. 18; got"),
        ((source, target[:, :1]), "target must have length at least 2"),
        ((source[:3], target), "batch sizes must be equal"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer.train_step(*arguments)
    assert trainer.steps == 0
    close(trainer.state(), before, 0)
    with pytest.raises(ValueError, match="must all be float32 or all float64; got float16"):
        Trainer(config(), FAST, values(config(), np.float16))
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, cuda-tf32; got 'tpu'"):
        Trainer(config(), FAST, values(config()), device="tpu")


def test_evaluation_drops_nothing_and_repeats_itself() -> None:
    trainer = Trainer(config(), FAST, values(config(), np.float32))
    assert trainer.loss(*batch(0)) == trainer.loss(*batch(0))
    bare = config(**dict.fromkeys(RATES, 0.0))
    assert trainer.loss(*batch(0)) == Trainer(bare, FAST, values(bare, np.float32)).loss(*batch(0))
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(Dropout(0.5, deterministic=True)(x), x)


def test_random_masks_drop_their_share_independently() -> None:
    shape, rate = (32, 8, 24, 24), 0.3
    dropped = np.asarray(Dropout(rate, rngs=nnx.Rngs(5))(jnp.ones(shape)))
    kept = dropped != 0
    assert set(np.unique(dropped)) == {0, np.float32(1) / np.float32(0.7)}
    deviation = (rate * (1 - rate) / kept.size) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    for axis in range(4):  # batch, heads, and both positions
        first, second = (np.take(kept, span, axis).astype(float) - (1 - rate) for span in (range(shape[axis] - 1), range(1, shape[axis])))
        assert abs((first * second).mean()) < 5 * rate * (1 - rate) / first.size**0.5


def test_every_site_draws_its_own_mask() -> None:
    model = port.components["encoder"](config(encoder_layers=2, **dict.fromkeys(RATES, 0.5)), jnp.float32)
    masks = [np.asarray(module.draw((200,))) for _, module in nnx.iter_graph(model) if isinstance(module, Dropout)]
    assert len(masks) == 1 + 2 * 4
    assert len({mask.tobytes() for mask in masks}) == len(masks)


def test_a_given_mask_is_applied_in_evaluation_and_in_training() -> None:
    layer = feed_forward.FeedForward(config(), rngs=nnx.Rngs(0))
    x, mask = jnp.ones((1, 2, 32)), np.arange(2 * 64).reshape(1, 2, 64) % 3 > 0
    trained = layer(x, keep_btf=mask)
    layer.eval()
    np.testing.assert_array_equal(layer(x, keep_btf=mask), trained)
    assert np.any(layer(x) != trained)
    attend = attention.MultiHeadAttention(config(), rngs=nnx.Rngs(0))
    attend.eval()
    none = np.zeros((1, 4, 2, 2), bool)
    np.testing.assert_array_equal(attend(x, x, keep_bhts=none), jnp.zeros((1, 2, 32)))
    np.testing.assert_array_equal(compiled(attend)(x, x, keep_bhts=none), jnp.zeros((1, 2, 32)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_dtypes_add_the_gradients_of_many_positions_in_float32(dtype: Any) -> None:
    g = jnp.asarray(np.random.default_rng(0).normal(1, 0.1, (16, 512, 8)), dtype)
    exact = np.asarray(g, np.float64).sum((0, 1))
    projection = feed_forward.Projection("btd,df->btf", (4, 8), (8,), param_dtype=dtype, rngs=nnx.Rngs(0))
    head = embedding.Logits(4, 8, True, param_dtype=dtype, rngs=nnx.Rngs(0))
    x = jnp.zeros((16, 512, 4), dtype)
    for module in (projection, head):
        bias = nnx.grad(lambda module: (module(x) * g).astype(jnp.float32).sum())(module)["bias"].get_value()
        np.testing.assert_array_equal(bias, exact.astype(dtype))
    table = embedding.Embedding(3, 8, False, param_dtype=dtype, rngs=nnx.Rngs(0))
    ids = jnp.ones((16, 512), int)
    rows = nnx.grad(lambda table: (table(ids) * g).astype(jnp.float32).sum())(table)["table"].get_value()
    np.testing.assert_array_equal(rows[1], exact.astype(dtype))


def test_labels_that_do_not_count_pass_no_gradient_whatever_their_logits_are() -> None:
    logits = jnp.array([[[1.0, 2.0, 3.0], [jnp.inf, jnp.nan, 0.0]]])
    label, mask = jnp.array([[0, 1]]), jnp.array([[True, False]])
    value, gradient = jax.value_and_grad(lambda x: loss.cross_entropy(x, label, mask, 0.1))(logits)
    wanted = truth_loss.cross_entropy(np.asarray(logits)[:, :1], np.asarray(label)[:, :1], smoothing=0.1)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert not np.any(gradient[0, 1])
    none = jnp.zeros_like(mask)
    value, gradient = jax.value_and_grad(lambda x: loss.cross_entropy(x, label, none))(logits)
    assert value == 0
    assert not np.any(gradient)


def test_the_loss_refuses_what_does_not_fit() -> None:
    logits, label = jnp.zeros((1, 2, 3)), jnp.array([[0, 3]])
    with pytest.raises(ValueError, match=r"label ids must lie in 0 .. 2; got 3"):
        loss.cross_entropy(logits, label)
    with pytest.raises(ValueError, match="total must be at least 1; got 0"):
        loss.cross_entropy(logits, label - 1, total=0)
    with pytest.raises(ValueError, match="smoothing must be at least 0 and less than 1; got 1"):
        loss.cross_entropy(logits, label - 1, smoothing=1)


def test_the_rate_of_a_traced_step_and_the_refusal_of_others() -> None:
    got = jax.jit(schedule.noam, static_argnums=(1, 2))(np.arange(1, 9), 512, 4)
    np.testing.assert_array_equal(got, np.float32([512**-0.5 * min(n**-0.5, n * 4**-1.5) for n in range(1, 9)]))
    with pytest.raises(ValueError, match="step must be an integer of at least 1; got 0"):
        schedule.noam(0, 512, 4)
    with pytest.raises(ValueError, match=r"warmup must be an integer of at least 1; got 1.5"):
        schedule.noam(1, 512, 1.5)  # type: ignore[arg-type]


def test_kernels_and_tables_decay_in_states_and_in_nested_mappings() -> None:
    model = port.components["transformer"](config(attention_bias=True), jnp.float32)
    state = nnx.state(model, nnx.Param)
    for mask in (optimizer.decay_mask(state), optimizer.decay_mask(nnx.to_pure_dict(state))):
        flat = dict(jax.tree.leaves_with_path(mask))
        names = {jax.tree_util.keystr(path): decays for path, decays in flat.items()}
        assert {name for name, decays in names.items() if decays} == {name for name in names if "kernel" in name or "table" in name}
        assert set(names.values()) == {True, False}
    with pytest.raises(ValueError, match="limit must be greater than 0; got 0"):
        optimizer.clip_global_norm(state, 0)


def test_the_optimiser_is_one_of_optax() -> None:
    tree = {"kernel": jnp.ones(2)}
    chain = optax.chain(optax.clip(1.0), optimizer.adam(0.1, 0.9, 0.98, 1e-9))
    updates, _ = chain.update(tree, chain.init(tree), tree)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_the_adapter_takes_the_gradients_of_functions_modules_and_methods(mode: str) -> None:
    adapter, model = Adapter(port), config()
    source, target = batch(0)
    inputs = {"source": source, "target": target, "smoothing": 0.1, "cotangent": np.array(2.0)}
    masks = {f"keep.{name}": mask for name, mask in parameters.flatten(keep(model, 0)).items()}
    case = Case("one", "training_loss_vjp", model, inputs | masks, values(model), mode=mode)
    gradients = adapter.run(case)
    assert sorted(gradients) == sorted(f"parameters.{name}" for name in values(model))
    whole = truth.Trainer(model, FAST.replace(smoothing=0.1), values(model))
    _, wanted = whole._gradients(source, target, keep(model, 0))
    close(gradients, {f"parameters.{name}": 2 * array for name, array in parameters.flatten(wanted).items()})
    x = np.random.default_rng(0).normal(size=(1, 2, 3))
    gradients = adapter.run(Case("two", "softmax_vjp", model, {"logits": x, "cotangent": np.ones_like(x)}, mode=mode))
    assert list(gradients) == ["logits"]
    np.testing.assert_allclose(gradients["logits"], 0, atol=1e-15)


def test_a_module_that_takes_no_keep_masks_does_not_cover_the_case() -> None:
    class Plain(nnx.Module):
        def __call__(self, x_btd: Any) -> Any:
            return x_btd

    inputs = {"x_btd": np.ones((1, 1, 32)), "keep.feed_forward_dropout": np.ones((1, 1, 32), bool), "cotangent": np.ones((1, 1, 32))}
    plain = type("Port", (), {"components": {"encoder_layer": lambda config, dtype: Plain()}})
    for component in ("encoder_layer", "encoder_layer_vjp"):
        with pytest.raises(NotCovered, match="takes no keep masks"):
            Adapter(plain).run(Case("one", component, config(), inputs))


def test_training_takes_the_weights_table() -> None:
    trainer = Trainer(config(), FAST, values(config(), np.float32))
    model = port.components["transformer"](config(), jnp.float32)
    state = {name.removeprefix("parameters."): array for name, array in trainer.state().items() if name.startswith("parameters.")}
    weights.load(model, state, config())
    model.eval()
    source, target = batch(1)
    loss_sum, _ = trainer.loss(source, target)
    assert float(model.training_loss(source, target, total=1)) == pytest.approx(loss_sum, rel=1e-5)


def test_searches_are_of_the_parameters_as_they_are_now() -> None:
    trainer = Trainer(config(), FAST.replace(warmup=1), values(config(), np.float32))
    start, (source, _) = trainer.state(), batch(0)

    def log_p() -> np.ndarray:
        return trainer.greedy_search(source, STRATEGY)["log_p_bn"]

    before = log_p()
    searcher, graphs = trainer.searcher, trainer.searcher.graphs
    np.testing.assert_array_equal(log_p(), before)
    assert trainer.searcher is searcher
    trainer.train_step(*batch(0))
    assert np.any(log_p() != before)
    trainer.load_state(start, 0)
    np.testing.assert_array_equal(log_p(), before)
    assert trainer.searcher.graphs == graphs
