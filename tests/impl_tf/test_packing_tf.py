"""Only real tokens in the TensorFlow port: what is packed equals what is not, for every pattern of padding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import packing_cases as cases
import pytest
from backends import Backend
from test_training import CONFIG as TINY
from test_training import RECIPE, STILL, begin, bits
from test_training import batch as padded_batch
from tiers import every

tf = pytest.importorskip("tensorflow")

from impl_tf import weights  # noqa: E402
from impl_tf.fast import packing  # noqa: E402
from impl_tf.fast.compiled import compiled  # noqa: E402
from impl_tf.framework import keras  # noqa: E402
from impl_tf.transformer import Transformer  # noqa: E402
from reference_numpy import TransformerConfig, sites  # noqa: E402

BACKEND = Backend("tf")
UNTIED = cases.CONFIGS["pre-learned-from-the-row-untied"]


def loaded(config: TransformerConfig) -> Transformer:
    model = Transformer(config, dtype="float64")
    weights.load(model, cases.arrays(config), config)
    model.pack_from = 0
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


def loss_and_gradients(model: Transformer, source: Any, target: Any, **settings: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = model.training_loss(source, target, 0.1, **settings)
    return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero"))]


@pytest.mark.parametrize("pattern", every(3, cases.PATTERNS))
def test_logits_loss_and_gradients_are_those_of_rows(model: Transformer, pattern: str) -> None:
    source, target = cases.tokens(pattern, model.config)
    packings = packing.of_forward(model, source, target, skip_padding=True)
    assert (packings.target is None) == (pattern == "all")
    wanted = model(source, target)
    close(model(source, target, packings=packings._replace(target=None)), wanted)
    skipped = np.where((target != 0)[..., None], wanted, 0)
    close(model(source, target, skip_padding=True, packings=packings), skipped)
    close(model(source, target, skip_padding=True), skipped)

    target = whole(target)
    packings = packing.of_loss(model, source, target)
    assert packings.target or pattern in ("all", "inside")  # between labels that count every place may be needed
    close(loss_and_gradients(model, source, target, packings=packings), loss_and_gradients(model, source, target))


@pytest.mark.second
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_a_graph_packs_and_gives_the_same(jit_compile: bool) -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("mixed", UNTIED)
    wanted, kept = model(source, target), (target != 0)[..., None]
    run, loss = compiled(model, jit_compile), compiled(model.training_loss, jit_compile)
    close(run(source, target), wanted)
    close(run([source, target], skip_padding=True), np.where(kept, wanted, 0))
    close(loss(source, target, 0.1), model.training_loss(source, target, 0.1))
    gradients = tf.function(lambda packings: loss_and_gradients(model, source, target, packings=packings), jit_compile=jit_compile)
    close(gradients(packing.of_loss(model, source, target)), loss_and_gradients(model, source, target))


def test_a_padded_source_without_a_token_of_the_target() -> None:
    """A row of padding throughout adds nothing, and the loss of a batch without a label is 0."""
    model, (source, target) = loaded(UNTIED), cases.tokens("none", UNTIED)
    found = loss_and_gradients(model, source, target, packings=packing.of_loss(model, source, target))
    assert all(not np.any(each) for each in found)


def test_keep_masks_are_those_of_rows() -> None:
    config = TINY.replace(attention_bias=True)
    model, (source, target) = loaded(config), cases.tokens("mixed", config)
    keep, target = sites.draw(config, *source.shape, target.shape[1], np.random.default_rng(2)), whole(target)
    shared = keep["encoder"]["layers"]["0"]["feed_forward"]
    shared["hidden_dropout"] = shared["hidden_dropout"][:1]  # the same for all rows
    keep["decoder"]["layers"]["0"]["feed_forward_dropout"] = np.ones((1, 1, 1), bool)
    packings = packing.of_loss(model, source, target)
    assert packings.source
    found = loss_and_gradients(model, source, target, keep=keep, packings=packings)
    close(found, loss_and_gradients(model, source, target, keep=keep))
    shared["hidden_dropout"] = np.ones((2, 1, 1), bool)
    with pytest.raises(ValueError, match="keep must broadcast to the input"):
        model.training_loss(source, target, keep=keep, packings=packings)


def test_masks_that_are_given_say_what_is_packed() -> None:
    """Soft one-hot rows, whose ids are not known, too; padding has the gradient 0."""
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    source_mask_bs, target_mask_bt = (np.random.default_rng(3).random(ids.shape) < 0.5 for ids in (source, target))
    soft = tf.constant(np.random.default_rng(3).dirichlet(np.ones(23), source.shape))
    masks = {"source_mask_bs": source_mask_bs, "target_mask_bt": target_mask_bt}
    packings = packing.of_forward(model, soft, target, **masks, skip_padding=True)
    assert np.array_equal(packings.source.mask_bt, source_mask_bs)
    assert packing.of_forward(model, soft, target) == packing.Packings()

    def run(source: Any, **settings: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(source)
            logits = model(source, target, **masks, **settings)
            total = tf.reduce_sum(tf.where(target_mask_bt[..., None], logits, tf.zeros((), logits.dtype)) ** 2)
        return total, tape.gradient(total, source)

    close(run(soft, skip_padding=True, packings=packings), run(soft))
    close(compiled(model)(source, target, source_mask_bs, skip_padding=True), model(source, target, source_mask_bs, skip_padding=True))


def test_packing_and_unpacking_are_each_other_s_gradient() -> None:
    """Also of integers and masks; what fills n up is nothing."""
    real_bt = np.random.default_rng(3).random((5, 9)) < 0.5
    packed = packing.of_forward(loaded(UNTIED), real_bt, None, real_bt).source
    count = int(real_bt.sum())
    assert len(packed.index_n) > count
    assert np.array_equal(packing.counted(tf.ones(real_bt.shape, tf.bool), packed)[0], np.arange(len(packed.index_n)) < count)
    x_btd = tf.constant(np.random.default_rng(4).normal(size=(*real_bt.shape, 2, 3)))
    y_1nd = tf.constant(np.random.default_rng(5).normal(size=(1, len(packed.index_n), 2, 3)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x_btd, y_1nd])
        there, back = packing.pack(x_btd, packed), packing.unpack(y_1nd, packed)
    assert np.array_equal(there[0, :count], x_btd.numpy()[real_bt])
    assert np.array_equal(back.numpy()[real_bt], y_1nd[0, :count])
    assert not np.any(back.numpy()[~real_bt])
    assert np.array_equal(tape.gradient(there, x_btd, y_1nd), back)
    assert np.array_equal(tape.gradient(back, y_1nd, x_btd)[0, :count], there[0, :count])
    assert not np.any(tape.gradient(back, y_1nd, x_btd)[0, count:])
    assert packing.pack(tf.constant(real_bt), packed).dtype == tf.bool
    assert np.array_equal(packing.unpack(packing.pack(tf.constant(np.arange(45).reshape(5, 9)), packed), packed)[real_bt],
                          np.arange(45).reshape(5, 9)[real_bt])  # fmt: skip


def every_count(rows: int, length: int) -> Iterator[np.ndarray]:
    for count in range(rows * length + 1):
        yield np.arange(rows * length).reshape(rows, length) < count


def test_a_shape_of_rows_has_few_counts_of_packed_tokens() -> None:
    model = loaded(UNTIED)
    packings = [packing.of_forward(model, mask, None, mask).source for mask in every_count(20, 20)]
    counts = {len(each.index_n) for each in packings if each}
    assert len(counts) < packing.STEPS
    for real_bt, each in zip(every_count(20, 20), packings, strict=True):
        saved = 400 - len(each.index_n) if each else 400 / 16
        assert saved >= 400 / 16
        assert each is None or len(each.index_n) - real_bt.sum() <= 400 / packing.STEPS + 1
        assert each is not None or real_bt.mean() > 1 - 1 / 16 - 1 / packing.STEPS


def test_a_shape_has_few_graphs_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides leave out the same share, so that it has not a graph for each pair of their lengths."""
    traces = []

    def training_loss(self: Transformer, source: Any, target: Any, packings: Any = (None, None)) -> Any:
        traces.append([None if each is None else each.index_n.shape[0] for each in packings])
        return tf.zeros(())

    monkeypatch.setattr(Transformer, "training_loss", training_loss)
    rng, model = np.random.default_rng(0), loaded(TINY)
    loss = compiled(model.training_loss, jit_compile=False)

    def batch(*shares: float) -> list[np.ndarray]:
        """Rows of which so much is padding on each side, about."""
        return [
            np.where(np.arange(length) < rng.binomial(length, 1 - share, (16, 1)), 5, 0)
            for share, length in zip(shares, (32, 33), strict=True)
        ]

    for _ in range(200):
        loss(*batch(*rng.uniform(0.2, 0.9, 2)))
    assert 6 <= len(traces) < packing.STEPS
    assert all(source == target for source, target in traces)
    for _ in range(200):
        loss(*batch(*rng.choice([0, 0.2, 0.5, 0.9], 2)))
    assert [None, None] in traces
    assert len(traces) < 3 * packing.STEPS  # the same lengths beside a side that is used as it is


def test_nothing_is_packed_that_saves_little() -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    full = np.ones_like(source), np.ones_like(target)
    assert packing.of_forward(model, *full, skip_padding=True) == packing.of_loss(model, *full) == packing.Packings()
    saved = (source.size - len(packing.of_forward(model, source, target).source.index_n)) * UNTIED.model_width
    for pack_from in (saved, saved + 1):
        model.pack_from = pack_from
        assert bool(packing.of_forward(model, source, target).source) == (pack_from == saved)
    model.pack_from, source[:] = 0, 1
    source[0, :2] = 0  # fewer than a sixteenth of the positions
    assert packing.of_forward(model, source, target).source is None
    unknown = loaded(UNTIED.replace(padding_id=None))
    assert packing.of_forward(unknown, source, target, skip_padding=True) == packing.of_loss(unknown, source, target) == packing.Packings()


def test_rows_of_the_same_count_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (source, target), traces = loaded(UNTIED), cases.tokens("right", UNTIED), []
    call = Transformer.call

    def counted(self: Transformer, *arguments: Any, **keywords: Any) -> Any:
        traces.append(keywords.get("packings"))
        return call(self, *arguments, **keywords)

    monkeypatch.setattr(Transformer, "call", counted)
    run = compiled(loaded(UNTIED), jit_compile=False)
    for rows in (source, source[::-1], source[:, ::-1], np.ones_like(source), np.full_like(source, 2)):
        close(run(rows, target), model(rows, target))
    packed = [packings for packings in traces if packings and tf.is_symbolic_tensor(packings.source.index_n)]
    assert len(packed) == 1
    assert len(traces) == 5 + 2


def test_ids_without_values_are_not_packed(tmp_path) -> None:
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    wanted = np.where((target != 0)[..., None], model(source, target), 0)
    inner = compiled(model)
    graph = tf.function(lambda source, target: inner(source, target, skip_padding=True), autograph=False)
    close(graph(tf.constant(source), tf.constant(target)), wanted)
    inputs = keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int64")
    outer = keras.Model(inputs, model(*inputs, skip_padding=True))
    close(outer([source, target]), wanted)
    outer.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras").predict([source, target], verbose=0), wanted)


def test_nothing_is_packed_where_graphs_run_eagerly() -> None:
    """So that what watches the layers sees rows."""
    model, (source, target) = loaded(UNTIED), cases.tokens("right", UNTIED)
    shapes = []
    layer = model.encoder.layers[0]
    layer.call, call = lambda x, *others, **keywords: shapes.append(x.shape) or call(x, *others, **keywords), layer.call
    tf.config.run_functions_eagerly(True)
    try:
        compiled(model)(source, target)
    finally:
        tf.config.run_functions_eagerly(False)
    assert shapes == [(*source.shape, UNTIED.model_width)]


@pytest.mark.parametrize("settings", [{}, pytest.param({"compiled": True}, marks=pytest.mark.exhaustive)], ids=["eager", "compiled"])
def test_a_run_is_the_same_packed_or_not(settings: dict[str, Any]) -> None:
    config = UNTIED.replace(**STILL, attention_bias=False)
    recipe, states = RECIPE.replace(clip_norm=0.5, weight_decay=0.1, microbatches=2), []
    for pack_from in (0, 10**9):
        run = begin(BACKEND, config, recipe, **settings)
        run.model.pack_from = pack_from
        losses = [float(run.train_step(*padded_batch(step))) for step in range(3)]
        states.append([losses, *run.loss(*padded_batch(9)), run.state()])
    close(*([array for _, array in sorted(each[3].items())] for each in states))
    close(states[0][:3], states[1][:3])


def test_a_packed_run_goes_on_as_the_uninterrupted_one() -> None:
    first, other = (begin(BACKEND, TINY.replace(encoder_layers=2), RECIPE) for _ in range(2))
    first.model.pack_from = other.model.pack_from = 0
    assert packing.of_loss(first.model, *padded_batch(0)).target
    for step in range(2):
        first.train_step(*padded_batch(step))
    other.load_state(first.state(), 2)
    for run in (first, other):
        run.train_step(*padded_batch(2))
    assert bits(first.state()) == bits(other.state())
