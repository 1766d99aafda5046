"""Changes that users make to models of the TensorFlow port: Keras layers in between, masks, LoRA."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from test_use_tf import MODELS, loaded, ready, right
from user_models import CONFIG, LABELS, MASK, PAIR, SEARCH, SOURCE, TARGET, differs, reference, same, tree, values

from impl_tf import cache, weights
from impl_tf.decoding import Searcher
from impl_tf.framework import keras
from impl_tf.layers import DecoderLayer, EncoderLayer
from impl_tf.programs import static_cache
from impl_tf.programs.compiled import compiled
from impl_tf.stacks import Encoder
from impl_tf.transformer import Transformer
from impl_tf.values import Text
from reference_numpy import layers

X = np.random.default_rng(1).standard_normal((4, 8, 8))


def fresh(kind: type = Transformer) -> Any:
    return kind(CONFIG, dtype="float64")


def tokens(model: Any) -> Any:
    return Searcher(model, compiled=False).greedy_search(SOURCE, SEARCH)["token_bn"]


def test_functional_models_around_the_port() -> None:
    a, b = keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int64")
    same(keras.Model([a, b], loaded()(a, b))(PAIR), reference())
    a, b = keras.Input((8,)), keras.Input((5,))  # Keras' default dtype, float32
    model = keras.Model([a, b], loaded()(a, b))
    same(model.predict(list(PAIR), verbose=0), reference())
    with pytest.raises(ValueError, match="integer"):
        model(list(PAIR))


def test_a_functional_model_hands_masks_over_in_texts(tmp_path: Any) -> None:
    a, b, mask = (keras.Input((None,), dtype=dtype) for dtype in ("int64", "int64", "bool"))
    model = keras.Model([a, b, mask], loaded()(Text(a, mask), b))
    model.save(tmp_path / "model.keras")
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        same(each([*PAIR, MASK]), reference(source_mask_bs=MASK))


def test_layers_in_models_of_keras() -> None:
    inputs, single = keras.Input((None, 8), dtype="float64"), X.astype(np.float32)
    expected = layers.encoder_layer(tree()["encoder"]["layers"]["0"], CONFIG, single.astype(np.float64))
    stacked = keras.Sequential([keras.layers.Identity(dtype="float64"), loaded().encoder.layers[0]])
    for model in (stacked, keras.Model(inputs, loaded().encoder.layers[0](inputs))):
        same(model.predict(single, verbose=0), expected)

    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.inner = loaded()

        def call(self, pair: Any) -> Any:
            return 2 * self.inner(pair)

    same(Outer()(list(PAIR)), 2 * reference())


def test_parts_are_replaced_before_the_model_is_built(tmp_path: Any) -> None:
    model, again = fresh(), fresh()
    model.encoder.layers_0 = fresh(EncoderLayer)
    model.source_embedding = type(model.source_embedding)(24, 8, True, dtype="float64")
    weights.load(model, values(), CONFIG)
    assert model.encoder.layers[0] is model.encoder.layers_0
    right(model)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(model=again).read(str(tmp_path / "saved"))
    same(again(*PAIR), reference())
    with pytest.raises(Exception, match="already built"):
        model.encoder.layers_0 = EncoderLayer(CONFIG)
    with pytest.raises(TypeError):
        model.encoder.layers[0] = EncoderLayer(CONFIG)


class Neighbours(keras.layers.Layer):
    """A layer that adds the previous token to each token."""

    def __init__(self, layer: Any) -> None:
        super().__init__(dtype="float64")
        self.layer = layer

    def build(self, shape: Any) -> None:
        self.layer.build(shape)

    def call(self, x_btd: Any, mask_bhts: Any = None) -> Any:
        return self.layer(x_btd + tf.pad(x_btd[:, :-1], [[0, 0], [1, 0], [0, 0]]), mask_bhts)


def test_a_layer_that_looks_at_neighbours_is_given_padding() -> None:
    model = fresh()
    model.encoder.layers_0 = Neighbours(model.encoder.layers_0)
    texts = Text(SOURCE, MASK), TARGET
    same(compiled(model, jit_compile=False, least=0)(*texts), model(*texts))


class Negative(DecoderLayer):
    def call(self, x_btd: Any, *args: Any, **kwargs: Any) -> Any:
        return super().call(-x_btd, *args, **kwargs)


class Trained(Transformer):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_a_search_refuses_layers_that_its_copy_would_leave_out() -> None:
    model = fresh()
    model.decoder.layers_0 = Negative(CONFIG, dtype="float64", name="layers_0")
    weights.load(model, values(), CONFIG)
    with pytest.raises(ValueError, match="layers_0"):
        Searcher(model)
    model = fresh(Trained)
    weights.load(model, values(), CONFIG)
    MODELS.searched(model)


@pytest.mark.parametrize(("kind", "room"), [(cache, {}), (static_cache, {"length": 5})])
def test_a_row_of_a_cache_takes_its_past_with_it(kind: Any, room: dict[str, int]) -> None:
    model, row = loaded(), np.array([2, 0, 0, 1])
    held = kind.start_cache(model, model.encode(SOURCE), SOURCE != 0, **room)
    _, held = kind.decode_step(model, TARGET[:, :2], held)
    logits, _ = kind.decode_step(model, TARGET[row][:, 2:], kind.reorder(held, row))
    same(logits, reference(source=SOURCE[row], target=TARGET[row])[:, 2:])


def test_masks_of_keras_hide_padding_from_attention() -> None:
    hidden, table = MASK[:, None, None], keras.layers.Embedding(24, 8, mask_zero=True, dtype="float64")
    stack, masked = fresh(Encoder), keras.layers.Masking(dtype="float64")
    x = X * MASK[..., None]
    same(stack(masked(x)), stack(x, mask_bhts=hidden))
    encoder, decoder = loaded().encoder.layers[0], loaded().decoder.layers[0]
    x, y = table(SOURCE * MASK), table(np.maximum(TARGET, 1))
    memory = encoder(x)
    same(memory, encoder(tf.identity(x), hidden))
    same(decoder(y, memory), decoder(tf.identity(y), tf.identity(memory), None, hidden))
    soft = tf.one_hot(SOURCE, 24, dtype=tf.float64) * MASK[..., None]
    logits = loaded()(masked(soft), TARGET)
    same(logits, reference(source=soft.numpy(), source_mask_bs=MASK))
    assert getattr(logits, "_keras_mask", None) is None


def test_attention_of_masked_keys_is_that_of_keras() -> None:
    table = keras.layers.Embedding(24, 8, mask_zero=True, dtype="float64")
    stock, own = keras.layers.MultiHeadAttention(2, 4, dtype="float64"), loaded().encoder.layers[0].self_attention
    expected = stock(X, table(SOURCE * MASK))
    for name in ("query", "key", "value", "output"):
        projection = getattr(own, "output_projection" if name == "output" else name)
        projection.kernel.assign(getattr(stock, f"{name}_dense").kernel)
        projection.bias.assign(getattr(stock, f"{name}_dense").bias)
    same(own(X, table(SOURCE * MASK)), expected)


def test_lora_has_the_numbers_of_keras() -> None:
    own = loaded().encoder.layers[0].self_attention.query
    stock = keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 4), bias_axes="hk", dtype="float64")
    stock.build(X.shape)
    stock.kernel.assign(own.kernel), stock.bias.assign(own.bias)
    for layer in (own, stock):
        layer.enable_lora(3, lora_alpha=6, b_initializer="ones")
    own.lora_kernel_a.assign(tf.cast(stock.lora_kernel_a, tf.float64))
    same(own(X), stock(X), 1e-5)  # Keras adapts in float32
    with pytest.raises(ValueError, match="once"):
        own.enable_lora(2)
    table, stock = loaded().source_embedding, keras.layers.Embedding(24, 8, dtype="float64")
    stock.build()
    stock.embeddings.assign(table.table)
    for layer in (table, stock):
        layer.enable_lora(3, a_initializer="ones", b_initializer="ones")
    same(table(SOURCE), stock(SOURCE).numpy() * 8**0.5, 1e-5)


def test_adapters_are_trained_searched_exported_and_saved(tmp_path: Any) -> None:
    """The loop is that of KerasHub's Backbone.enable_lora."""
    model, plain = loaded(), fresh()
    own = [layer for layer in model._flatten_layers(include_self=False) if layer.weights]
    for layer in own:
        layer.trainable = False
    for layer in own:
        if layer.name in ("query", "value"):
            layer.trainable = True
            layer.enable_lora(2)
    ready(model).fit(PAIR, LABELS, batch_size=4, verbose=0)
    assert {x.name for x in model.trainable_variables} == {"bias", "lora_kernel_a", "lora_kernel_b"}
    differs(model(*PAIR), reference())
    right(model)
    weights.load(plain, weights.export(model, CONFIG), CONFIG)
    same(tokens(model), tokens(plain))
    model.save_weights(tmp_path / "model.weights.h5")
    for each in (loaded(), model):
        each.load_weights(tmp_path / "model.weights.h5")
        same(each(*PAIR), plain(*PAIR))
