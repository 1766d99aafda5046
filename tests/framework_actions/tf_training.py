"""`fit` and `evaluate`, loops of one's own."""

from functools import partial

import numpy as np
import tensorflow as tf

from impl_tf.framework import keras
from impl_tf.transformer import Transformer
from reference_numpy import transformer

from . import tf_models
from .tf_models import CONFIG, LABELS, MASK, PAIR, QUIET, RATE, equals_itself, loaded, loss, reference, same, stepped, topic, trained

FIT = topic("`fit` and `evaluate`")
MAPPING = dict(zip(("source", "target"), PAIR, strict=True))


class Generator(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int):
        return MAPPING, LABELS


DATA = {
    "a tuple": lambda: (PAIR, LABELS), "a list": lambda: (list(PAIR), LABELS), "a dict": lambda: (MAPPING, LABELS),
    "a `tf.data.Dataset`": lambda: (tf.data.Dataset.from_tensor_slices((MAPPING, LABELS)).batch(4),),
    "a `keras.utils.PyDataset`": lambda: (Generator(),),
}  # fmt: skip


def fits(make) -> None:
    given, model = make(), trained(loaded())
    model.fit(*given, verbose=0, **({} if len(given) == 1 else {"batch_size": 4}))
    stepped(model)


for name, make in DATA.items():
    FIT.works(f"`fit` of {name}: a step of gradient descent is the reference's", partial(fits, make), sample=name == "a dict")


@FIT.works("`fit` with masks in the dict")
def _() -> None:
    history = trained(loaded()).fit(MAPPING | {"source_mask_bs": MASK}, LABELS, **QUIET).history
    same(history["loss"], loss()(LABELS, reference(source_mask_bs=MASK)), 1e-6)  # Keras keeps the sum in float32


@FIT.works("`evaluate`, `test_on_batch`, `metrics=['sparse_categorical_accuracy']`")
def _() -> None:
    model = trained(loaded(), metrics=["sparse_categorical_accuracy"])
    expected = float(loss()(LABELS, reference())), (reference().argmax(-1) == LABELS).mean()
    same(model.evaluate(PAIR, LABELS, batch_size=2, verbose=0), expected, 1e-6)
    same(model.test_on_batch(PAIR, LABELS), expected, 1e-6)


@FIT.works("`sample_weight` of every token")
def _() -> None:
    weight = (LABELS % 2).astype("float64")
    same(trained(loaded()).evaluate(PAIR, LABELS, sample_weight=weight, **{k: v for k, v in QUIET.items() if k != "shuffle"}),
         loss()(LABELS, reference(), weight), 1e-6)  # fmt: skip


@FIT.works("`validation_split` and `validation_data`")
def _() -> None:
    for options in ({"validation_split": 0.5}, {"validation_data": (PAIR, LABELS)}):
        model = trained(loaded())
        assert np.isfinite(model.fit(PAIR, LABELS, **QUIET, **options).history["val_loss"]).all()
        equals_itself(model)


@FIT.works("`compile` with `jit_compile=True`, with `run_eagerly=True`, with `steps_per_execution=2`")
def _() -> None:
    for name, value in (("jit_compile", True), ("run_eagerly", True), ("steps_per_execution", 2)):
        model = trained(loaded(), **{name: value})
        model.fit(PAIR, LABELS, **QUIET | {"batch_size": 4 // int(value)})
        (equals_itself if value == 2 else stepped)(model)


@FIT.works("`fit` under `mixed_bfloat16`, and under `mixed_float16` with its LossScaleOptimizer")
def _() -> None:
    for policy, tolerance in (("mixed_bfloat16", 0.05), ("mixed_float16", 0.01)):
        model = trained(loaded(dtype=keras.DTypePolicy(policy)))
        model.fit(PAIR, LABELS, **QUIET)
        stepped(model, tolerance)


@FIT.works("dropout in `fit`, none in `evaluate` and `predict`")
def _() -> None:
    model = trained(loaded(CONFIG.replace(dropout_rate=0.5)))
    model.fit(PAIR, LABELS, **QUIET)
    same(model.predict(PAIR, verbose=0), model(*PAIR))
    assert float(model.training_loss(*PAIR, training=True)) != float(model.training_loss(*PAIR, training=True))


@FIT.works("`keras.utils.set_random_seed`: the same dropout again")
def _() -> None:
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        found.append(loaded(CONFIG.replace(dropout_rate=0.5)).training_loss(*PAIR, training=True))
    assert float(found[0]) == float(found[1])


@FIT.works("a `train_step` of one's own with `training_loss`")
def _() -> None:
    class Own(Transformer):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                total = self.training_loss(*data, training=True)
            self.optimizer.apply(tape.gradient(total, self.trainable_variables), self.trainable_variables)
            return {"cross_entropy": total}

    model = Own(CONFIG, dtype="float64")
    model.build()
    model.set_weights(loaded().get_weights())
    model.compile(keras.optimizers.SGD(RATE), jit_compile=False)
    found = model.fit(*PAIR, **QUIET).history["cross_entropy"]
    same(found, transformer.training_loss(tf_models.tree(), CONFIG, *PAIR))
    equals_itself(model)


@FIT.works("a loop of one's own: `tf.function`, tape, `optimizer.apply`", sample=True)
def _(model) -> None:
    optimizer = keras.optimizers.SGD(RATE)

    @tf.function
    def step(source, target, label):
        with tf.GradientTape() as tape:
            total = loss()(label, model(source, target, training=True))
        optimizer.apply(tape.gradient(total, model.trainable_variables), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    step(*PAIR, LABELS)
    stepped(model)


@FIT.works("freezing: `model.encoder.trainable = False`")
def _(model) -> None:
    model.encoder.trainable = False
    trained(model).fit(PAIR, LABELS, **QUIET)
    assert all(name.startswith("encoder.") != changed for name, changed in tf_models.moved(loaded(), model).items())
