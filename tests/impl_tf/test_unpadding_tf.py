"""The TensorFlow port without padding: unpadded tokens give what rows give, for every pattern of padding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import unpadding_cases as cases
from backends import Backend
from test_training import CONFIG as TINY
from test_training import RECIPE, STILL, begin, bits
from test_training import batch as padded_batch
from tiers import every

tf = pytest.importorskip("tensorflow")

from impl_tf import weights  # noqa: E402
from impl_tf.framework import keras  # noqa: E402
from impl_tf.kernels.unpadding import counted, pad, unpad  # noqa: E402
from impl_tf.programs import unpadding  # noqa: E402
from impl_tf.programs.compiled import compiled  # noqa: E402
from impl_tf.programs.unpadding import Sides, Unpadded, of_forward, of_loss, unpadded  # noqa: E402
from impl_tf.stacks import Encoder  # noqa: E402
from impl_tf.transformer import Transformer  # noqa: E402
from reference_numpy import TransformerConfig, sites  # noqa: E402

BACKEND = Backend("tf")
UNTIED = cases.CONFIGS["pre-learned-from-the-row-untied"]


def loaded(config: TransformerConfig) -> Transformer:
    model = Transformer(config, dtype="float64")
    weights.load(model, cases.arrays(config), config)
    return model


@pytest.fixture(scope="module", params=cases.CONFIGS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return loaded(cases.CONFIGS[request.param])


def close(found: Any, wanted: Any) -> None:
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def whole(target: np.ndarray) -> np.ndarray:
    """The target of a training loss, whose decoder is given all but its last token."""
    return np.concatenate([target[:, :1], target], axis=1)


def loss_and_gradients(model: Transformer, source: Any, target: Any, sides: Sides | None = None, **settings: Any) -> list[Any]:
    """sides: the tokens that the loss is computed for."""
    with tf.GradientTape() as tape:
        loss = Unpadded(model.training_loss).run(sides, source, target, 0.1, **settings)
    return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero"))]


@pytest.mark.parametrize("pattern", every(3, cases.PATTERNS))
def test_logits_loss_and_gradients_are_those_of_rows(model: Transformer, pattern: str) -> None:
    source, target = cases.tokens(pattern, model.config)
    sides = of_forward(model, 0, source, target, skip_padding=True)
    assert (sides.target is None) == (pattern == "all")
    wanted = model(source, target)
    close(unpadded(model, 0)(source, target), wanted)
    skipped = np.where((target != 0)[..., None], wanted, 0)
    close(unpadded(model, 0)(source, target, skip_padding=True), skipped)
    close(model(source, target, skip_padding=True), skipped)

    target = whole(target)
    sides = of_loss(model, 0, source, target)
    assert sides.target or pattern in ("all", "inside")  # between labels that count every place may be needed
    close(loss_and_gradients(model, source, target, sides), loss_and_gradients(model, source, target))
    close(unpadded(model.training_loss, 0)(source, target, 0.1), model.training_loss(source, target, 0.1))


@pytest.mark.second
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_a_graph_leaves_out_padding_and_gives_the_same(jit_compile: bool) -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("mixed", UNTIED)
    wanted, kept = model(source, target), (target != 0)[..., None]
    run, loss = (compiled(each, jit_compile, least=0) for each in (model, model.training_loss))
    close(run(source, target), wanted)
    close(run([source, target], skip_padding=True), np.where(kept, wanted, 0))
    close(loss(source, target, 0.1), model.training_loss(source, target, 0.1))
    gradients = tf.function(lambda sides: loss_and_gradients(model, source, target, sides), jit_compile=jit_compile)
    close(gradients(of_loss(model, 0, source, target)), loss_and_gradients(model, source, target))


def test_a_padded_source_without_a_token_of_the_target() -> None:
    """A row of padding throughout adds nothing, and the loss of a batch without a label is 0."""
    model, (source, target) = loaded(UNTIED), cases.tokens("none", UNTIED)
    found = loss_and_gradients(model, source, target, of_loss(model, 0, source, target))
    assert all(not np.any(each) for each in found)


def test_keep_masks_are_those_of_rows() -> None:
    config = TINY.replace(attention_bias=True)
    model, (source, target) = loaded(config), cases.tokens("mixed", config)
    keep, target = sites.draw(config, *source.shape, target.shape[1], np.random.default_rng(2)), whole(target)
    shared = keep["encoder"]["layers"]["0"]["feed_forward"]
    shared["hidden_dropout"] = shared["hidden_dropout"][:1]  # the same for all rows
    keep["decoder"]["layers"]["0"]["feed_forward_dropout"] = np.ones((1, 1, 1), bool)
    sides = of_loss(model, 0, source, target)
    assert sides.source
    found = loss_and_gradients(model, source, target, sides, keep=keep)
    close(found, loss_and_gradients(model, source, target, keep=keep))
    shared["hidden_dropout"] = np.ones((2, 1, 1), bool)
    with pytest.raises(ValueError, match="keep must broadcast to the input"):
        loss_and_gradients(model, source, target, sides, keep=keep)


def test_masks_that_are_given_say_which_tokens_are_real() -> None:
    """Soft one-hot rows, whose ids are not known, too; padding has the gradient 0."""
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    source_mask_bs, target_mask_bt = (np.random.default_rng(3).random(ids.shape) < 0.5 for ids in (source, target))
    soft = tf.constant(np.random.default_rng(3).dirichlet(np.ones(23), source.shape))
    masks = {"source_mask_bs": source_mask_bs, "target_mask_bt": target_mask_bt}
    sides = of_forward(model, 0, soft, target, **masks, skip_padding=True)
    assert np.array_equal(sides.source.mask_bt, source_mask_bs)
    assert of_forward(model, 0, soft, target) == Sides()

    def run(call: Any, source: Any, **settings: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(source)
            logits = call(source, target, **masks, **settings)
            total = tf.reduce_sum(tf.where(target_mask_bt[..., None], logits, tf.zeros((), logits.dtype)) ** 2)
        return total, tape.gradient(total, source)

    close(run(unpadded(model, 0), soft, skip_padding=True), run(model, soft))
    ids = source, target, source_mask_bs
    close(compiled(model, least=0)(*ids, skip_padding=True), model(*ids, skip_padding=True))


def test_a_mask_that_keras_attached_keeps_the_rows() -> None:
    model, (source, target) = loaded(UNTIED), map(tf.constant, cases.tokens("right", UNTIED))
    source._keras_mask = tf.random.stateless_uniform(source.shape, (0, 1)) < 0.5
    assert of_forward(model, 0, source, target) == Sides()
    close(unpadded(model, 0)(source, target, skip_padding=True), model(source, target, skip_padding=True))


def test_a_mask_that_keras_attached_to_the_target_says_which_rows_are_zeros() -> None:
    model, (source, target) = loaded(UNTIED.replace(padding_id=None)), map(tf.constant, cases.tokens("right", UNTIED))
    target._keras_mask = tf.random.stateless_uniform(target.shape, (0, 2)) < 0.5
    assert np.array_equal(np.any(model(source, target, skip_padding=True), axis=2), target._keras_mask)


def test_unpadding_and_padding_are_each_other_s_gradient() -> None:
    """Also of integers and masks; what fills n up is nothing."""
    real_bt = np.random.default_rng(3).random((5, 9)) < 0.5
    tokens = of_forward(loaded(UNTIED), 0, real_bt, real_bt, real_bt).source
    count = int(real_bt.sum())
    assert len(tokens.index_n) > count
    assert np.array_equal(counted(tf.ones(real_bt.shape, tf.bool), tokens)[0], np.arange(len(tokens.index_n)) < count)
    x_btd = tf.constant(np.random.default_rng(4).normal(size=(*real_bt.shape, 2, 3)))
    y_1nd = tf.constant(np.random.default_rng(5).normal(size=(1, len(tokens.index_n), 2, 3)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x_btd, y_1nd])
        there, back = unpad(x_btd, tokens), pad(y_1nd, tokens)
    assert np.array_equal(there[0, :count], x_btd.numpy()[real_bt])
    assert np.array_equal(back.numpy()[real_bt], y_1nd[0, :count])
    assert not np.any(back.numpy()[~real_bt])
    assert np.array_equal(tape.gradient(there, x_btd, y_1nd), back)
    assert np.array_equal(tape.gradient(back, y_1nd, x_btd)[0, :count], there[0, :count])
    assert not np.any(tape.gradient(back, y_1nd, x_btd)[0, count:])
    assert unpad(tf.constant(real_bt), tokens).dtype == tf.bool
    ids = np.arange(45).reshape(5, 9)
    assert np.array_equal(pad(unpad(tf.constant(ids), tokens), tokens)[real_bt], ids[real_bt])


def every_count(rows: int, length: int) -> Iterator[np.ndarray]:
    for count in range(rows * length + 1):
        yield np.arange(rows * length).reshape(rows, length) < count


def test_a_shape_of_rows_has_few_counts_of_tokens() -> None:
    model = loaded(UNTIED)
    found = [of_forward(model, 0, mask, mask, mask).source for mask in every_count(20, 20)]
    counts = {len(each.index_n) for each in found if each}
    assert len(counts) < unpadding.STEPS
    for real_bt, each in zip(every_count(20, 20), found, strict=True):
        saved = 400 - len(each.index_n) if each else 400 / 16
        assert saved >= 400 / 16
        assert each is None or len(each.index_n) - real_bt.sum() <= 400 / unpadding.STEPS + 1
        assert each is not None or real_bt.mean() > 1 - 1 / 16 - 1 / unpadding.STEPS


def test_a_shape_has_few_graphs_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides leave out the same share, so that it has not a graph for each pair of their lengths."""
    traces = []

    def recorded(self: Unpadded, sides: Sides | None, *_: Any) -> Any:
        traces.append([None if each is None else each.index_n.shape[0] for each in sides or Sides()])
        return tf.zeros(())

    monkeypatch.setattr(Unpadded, "run", recorded)
    rng, model = np.random.default_rng(0), loaded(TINY)
    loss = compiled(model.training_loss, jit_compile=False, least=0)

    def batch(*shares: float) -> list[np.ndarray]:
        """Rows of which so much is padding on each side, about."""
        return [
            np.where(np.arange(length) < rng.binomial(length, 1 - share, (16, 1)), 5, 0)
            for share, length in zip(shares, (32, 33), strict=True)
        ]

    for _ in range(200):
        loss(*batch(*rng.uniform(0.2, 0.9, 2)))
    assert 6 <= len(traces) < unpadding.STEPS
    assert all(source == target for source, target in traces)
    for _ in range(200):
        loss(*batch(*rng.choice([0, 0.2, 0.5, 0.9], 2)))
    assert [None, None] in traces
    assert len(traces) < 3 * unpadding.STEPS  # the same lengths beside a side that is used as it is


def test_rows_stay_if_little_is_saved() -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    full = np.ones_like(source), np.ones_like(target)
    assert of_forward(model, 0, *full, skip_padding=True) == of_loss(model, 0, *full) == Sides()
    saved = (source.size - len(of_forward(model, 0, source, target).source.index_n)) * UNTIED.model_width
    for least in (saved, saved + 1):
        assert bool(of_forward(model, least, source, target).source) == (least == saved)
    source[:] = 1
    source[0, :2] = 0  # fewer than a sixteenth of the positions
    assert of_forward(model, 0, source, target).source is None
    unknown = loaded(UNTIED.replace(padding_id=None))
    assert of_forward(unknown, 0, source, target, skip_padding=True) == of_loss(unknown, 0, source, target) == Sides()


def test_rows_of_the_same_count_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (source, target), traces = loaded(UNTIED), cases.tokens("right", UNTIED), []
    call = Encoder.call

    def counted(self: Encoder, x_bsd: Any, *arguments: Any, **keywords: Any) -> Any:
        if tf.is_symbolic_tensor(x_bsd):
            traces.append(x_bsd.shape[0])
        return call(self, x_bsd, *arguments, **keywords)

    monkeypatch.setattr(Encoder, "call", counted)
    run = compiled(loaded(UNTIED), jit_compile=False, least=0)
    for rows in (source, source[::-1], source[:, ::-1], np.ones_like(source), np.full_like(source, 2)):
        close(run(rows, target), model(rows, target))
    assert sorted(traces) == [1, len(source)]


def test_ids_without_values_keep_their_rows(tmp_path) -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    wanted = np.where((target != 0)[..., None], model(source, target), 0)
    inner = compiled(model, least=0)
    graph = tf.function(lambda source, target: inner(source, target, skip_padding=True), autograph=False)
    close(graph(tf.constant(source), tf.constant(target)), wanted)
    inputs = keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int64")
    outer = keras.Model(inputs, model(*inputs, skip_padding=True))
    close(outer([source, target]), wanted)
    outer.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras").predict([source, target], verbose=0), wanted)


def test_rows_stay_if_graphs_run_eagerly() -> None:
    """So that what watches the layers sees rows."""
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    shapes = []
    layer = model.encoder.layers[0]
    layer.call, call = lambda x, *others, **keywords: shapes.append(x.shape) or call(x, *others, **keywords), layer.call
    tf.config.run_functions_eagerly(True)
    try:
        compiled(model, least=0)(source, target)
    finally:
        tf.config.run_functions_eagerly(False)
    assert shapes == [(*source.shape, UNTIED.model_width)]


@pytest.mark.parametrize("settings", [{}, pytest.param({"compiled": True}, marks=pytest.mark.exhaustive)], ids=["eager", "compiled"])
def test_a_run_is_the_same_with_and_without_padding(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = UNTIED.replace(**STILL, attention_bias=False)
    recipe, states = RECIPE.replace(clip_norm=0.5, weight_decay=0.1, microbatches=2), []
    for least in (0, 10**9):
        monkeypatch.setattr(unpadding, "LEAST", least)
        run = begin(BACKEND, config, recipe, **settings)
        losses = [float(run.train_step(*padded_batch(step))) for step in range(3)]
        states.append([losses, *run.loss(*padded_batch(9)), run.state()])
    close(*([array for _, array in sorted(each[3].items())] for each in states))
    close(states[0][:3], states[1][:3])


def test_an_unpadded_run_goes_on_as_the_uninterrupted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpadding, "LEAST", 0)
    first, other = (begin(BACKEND, TINY.replace(encoder_layers=2), RECIPE) for _ in range(2))
    assert of_loss(first.model, 0, *padded_batch(0)).target
    for step in range(2):
        first.train_step(*padded_batch(step))
    other.load_state(first.state(), 2)
    for run in (first, other):
        run.train_step(*padded_batch(2))
    assert bits(first.state()) == bits(other.state())
