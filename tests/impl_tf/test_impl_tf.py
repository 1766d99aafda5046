"""Specifics of the TensorFlow port: saving, tracing, strict weights, training mode and Keras masks."""

import numpy as np
import pytest
import tensorflow as tf
from backends import Backend, random_parameters
from kinds import conformance

from impl_tf import weights
from impl_tf.attention import MultiHeadAttention, scaled_dot_product_attention
from impl_tf.dropout import Dropout
from impl_tf.embedding import Embedding, SegmentEmbedding
from impl_tf.feed_forward import FeedForward
from impl_tf.framework import keras
from impl_tf.heads import Classifier, MaskedLanguageHead, Pooler
from impl_tf.kernels import attention
from impl_tf.loss import cross_entropy
from impl_tf.mask import combine_masks
from impl_tf.normalization import LayerNorm
from impl_tf.positional_encoding import PositionEmbedding
from impl_tf.programs.compiled import compiled
from impl_tf.sampling import truncate
from impl_tf.stacks import Encoder
from impl_tf.transformer import Transformer
from impl_tf.values import Heads, Text
from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy import sampling as reference
from reference_numpy.scores import Scores

CONFIG = preset(
    "tiny", source_vocabulary=23, target_vocabulary=29, model_width=15, heads=6, key_value_heads=2, key_size=7, value_size=5,
    feed_forward_width=19, encoder_layers=1, decoder_layers=1, share_embeddings=False, tie_logits=False, attention_bias=True,
    output_bias=True, final_norm=True, dropout_rate=0.4, attention_dropout_rate=0.3, hidden_dropout_rate=0.2,
)  # fmt: skip
TIED = CONFIG.replace(target_vocabulary=23, share_embeddings=True, tie_logits=True, output_bias=False)
SINGLE = {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "feed_forward_width": 19, "max_positions": 64,
}  # fmt: skip
BERT = preset("bert_base", **SINGLE, encoder_layers=1, padding_id=None, epsilon=1e-5)
GPT2 = preset("gpt2_small", **SINGLE, decoder_layers=1)


def tokens(rows: int = 3, source: int = 7, target: int = 5, vocabulary: int = 23) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.integers(1, vocabulary, (rows, source)), rng.integers(1, vocabulary, (rows, target))


def loaded(config: TransformerConfig, dtype: str = "float64") -> Transformer:
    return Backend("tf").loaded(config, random_parameters(config, dtype))


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("config", [CONFIG, TIED, BERT, GPT2], ids=["untied", "tied", "bert", "gpt2"])
@pytest.mark.parametrize("dtype", [conformance("float64"), "bfloat16"])
def test_a_saved_model_is_loaded_bit_for_bit(tmp_path, config, dtype):
    model = loaded(config, dtype)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, Transformer)
    assert again.config == config
    assert again.dtype_policy.name == dtype
    before, after = weights.export(model, config), weights.export(again, config)
    assert {name: bits(array) for name, array in before.items()} == {name: bits(array) for name, array in after.items()}
    if config.encoder_layers and config.decoder_layers:
        assert bits(model(*tokens()).numpy()) == bits(again(*tokens()).numpy())


LAYERS = [
    Embedding(7, 5, True), LayerNorm(5, 1e-6), FeedForward(CONFIG), MultiHeadAttention(CONFIG), Encoder(CONFIG), Dropout(0.25), Pooler(5),
    Classifier(5, 3, 0.25), MaskedLanguageHead(BERT, True), PositionEmbedding(9, 5, 2), SegmentEmbedding(2, 5),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_every_layer_is_made_again_from_its_config(layer):
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()


def test_one_argument_must_hold_source_and_target():
    model, (source, target) = loaded(CONFIG), tokens()
    for one, came in ((source, "EagerTensor"), ({"source": source}, r"\['source'\]"), ([source] * 3, "list")):
        with pytest.raises(ValueError, match=f"source and target.*{came}"):
            model(one)
    with pytest.raises(ValueError, match=r"ids.*0.*22; got 23"):
        compiled(model)([source + 22, target])


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
@pytest.mark.parametrize("config", [CONFIG, TIED.replace(encoder_layers=2, decoder_layers=2)], ids=["untied", "tied"])
def test_a_checkpoint_holds_every_parameter(tmp_path, config, built):
    model, again = loaded(config, "float32"), Transformer(config)
    if built:
        again.build()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "saved"))
    status = tf.train.Checkpoint(model=again).read(str(tmp_path / "saved"))
    assert bits(again(*tokens()).numpy()) == bits(model(*tokens()).numpy())
    status.assert_consumed().assert_existing_objects_matched()
    before, after = weights.export(model, config), weights.export(again, config)
    assert {name: bits(array) for name, array in before.items()} == {name: bits(array) for name, array in after.items()}


def test_the_summary_has_shapes_and_counts_before_a_call():
    lines = []
    Transformer(CONFIG).summary(print_fn=lambda line, **_: lines.append(line))
    rows = {line.split()[1]: line for line in "".join(lines).splitlines() if line.startswith("│")}
    assert all("?" not in row for row in rows.values())
    for name, width in (("source_embedding", 15), ("encoder", 15), ("target_embedding", 15), ("decoder", 15), ("logits", 29)):
        count = sum(int(np.prod(shape)) for part, shape in parameters.shapes(CONFIG).items() if part.startswith(f"{name}."))
        assert f"(None, None, {width})" in rows[name]
        assert f" {count:,} " in rows[name]


def test_the_output_s_shape_is_known_without_a_call():
    model = Transformer(CONFIG)
    for shapes in (((3, 7), (3, None)), ([(3, 7), (3, None)],), ({"source": (3, 7), "target": (3, None)},)):
        assert model.compute_output_shape(*shapes) == (3, None, 29)
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    for one in ([source, target], {"source": source, "target": target}):
        assert model(one).shape == (None, None, 29)
    with pytest.raises(ValueError, match="vocabulary's size 23"):
        model(keras.Input((None, 7)), target)  # symbolic calls are checked as well


def test_a_quantized_model_is_refused():
    model = loaded(CONFIG, "float32")
    with pytest.raises(ValueError, match=r"Projection.*int8"):
        model.encoder.layers[0].feed_forward.hidden.quantize("int8")
    with pytest.raises(NotImplementedError, match="int8"):
        Transformer(CONFIG, dtype="int8_from_float32")(*tokens())


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_loss_of_a_mixed_policy_is_float32(policy):
    model = Transformer(CONFIG, dtype=policy)
    weights.load(model, random_parameters(CONFIG, "float32"), CONFIG)
    loss = model.training_loss(*tokens())
    assert loss.dtype == tf.float32
    logits = tf.cast(model(tokens()[0], tokens()[1][:, :-1]), tf.float32)
    assert float(loss) == float(cross_entropy(logits, tf.constant(tokens()[1][:, 1:])))
    assert Transformer(CONFIG, dtype="bfloat16").training_loss(*tokens()).dtype == tf.bfloat16


def test_a_loss_of_classes_drops_in_training_only():
    model, label_b = loaded(BERT.replace(classes=4, classifier_dropout_rate=0.5)), np.array([3, 0, 1])
    for training, count in ((True, 2), (False, 1)):
        assert len({float(model.classification_loss(tokens()[0], label_b, training=training)) for _ in range(2)}) == count


def test_compiled_traces_the_same_shapes_once():
    traces = []

    def function(x, causal=False):
        traces.append(causal)
        return x + 1 if causal else x

    run = compiled(function)
    for _ in range(3):
        run(tf.zeros((2, 3)))
        run(np.ones((2, 3), np.float32), causal=True)
    assert traces == [False, True]


@pytest.mark.parametrize("method", ["__call__", "training_loss"])
def test_a_model_whose_first_trace_fails_is_built_and_serves_the_next(method):
    model, (source, target) = Transformer(CONFIG, dtype="float64"), tokens()
    run = compiled(model if method == "__call__" else model.training_loss)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"axes|at least 1"):
            run(source, *((Text(target, tf.ones((5, 7), tf.bool)),) if method == "__call__" else (target, 0.0, 0)))
    np.testing.assert_allclose(run(source, target), getattr(model, method)(source, target), rtol=1e-10, atol=1e-12)


def test_a_stock_layer_is_loaded_after_its_first_call():
    layer, given = keras.layers.LayerNormalization(), {name: np.ones(15, np.float32) for name in ("scale", "offset")}
    table = (("scale", "gamma", "d"), ("offset", "beta", "d"))
    with pytest.raises(ValueError, match="call it once"):
        weights.load(layer, given, CONFIG, "layer_norm", table)
    layer(tf.zeros((2, 15)))
    weights.load(layer, given, CONFIG, "layer_norm", table)


def has_a_loop(function, *arrays):
    """Whether the function's graph has a loop."""
    graph = tf.function(function, autograph=False).get_concrete_function(*arrays).graph
    return any(operation.type in ("While", "StatelessWhile") for operation in graph.get_operations())


def small_chunks(monkeypatch, weights: int = 1) -> None:
    monkeypatch.setattr(attention, "CHUNK_WEIGHTS", dict.fromkeys(attention.CHUNK_WEIGHTS, weights))


@pytest.mark.parametrize(
    ("target", "causal", "jit_compile"),
    [*((target, causal, None) for target in (12, 13) for causal in (False, True)), (13, True, False), (13, True, True)],
)
@pytest.mark.conformance
def test_chunks_of_queries_give_what_all_give_together(monkeypatch, target, causal, jit_compile):
    rng = np.random.default_rng(0)
    bound = 2 * target * 4 * 5 * np.finfo(float).eps  # rounding of a sum of this many terms in another order
    bias, mask = rng.standard_normal((1, 4, target, 11)), rng.random((2, 1, 1, 11)) < 0.7
    arrays = [tf.constant(x) for x in (rng.standard_normal((2, target, 4, 5)), rng.standard_normal((2, 11, 2, 5)), bias)]

    def total(query, key, bias):
        with tf.GradientTape() as tape:
            tape.watch([query, key, bias])
            both = combine_masks(bias, tf.constant(mask))
            result = tf.reduce_sum(tf.square(scaled_dot_product_attention(Heads(query, key, key), both, Scores(causal=causal))))
        return [result, *tape.gradient(result, [query, key, bias])]

    def found():
        return (total if jit_compile is None else tf.function(total, jit_compile=jit_compile))(*arrays)

    wanted = found()
    small_chunks(monkeypatch, 4 * 2 * 4 * 11)
    assert jit_compile is None or has_a_loop(total, *arrays)
    for one, other in zip(found(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(other).max())


def test_the_chunks_are_those_of_the_tensor_s_device_where_it_has_one(monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_WEIGHTS", {"CPU": 4 * 11, "GPU": 1 << 28})
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")])
    found = []

    def lengths(query):
        found.append(attention.chunk_length(query, 11))
        with tf.device("/CPU:0"):
            found.append(attention.chunk_length(tf.identity(query), 11))

    query = tf.zeros((1, 3, 1, 5))
    lengths(query)
    tf.function(lengths)(query)
    assert found == [None, None, None, None]
    query = tf.zeros((1, 6, 1, 5))
    lengths(query)
    tf.function(lengths)(query)
    assert found[4:] == [4, 4, None, 4]


@pytest.mark.conformance
def test_memory_grows_with_the_length_not_with_its_square():
    def bytes_of(length):
        x = tf.random.stateless_normal((1, length, 8, 16), (0, 1))

        @tf.function(jit_compile=True, autograph=False)
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(tf.square(scaled_dot_product_attention(Heads(x, x, x))))
            return tape.gradient(total, x)

        gradient(x)
        try:
            tf.config.experimental.reset_memory_stats("CPU:0")
        except ValueError as error:
            pytest.skip(str(error))
        gradient(x)
        return tf.config.experimental.get_memory_info("CPU:0")["peak"]

    assert bytes_of(2048) < 2.5 * bytes_of(1024)


def test_a_model_with_dropout_computes_in_chunks_in_evaluation_alone(monkeypatch):
    layer, x_btd = MultiHeadAttention(CONFIG), tf.ones((2, 3, 15))
    assert not has_a_loop(layer, x_btd, x_btd)
    small_chunks(monkeypatch)
    for settings, in_chunks in (({}, True), ({"training": True}, False)):
        assert has_a_loop(lambda x_btd, settings=settings: layer(x_btd, x_btd, **settings), x_btd) == in_chunks


@pytest.mark.parametrize("top_p", [0.3, 0.9999])
def test_a_graph_cuts_large_vocabularies_by_numbers_that_are_its_arguments(top_p):
    logits = 1.5 * np.random.default_rng(0).standard_normal((3, 700))
    logits[:, ::7] = np.round(logits[:, ::7])
    for count, largest in ((0, ()), (40, (64,))):
        found = tf.function(truncate)(
            tf.constant(logits), 1.2, tf.constant(count) if count else 0, tf.constant(top_p, tf.float64), *largest
        )
        np.testing.assert_allclose(found, reference.truncate(logits, 1.2, count, top_p), rtol=1e-14)
