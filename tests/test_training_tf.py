"""Training in the TensorFlow port: its Trainer beside the truth's, resumed runs, random keep masks, and what Keras would do otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from impl_tf import optimizer, weights  # noqa: E402
from impl_tf.dropout import Dropout  # noqa: E402
from impl_tf.fast.compiled import compiled  # noqa: E402
from impl_tf.framework import keras  # noqa: E402
from impl_tf.loss import cross_entropy  # noqa: E402
from impl_tf.schedule import Noam, noam  # noqa: E402
from impl_tf.training import Trainer  # noqa: E402
from impl_tf.transformer import Transformer  # noqa: E402
from reference_numpy import TransformerConfig, parameters, preset, sites  # noqa: E402
from reference_numpy.recipe import PAPER, Recipe  # noqa: E402
from reference_numpy.strategy import Strategy  # noqa: E402
from reference_numpy.training import Trainer as Truth  # noqa: E402
from rosettaformer.conformance.reference.tolerance import ulp  # noqa: E402

# Without biases of attention: a key's bias moves no softmax, so its gradient is rounding alone, which Adam divides by itself.
TIED = preset(
    "tiny", source_vocabulary=23, target_vocabulary=23, model_width=12, heads=6, key_value_heads=2, key_size=7, value_size=5,
    feed_forward_width=19, encoder_layers=1, decoder_layers=1, output_bias=True, dropout_rate=0.4, attention_dropout_rate=0.3,
    hidden_dropout_rate=0.2,
)  # fmt: skip
UNTIED = TIED.replace(target_vocabulary=29, share_embeddings=False, tie_logits=False, norm_placement="pre", final_norm=True)
RECIPE = PAPER.replace(warmup=3)
FULL = RECIPE.replace(weight_decay=0.1, clip_norm=0.5, microbatches=2)
STRATEGY = Strategy(start_id=1, end_id=2, max_new_tokens=6, beam_size=3, n_best=2)
GPU = pytest.mark.gpu


def batch(seed: int = 0, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Ids with padding on the right, on the left, and a row of padding throughout."""
    rng = np.random.default_rng([7, seed])
    source, target = rng.integers(1, 23, (rows, 7)), rng.integers(1, 23, (rows, 6))
    source[0, 5:] = target[0, 4:] = source[1, :2] = target[1, :3] = source[2] = target[2] = 0
    return source, target


def masks(config: TransformerConfig, seed: int = 0, rows: int = 4) -> dict:
    return sites.draw(config, rows, 7, 5, np.random.default_rng([3, seed]))


def trainer(
    config: TransformerConfig = TIED, recipe: Recipe = RECIPE, dtype: str = "float64", compiled: bool = False, **settings
) -> Trainer:
    """A run, which compiles nothing unless it is asked to."""
    return Trainer(config, recipe, parameters.initialise(config, 0, dtype), compiled=compiled, **settings)


def distance(first: dict, second: dict) -> float:
    assert list(first) == list(second)
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def bits(state: dict) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


@pytest.mark.parametrize("given", [True, False], ids=["masks", "rate-0"])
@pytest.mark.parametrize(("config", "recipe"), [(TIED, RECIPE), (UNTIED, FULL)], ids=["tied-paper", "untied-decay-clip-parts"])
def test_five_steps_are_those_of_the_truth(config, recipe, given):
    if not given:
        config = config.replace(dropout_rate=0.0, attention_dropout_rate=0.0, hidden_dropout_rate=0.0)
    truth, ours = Truth(config, recipe, parameters.initialise(config, 0)), trainer(config, recipe)
    for step in range(5):
        keep = masks(config, step) if given else None
        assert abs(float(ours.train_step(*batch(step), keep)) - truth.train_step(*batch(step), keep)) < 1e-10
    assert ours.steps == 5
    assert distance(ours.state(), truth.state()) < 1e-10
    np.testing.assert_allclose(ours.loss(*batch()), truth.loss(*batch()), rtol=1e-10)
    _searches_alike(ours, truth)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [RECIPE.replace(clip_norm=0.5), FULL], ids=["one-graph", "parts"])
def test_a_graph_does_the_same_as_single_operations(recipe):
    eager, graph = trainer(recipe=recipe), trainer(recipe=recipe, compiled=True)
    for step in range(3):  # the random masks are the same, too
        assert abs(float(eager.train_step(*batch(step))) - float(graph.train_step(*batch(step)))) < 1e-12
    assert distance(eager.state(), graph.state()) < 1e-12
    np.testing.assert_allclose(eager.loss(*batch()), graph.loss(*batch()), rtol=1e-12)
    _searches_alike(graph, eager)


def _searches_alike(first: Trainer, second: Trainer | Truth) -> None:
    for name in ("greedy_search", "beam_search"):
        found, expected = (getattr(each, name)(batch()[0], STRATEGY) for each in (first, second))
        assert list(found) == list(expected)
        for key, array in expected.items():
            assert isinstance(found[key], np.ndarray)
            np.testing.assert_allclose(found[key], array, rtol=0, atol=0 if array.dtype.kind == "i" else 1e-9)


def test_searches_have_the_parameters_of_now_and_the_graphs_of_before():
    ours = trainer()
    _searches_alike(ours, Truth(TIED, RECIPE, parameters.initialise(TIED, 0)))
    searcher, refreshed = ours.searcher, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searcher, "refresh", lambda model: refreshed.append(model) or type(searcher).refresh(searcher, model))
        ours.greedy_search(batch()[0], STRATEGY)
        assert not refreshed  # nothing has changed
        before = ours.state()
        ours.train_step(*batch())
        now = {name.removeprefix("parameters."): array for name, array in ours.state().items() if name.startswith("parameters.")}
        _searches_alike(ours, Truth(TIED, RECIPE, now))
        assert len(refreshed) == 1
        ours.load_state(before, 0)
        _searches_alike(ours, Truth(TIED, RECIPE, parameters.initialise(TIED, 0)))
        assert len(refreshed) == 2
    assert ours.searcher is searcher


def test_microbatches_add_up_to_the_batch():
    whole, parts = trainer(), trainer(recipe=RECIPE.replace(microbatches=2))
    for step in range(3):
        first, second = (float(each.train_step(*batch(step), masks(TIED, step))) for each in (whole, parts))
        assert abs(first - second) < 1e-12
    assert distance(whole.state(), parts.state()) < 1e-12


def test_a_batch_of_padding_gives_the_loss_0_and_moves_nothing():
    ours = trainer(recipe=RECIPE.replace(clip_norm=1.0))
    before = ours.state()
    assert float(ours.train_step(np.zeros((2, 7), np.int64), np.zeros((2, 6), np.int64))) == 0
    assert bits(ours.state()) == bits(before)
    assert ours.loss(np.zeros((2, 7), np.int64), np.zeros((2, 6), np.int64)) == (0.0, 0)


def test_random_masks_are_a_function_of_the_seed_and_the_step():
    first, again, other = trainer(seed=5), trainer(seed=5), trainer(seed=6)
    for step in range(2):
        first.train_step(*batch(step))
    for each in (again, other):
        each.load_state(first.state(), 2)
    losses = [float(each.train_step(*batch())) for each in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    again.load_state(first.state(), 7)
    later = float(again.train_step(*batch()))
    again.load_state(first.state(), 8)
    assert later != float(again.train_step(*batch()))


def test_every_site_and_every_part_draws_its_own_mask():
    config = TIED.replace(encoder_layers=2)
    ours, drawn = trainer(config, RECIPE.replace(microbatches=2)), []

    def drop(x, keep, rate):
        if keep is not None and keep.shape[1:] == (7, 12):
            drawn.append(keep.numpy())
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dropout, "drop", staticmethod(drop))
        source, target = np.ones((2, 7), np.int64), np.ones((2, 6), np.int64)
        ours.train_step(source, target)
        ours.train_step(source, target)
    assert len(drawn) == 2 * 2 * (1 + 2 * 2)
    assert len({mask.tobytes() for mask in drawn}) == len(drawn)


@pytest.mark.slow
def test_a_run_resumed_in_another_process_is_bit_identical(tmp_path):
    ours = trainer(recipe=FULL, dtype="float32", compiled=True)
    for step in range(2):
        ours.train_step(*batch(step))
    np.savez(tmp_path / "state.npz", **ours.state())
    losses = [float(ours.train_step(*batch(step))).hex() for step in (2, 3)]
    script = (
        "import sys; sys.path[:0] = ['tests', '.']\n"
        "import numpy as np, test_training_tf as t\n"
        "ours = t.trainer(recipe=t.FULL, dtype='float32', compiled=True)\n"
        f"ours.load_state(dict(np.load({str(tmp_path / 'state.npz')!r})), 2)\n"
        "print(*[float(ours.train_step(*t.batch(step))).hex() for step in (2, 3)])\n"
        f"np.savez({str(tmp_path / 'end.npz')!r}, **ours.state())\n"
    )
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == losses
    assert bits(dict(np.load(tmp_path / "end.npz"))) == bits(ours.state())


def test_the_state_is_a_copy_and_loads_strictly():
    ours = trainer(dtype="float32")
    ours.train_step(*batch())
    state = ours.state()
    kept = {name: array.copy() for name, array in state.items()}
    ours.train_step(*batch())
    assert bits(state) == bits(kept)
    wrong = {name: array for name, array in state.items() if name != "first_moment.logits.bias"}
    wrong["second_moment.logits.bias"] = np.zeros(23)
    wrong["parameters.logits.bias"] = np.zeros(3, np.float32)
    wrong["parameters.extra"] = np.zeros(3, np.float32)
    before = ours.state()
    with pytest.raises(ValueError) as error:
        ours.load_state(wrong, 1)
    for part in (
        "missing first_moment.logits.bias",
        "must be float32; got float64",
        "must have shape (23,)",
        "unexpected parameters.extra",
    ):
        assert part in str(error.value)
    assert bits(ours.state()) == bits(before)
    assert ours.steps == 2
    ours.load_state(state, 1)
    assert bits(ours.state()) == bits(kept)


def test_evaluation_drops_nothing():
    ours = trainer()
    ours.train_step(*batch())
    assert ours.loss(*batch()) == ours.loss(*batch())
    still = Trainer(
        TIED.replace(dropout_rate=0.0, attention_dropout_rate=0.0, hidden_dropout_rate=0.0),
        RECIPE,
        {name.removeprefix("parameters."): array for name, array in ours.state().items() if name.startswith("parameters.")},
        compiled=False,
    )
    assert ours.loss(*batch()) == still.loss(*batch())


def test_bad_input_is_refused():
    source, target = batch()
    wrong = source.copy()
    wrong[0, 0] = 23
    for change, message in (
        (lambda: trainer().train_step(wrong, target), r"ids must lie in 0 \.\. 22; got 23"),
        (lambda: trainer().train_step(source, target[:, :1]), "target must have length at least 2"),
        (lambda: trainer(recipe=RECIPE.replace(microbatches=3)).train_step(source, target), "divide into 3 microbatches; got 4 rows"),
        (lambda: trainer(dtype="float16"), "must all be float32 or all float64; got float16"),
        (lambda: trainer(device="tpu"), "device must be one of cpu, cuda; got 'tpu'"),
    ):
        with pytest.raises(ValueError, match=message):
            change()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("run", [lambda layer: layer, compiled], ids=["eager", "compiled"])
def test_random_masks_have_the_rate_the_scale_and_no_pattern(run, dtype):
    shape, rate = (16, 8, 32, 64), 0.1
    layer = Dropout(rate, seed=2, dtype=dtype)
    y = tf.cast(run(layer)(tf.ones(shape, dtype), training=True), "float64").numpy()
    dropped, scaled = np.unique(y)
    assert dropped == 0
    assert abs(scaled - 1 / (1 - rate)) <= ulp(scaled, dtype)
    kept = y != 0
    # Four standard deviations of so many independent draws.
    assert abs(kept.mean() - (1 - rate)) < 4 * (rate * (1 - rate) / kept.size) ** 0.5
    centred = (kept - kept.mean()) / kept.std()
    for axis in range(4):
        assert abs((centred * np.roll(centred, 1, axis)).mean()) < 4 * kept.size**-0.5


def test_masks_are_the_same_eager_and_compiled():
    x = tf.ones((32, 64))
    results = [run(Dropout(0.3, seed=4))(x, training=True).numpy() for run in (lambda layer: layer, compiled)]
    np.testing.assert_array_equal(*results)


def test_rows_that_no_id_names_have_moments_that_decay():
    """Keras' update of a sparse gradient is not asked for; an id that comes twice counts twice."""
    tables = [keras.Variable(np.ones((5, 3)), dtype="float64") for _ in range(2)]
    rows = tf.IndexedSlices(tf.ones((3, 3), tf.float64), tf.constant([1, 3, 3]), tf.constant([5, 3]))
    for table, gradient in zip(tables, (rows, tf.convert_to_tensor(rows)), strict=True):
        adam = optimizer.adam(0.1, 0.9, 0.98, 1e-9)
        adam.build([table])
        adam.moments(table.value)[0].assign(tf.ones((5, 3), tf.float64))
        adam.apply([gradient])
        np.testing.assert_allclose(adam.moments(table.value)[0][:, 0], [0.9, 1.0, 0.9, 1.1, 0.9], rtol=1e-15)
    np.testing.assert_array_equal(*(table.numpy() for table in tables))


def test_a_short_gradient_is_not_touched():
    """Keras' factor is `limit * (1 / limit)` there, which is not 1 for a limit of 49."""
    gradient = {"kernel": tf.constant([0.1, 0.7], tf.float64), "bias": tf.constant([0.3], tf.float64)}
    clipped = optimizer.clip_global_norm(gradient, 49.0)
    assert all(clipped[name].numpy().tobytes() == gradient[name].numpy().tobytes() for name in gradient)
    norm = tf.linalg.global_norm(tf.nest.flatten(optimizer.clip_global_norm(gradient, 0.25)))
    assert abs(float(norm) - 0.25) < 1e-15


def test_the_optimiser_and_the_schedule_are_made_again_from_their_configs():
    for rate in (Noam(512, 4000), 0.25):
        first = optimizer.adam(rate, 0.9, 0.98, 1e-9, 0.1)
        again = keras.optimizers.deserialize(keras.optimizers.serialize(first))
        assert type(again) is type(first)
        assert again.get_config() == first.get_config()
        assert float(again.learning_rate) == float(first.learning_rate)


def test_the_first_update_is_made_at_step_1():
    adam = optimizer.adam(Noam(512, 4000), 0.9, 0.98, 1e-9)
    assert float(adam.learning_rate) == float(noam(1, 512, 4000))
    with pytest.raises(ValueError, match="step must be an integer of at least 1; got 0"):
        noam(0, 512, 4000)
    with pytest.raises(ValueError, match=r"warmup must be an integer of at least 1; got 2\.5"):
        noam(1, 512, 2.5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_label_that_does_not_count_passes_zero_gradient(dtype, smoothing):
    logits = np.random.default_rng(1).normal(size=(2, 3, 5))
    logits[0, 1] = np.inf
    x, mask = tf.cast(logits, dtype), tf.constant([[True, False, True], [False] * 3])
    for which in (mask, tf.zeros_like(mask)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = cross_entropy(x, tf.constant([[1, 2, 3], [0, 0, 4]]), which, smoothing)
        gradient = tape.gradient(loss, x)
        assert np.isfinite(float(loss))
        assert loss.dtype == gradient.dtype == tf.as_dtype(dtype)
        assert not tf.cast(tf.boolean_mask(gradient, ~which), "float32").numpy().any()
        assert np.isfinite(tf.cast(gradient, "float32")).all()
    assert float(loss) == 0


@pytest.mark.slow
def test_fit_trains_with_our_optimiser_and_schedule():
    model = Transformer(TIED.replace(dropout_rate=0.1))
    source, target = keras.Input((7,), dtype="int64"), keras.Input((5,), dtype="int64")
    outer = keras.Model([source, target], model(source, target))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outer.compile(optimizer=optimizer.adam(Noam(12, 10), 0.9, 0.98, 1e-9), loss=loss, jit_compile=False)
    source, target = batch()
    losses = outer.fit([source, target[:, :-1]], target[:, 1:], epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@GPU
def test_a_step_on_a_gpu_is_that_of_the_truth():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU")
    values = parameters.initialise(TIED, 0)
    truth, ours = Truth(TIED, FULL, values), Trainer(TIED, FULL, values, device="cuda")
    for step in range(5):
        keep = masks(TIED, step)
        assert abs(float(ours.train_step(*batch(step), keep)) - truth.train_step(*batch(step), keep)) < 1e-10
    assert distance(ours.state(), truth.state()) < 1e-10
    assert all("GPU" in variable.value.device for variable in weights.variables(ours.model, TIED).values())
