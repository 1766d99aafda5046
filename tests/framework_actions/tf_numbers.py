"""Precision, gradients and rematerialisation."""

import numpy as np

from reference_numpy import transformer

from .tf_models import CONFIG, PAIR, Transformer, keras, loaded, right, same, tf, topic, tree, values, weights

NUMBERS = topic("Precision and gradients")


@NUMBERS.works("float64, float32, bfloat16 and float16: `Transformer(config, dtype=...)`")
def _() -> None:
    for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-4), ("bfloat16", 0.5), ("float16", 0.05)):
        logits = loaded(dtype=dtype)(*PAIR)
        assert logits.dtype.name == dtype
        right(tf.cast(logits, tf.float64), tolerance=tolerance)


@NUMBERS.works("`mixed_bfloat16` and `mixed_float16`: variables in float32", sample=True)
def _() -> None:
    for policy, tolerance in (("mixed_bfloat16", 0.5), ("mixed_float16", 0.05)):
        model = loaded(dtype=keras.DTypePolicy(policy))
        assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
        logits = model(*PAIR)
        assert logits.dtype.name == policy.removeprefix("mixed_")
        right(tf.cast(logits, tf.float64), tolerance=tolerance)


@NUMBERS.works("`keras.config.set_dtype_policy`")
def _() -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = Transformer(CONFIG)
    finally:
        keras.config.set_dtype_policy(before)
    weights.load(model, values(), CONFIG)
    right(model(*PAIR))


@NUMBERS.works("`tf.GradientTape`, every variable", sample=True)
def _(model) -> None:
    with tf.GradientTape() as tape:
        logits = model(*PAIR)
    gradients = tape.gradient(logits, [*weights.variables(model, CONFIG).values()])
    named = dict(zip(weights.variables(model, CONFIG), gradients, strict=True))
    expected = transformer.transformer_vjp(tree(), CONFIG, *PAIR, cotangent=np.ones(logits.shape))["parameters"]
    same(named["decoder.layers.0.cross_attention.key.kernel"], expected["decoder"]["layers"]["0"]["cross_attention"]["key"]["kernel"])
    same(tf.convert_to_tensor(named["source_embedding.table"]), expected["source_embedding"]["table"])


@NUMBERS.works("nested tapes and `tf.autodiff.ForwardAccumulator`: Hessian times vector")
def _(model) -> None:
    kernel = model.encoder.layers[0].feed_forward.hidden.kernel.value

    def gradient():
        with tf.GradientTape() as tape:
            total = model.training_loss(*PAIR)
        return tape.gradient(total, kernel)

    with tf.GradientTape() as outer:
        product = tf.reduce_sum(gradient())
    with tf.autodiff.ForwardAccumulator(kernel, tf.ones_like(kernel)) as forward:
        value = gradient()
    same(outer.gradient(product, kernel), forward.jvp(value))


NUMBERS.works("`keras.RematScope(mode='full')`", lambda: _rematerialised("full"), sample=True)


@NUMBERS.works("`keras.RematScope(mode='list_of_layers')`, `'larger_than'` and `'activations'`")
def _() -> None:
    for mode in ("list_of_layers", "larger_than", "activations"):
        _rematerialised(mode)


NUMBERS.works(
    "dropout under `keras.RematScope`: the same is dropped when it is computed again",
    lambda: _rematerialised("full", dropout_rate=0.3, attention_dropout_rate=0.2),
)


def _rematerialised(mode: str, **rates: float) -> None:
    """Loss and gradients are those without the scope."""
    found = []
    for own in (None, mode):
        with keras.RematScope(mode=own, layer_names=["layers_0"], output_size_threshold=8):
            model = loaded(CONFIG.replace(**rates))
        for index, seed in enumerate(model.non_trainable_variables):
            seed.assign([index, 0])
        with tf.GradientTape() as tape:
            total = model.training_loss(*PAIR, training=True)
        gradients = tape.gradient(total, model.trainable_variables)
        found.append([total, *map(tf.convert_to_tensor, gradients)])
    for one, other in zip(*found, strict=True):
        same(one, other)
