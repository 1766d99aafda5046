"""A network whose layers are in private attributes, as in many Keras libraries."""

import keras
from keras import layers


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self._norm = layers.LayerNormalization(epsilon=1e-5)
        self._hidden = layers.Dense(width, activation="relu")

    def call(self, x):
        return self._hidden(self._norm(x))


class Net(keras.Model):
    def __init__(self, widths=(12, 7)):
        super().__init__()
        self._blocks = [Block(width) for width in widths]
        self._head = layers.Dense(5)

    def call(self, x):
        for block in self._blocks:
            x = block(x)
        return self._head(x)
