"""Each private Keras name that impl_tf uses still works as expected."""

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from canaries import overridden, sing

import impl_tf
from impl_tf import framework
from impl_tf.optimizer import Adam
from impl_tf.transformer import Transformer
from reference_numpy import preset


class Doubled(framework.Traced):
    """Multiplies by a weight, and records the training mode of its calls."""

    def build(self, input_shape: object = None) -> None:
        self.scale = self.add_weight(initializer="ones", name="scale")
        self.seen: list[bool | None] = []

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        self.seen.append(training)
        return x * self.scale.value


def _recomputed() -> None:
    with keras.RematScope(mode="full"):
        layer = Doubled()
        layer.build()
        with tf.GradientTape() as tape:
            y = layer(tf.ones([2]), training=True)
        gradient = tape.gradient(y, layer.scale.value)
    assert float(gradient) == 2 and len(layer.seen) > 1 and {*layer.seen} == {True}


def _parts() -> None:
    model = Transformer(preset("tiny"))
    model.part = keras.layers.Dense(3)
    model.part.below = keras.layers.Dropout(0.5)
    assert {*map(id, framework.other_layers(model))} == {id(model.part), id(model.part.below)}


def _unlocked() -> None:
    layer = Doubled()
    layer.build()
    layer.built = True
    layer(tf.ones([2]))
    with framework.unlocked(layer):
        layer.more = layer.add_weight(name="more")
    assert len(layer.trainable_variables) == 2


def _optimizer() -> None:
    variables = [keras.Variable([1.0, 2.0], name=name) for name in ("kernel", "bias")]
    optimizer = Adam(0.1, 0.9, 0.98, 1e-9, 0.1)
    optimizer.build(variables)
    for given in (variables, [variable.value for variable in variables]):
        assert [framework.variable_index(optimizer, one) for one in given] == [0, 1]
        assert [framework.decays(optimizer, one) for one in given] == [True, False]


def _mask() -> None:
    x_btd = keras.layers.Masking()(tf.constant([[[1.0], [0.0]]]))
    assert framework.attached_mask(x_btd).numpy().tolist() == [[True, False]]


CANARIES: dict[str, Callable[[], None]] = {
    "keras.layers.Layer._remat_mode": _recomputed,
    "keras.layers.Layer._get_call_context": _recomputed,
    "keras.layers.Layer._flatten_layers": _parts,
    "keras.layers.Layer._tracker": _unlocked,
    "keras.optimizers.Optimizer._get_variable_index": _optimizer,
    "keras.optimizers.Optimizer._use_weight_decay": _optimizer,
    "tf.Tensor._keras_mask": _mask,
}


@pytest.mark.parametrize("name", framework.PRIVATE)
def test_a_private_name_of_keras_does_what_it_is_used_for(name: str) -> None:
    sing(name, framework.PRIVATE, CANARIES[name])


def test_only_the_framework_file_overrides_private_names_of_tensorflow_and_keras() -> None:
    assert not [name for module, name in overridden(impl_tf) if module != "impl_tf.framework"]
