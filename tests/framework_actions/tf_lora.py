"""LoRA."""

import numpy as np

from impl_tf.decoding import Searcher
from impl_tf.transformer import Transformer

from .tf_models import CONFIG, LABELS, PAIR, QUIET, SOURCE, equals_itself, keras, loaded, reference, same, tf, topic, trained, weights

LORA = topic("LoRA")


@LORA.works("`enable_lora` of a projection: the numbers of keras.layers.EinsumDense", sample=True)
def _() -> None:
    own, x = loaded().encoder.layers[0].self_attention.query, np.random.default_rng(1).standard_normal((2, 5, 8))
    stock = keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 4), bias_axes="hk", dtype="float64")
    stock.build(x.shape)
    stock.kernel.assign(own.kernel), stock.bias.assign(own.bias)
    for layer in (own, stock):
        layer.enable_lora(3, lora_alpha=6, b_initializer="ones")
    stock.lora_kernel_a.assign(tf.cast(own.lora_kernel_a, tf.float32)), own.lora_kernel_a.assign(tf.cast(stock.lora_kernel_a, tf.float64))
    assert [tuple(variable.shape) for variable in own.lora] == [stock.lora_kernel_a.shape, stock.lora_kernel_b.shape]
    same(own(x), stock(x), 1e-6)  # stock adapts in float32


@LORA.works("`enable_lora` of the embedding: the numbers of keras.layers.Embedding")
def _() -> None:
    own, stock = loaded().source_embedding, keras.layers.Embedding(23, 8, dtype="float64")
    stock.build()
    stock.embeddings.assign(own.table)
    for layer in (own, stock):
        layer.enable_lora(3, a_initializer="ones", b_initializer="ones")
    same(own(SOURCE), stock(SOURCE).numpy() * 8**0.5, 1e-6)


def _adapted() -> Transformer:
    """As the loop of KerasHub's Backbone.enable_lora does it, and trained."""
    model = loaded()
    layers = [layer for layer in model._flatten_layers(include_self=False) if layer.weights]
    for layer in layers:
        layer.trainable = False
    for layer in layers:
        if layer.name in ("query", "value"):
            layer.trainable = True
            layer.enable_lora(2)
    trained(model).fit(PAIR, LABELS, **QUIET)
    return model


@LORA.works("the loop of KerasHub's `Backbone.enable_lora`, `fit`; `weights.export` has the sum")
def _() -> None:
    model = _adapted()
    assert {variable.name for variable in model.trainable_variables} == {"bias", "lora_kernel_a", "lora_kernel_b"}
    assert np.abs(model(*PAIR) - reference()).max() > 1e-3
    equals_itself(model)


@LORA.works("`save` of an adapted model: the file is of the plain one, with the sum")
def _(folder) -> None:
    model, plain = _adapted(), loaded()
    model.save_weights(folder / "model.weights.h5")
    for each in (plain, model):
        each.load_weights(folder / "model.weights.h5")
        same(plain(*PAIR), model(*PAIR))


@LORA.works("`Searcher` of an adapted model")
def _() -> None:
    model, plain = _adapted(), Transformer(CONFIG, dtype="float64")
    weights.load(plain, weights.export(model, CONFIG), CONFIG)
    options = {"start_id": 1, "end_id": 2, "max_new_tokens": 4}
    found, expected = (Searcher(each, compiled=False).greedy_search(SOURCE, options) for each in (model, plain))
    for name in expected:
        same(found[name], expected[name])


@LORA.refused("`enable_lora` twice", "LoRA must be enabled once, in a layer that is built")
def _() -> None:
    query = loaded().encoder.layers[0].self_attention.query
    query.enable_lora(2)
    query.enable_lora(2)
