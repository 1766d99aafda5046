"""The functional API, layers beside those of Keras, and its masks."""

import numpy as np

from impl_tf.decoding import Searcher
from impl_tf.layers import DecoderLayer, EncoderLayer
from impl_tf.programs.compiled import compiled
from impl_tf.stacks import Encoder
from impl_tf.transformer import Transformer
from reference_numpy import layers

from .tf_models import CONFIG, MASK, PAIR, SOURCE, TARGET, keras, loaded, reference, right, same, tf, topic, tree, values, weights

SEARCH = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}
KERAS, MASKS = map(topic, ("Functional API and layers", "Masks of Keras"))


@KERAS.works("`keras.Model([a, b], model(a, b))` of two `keras.Input`", sample=True)
def _() -> None:
    a, b = keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int64")
    right(keras.Model([a, b], loaded()(a, b))(PAIR))


@KERAS.works("`keras.Input` of the default float32, `predict`", sample=True)
def _() -> None:
    a, b = keras.Input((7,)), keras.Input((5,))
    right(keras.Model([a, b], loaded()(a, b)).predict(list(PAIR), verbose=0))


@KERAS.refused("`keras.Input` of the default float32, called eagerly, which casts the ids", "token must be integer token ids")
def _() -> None:
    a, b = keras.Input((7,)), keras.Input((5,))
    keras.Model([a, b], loaded()(a, b))(list(PAIR))


@KERAS.works("`keras.Sequential` of stock layers and `EncoderLayer`; a functional model around `EncoderLayer`")
def _() -> None:
    x, inputs = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32), keras.Input((None, 8), dtype="float64")
    expected = layers.encoder_layer(tree()["encoder"]["layers"]["0"], CONFIG, x.astype(np.float64))
    stacked = keras.Sequential([keras.layers.Identity(dtype="float64"), loaded().encoder.layers[0]])
    for model in (stacked, keras.Model(inputs, loaded().encoder.layers[0](inputs))):
        same(model.predict(x, verbose=0), expected)


@KERAS.works("a subclass of keras.Model that holds the model")
def _() -> None:
    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.inner = loaded()

        def call(self, pair):
            return 2 * self.inner(pair)

    same(Outer()(list(PAIR)), 2 * reference())


@KERAS.works("`get_config` and `from_config` of the model; `keras.models.clone_model`")
def _(model) -> None:
    for again in (Transformer.from_config(model.get_config()), keras.models.clone_model(model)):
        again.build()
        again.set_weights(model.get_weights())
        right(again(*PAIR))


@KERAS.works("another layer and another tied table in place of one, before the model is built: `model.encoder.layers_0 = layer`")
def _() -> None:
    model = Transformer(CONFIG, dtype="float64")
    model.encoder.layers_0 = EncoderLayer(CONFIG, dtype="float64")
    model.source_embedding = type(model.source_embedding)(23, 8, True, dtype="float64")
    weights.load(model, values(), CONFIG)
    assert model.encoder.layers[0] is model.encoder.layers_0
    right(model(*PAIR))


@KERAS.refused("`model.encoder.layers[0] = layer`", "'tuple' object does not support item assignment", sample=True)
def _(model) -> None:
    model.encoder.layers[0] = EncoderLayer(CONFIG)


class Neighbours(keras.layers.Layer):
    """A layer `call(x, mask)` that adds to every token the one before it."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__(dtype="float64")
        self.layer = layer

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x_btd, mask_bhts=None):
        return self.layer(x_btd + tf.pad(x_btd[:, :-1], [[0, 0], [1, 0], [0, 0]]), mask_bhts)


@KERAS.works("an own layer `call(x, mask)` that looks at neighbours; `compiled(model)`, with padding", sample=True)
def _() -> None:
    model = Transformer(CONFIG, dtype="float64")
    model.encoder.layers_0 = Neighbours(model.encoder.layers_0)
    same(compiled(model, jit_compile=False, least=0)(*PAIR, source_mask_bs=MASK), model(*PAIR, source_mask_bs=MASK))


class Negative(DecoderLayer):
    def call(self, x_btd, *args, **kwargs):
        return super().call(-x_btd, *args, **kwargs)


@KERAS.refused("`Searcher`, a decoder layer with a `call` of its own", "to be impl_tf's own, with its own call; got layers_0, a Negative")
def _() -> None:
    model = Transformer(CONFIG, dtype="float64")
    model.decoder.layers_0 = Negative(CONFIG, dtype="float64", name="layers_0")
    weights.load(model, values(), CONFIG)
    Searcher(model)


class Trained(Transformer):
    def train_step(self, data):
        return super().train_step(data)


@KERAS.works("a subclass of `Transformer` with a `train_step` of its own, and a search")
def _() -> None:
    model = Trained(CONFIG, dtype="float64")
    weights.load(model, values(), CONFIG)
    found, wanted = (Searcher(each).greedy_search(SOURCE, SEARCH)["token_bn"] for each in (model, loaded()))
    same(found, wanted)


@KERAS.refused("another layer in place of one of a built model", "to a layer that is already built")
def _(model) -> None:
    model.encoder.layers_0 = EncoderLayer(CONFIG)


@MASKS.works("`keras.layers.Masking` before `Encoder`", sample=True)
def _() -> None:
    stack, x = Encoder(CONFIG, dtype="float64"), np.random.default_rng(1).standard_normal((4, 7, 8)) * MASK[..., None]
    same(stack(keras.layers.Masking(dtype="float64")(x)), stack(x, mask_bhts=MASK[:, None, None]))


@MASKS.works("`keras.layers.Embedding(mask_zero=True)` before `EncoderLayer`, `DecoderLayer` after it", sample=True)
def _(model) -> None:
    table, encoder = keras.layers.Embedding(23, 8, mask_zero=True, dtype="float64"), model.encoder.layers[0]
    x, y = table(SOURCE * MASK), table(TARGET)
    memory = encoder(x)
    same(memory, encoder(tf.identity(x), MASK[:, None, None]))
    same(model.decoder.layers[0](y, memory), model.decoder.layers[0](tf.identity(y), tf.identity(memory), None, MASK[:, None, None]))


@MASKS.works("`MultiHeadAttention` of masked keys, as keras.layers.MultiHeadAttention has it")
def _() -> None:
    x, table = np.random.default_rng(1).standard_normal((4, 7, 8)), keras.layers.Embedding(23, 8, mask_zero=True, dtype="float64")
    stock = keras.layers.MultiHeadAttention(2, 4, dtype="float64")
    expected = stock(x, table(SOURCE * MASK))
    own = loaded().encoder.layers[0].self_attention
    for name, kernel in zip(("query", "key", "value", "output_projection"), ("query", "key", "value", "output"), strict=True):
        projection = getattr(own, name)
        projection.kernel.assign(getattr(stock, f"{kernel}_dense").kernel)
        projection.bias.assign(getattr(stock, f"{kernel}_dense").bias)
    same(own(x, table(SOURCE * MASK)), expected)


@MASKS.works("`keras.layers.Masking` of soft one-hot rows before the model", sample=True)
def _() -> None:
    soft = tf.one_hot(SOURCE, 23, dtype=tf.float64) * MASK[..., None]
    logits = loaded()(keras.layers.Masking(dtype="float64")(soft), TARGET)
    right(logits, source=soft.numpy(), source_mask_bs=MASK)
    assert getattr(logits, "_keras_mask", None) is None
