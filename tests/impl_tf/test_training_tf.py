"""Specifics of training in the TensorFlow port: Keras' optimizers and loops, and the origin of random keep masks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_training import CONFIG, batch

from impl_tf import optimizer
from impl_tf.dropout import Dropout
from impl_tf.programs.compiled import compiled
from impl_tf.schedule import Noam, noam
from impl_tf.transformer import Transformer


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_masks_are_the_same_eager_and_compiled(dtype: str) -> None:
    x = tf.ones((32, 64), dtype)
    results = [tf.cast(run(Dropout(0.3, seed=4, dtype=dtype))(x, training=True), "float64") for run in (lambda layer: layer, compiled)]
    np.testing.assert_allclose(*results, rtol=1e-2)


def test_rows_that_no_id_names_have_moments_that_decay():
    """Keras' update of sparse gradients is not used; an id that occurs twice counts twice."""
    tables = [keras.Variable(np.ones((5, 3)), dtype="float64") for _ in range(2)]
    rows = tf.IndexedSlices(tf.ones((3, 3), tf.float64), tf.constant([1, 3, 3]), tf.constant([5, 3]))
    for table, gradient in zip(tables, (rows, tf.convert_to_tensor(rows)), strict=True):
        adam = optimizer.adam(0.1, 0.9, 0.98, 1e-9)
        adam.build([table])
        adam.moments(table.value)[0].assign(tf.ones((5, 3), tf.float64))
        adam.apply([gradient])
        np.testing.assert_allclose(adam.moments(table.value)[0][:, 0], [0.9, 1.0, 0.9, 1.1, 0.9], rtol=1e-15)
    np.testing.assert_array_equal(*(table.numpy() for table in tables))


def test_the_optimiser_and_the_schedule_are_made_again_from_their_configs():
    for rate in (Noam(512, 4000), 0.25):
        first = optimizer.adam(rate, 0.9, 0.98, 1e-9, 0.1)
        again = keras.optimizers.deserialize(keras.optimizers.serialize(first))
        assert type(again) is type(first)
        assert again.get_config() == first.get_config()
        assert float(again.learning_rate) == float(first.learning_rate)


def test_the_first_update_is_made_at_step_1():
    assert float(optimizer.adam(Noam(512, 4000), 0.9, 0.98, 1e-9).learning_rate) == float(noam(1, 512, 4000))


@pytest.mark.conformance
def test_fit_trains_with_our_optimiser_and_schedule():
    model = Transformer(CONFIG.replace(dropout_rate=0.1))
    source, target = keras.Input((7,), dtype="int64"), keras.Input((5,), dtype="int64")
    outer = keras.Model([source, target], model(source, target))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outer.compile(optimizer=optimizer.adam(Noam(12, 10), 0.9, 0.98, 1e-9), loss=loss, jit_compile=False)
    source, target = batch()
    losses = outer.fit([source, target[:, :-1]], target[:, 1:], epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
