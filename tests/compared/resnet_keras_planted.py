"""The network of resnet_keras.py with one mistake each."""

from functools import partial

import keras
from keras import layers
from resnet_keras import ResNet

epsilon = partial(ResNet, epsilon=1e-3)  # Keras's own default in one norm


def same():
    """SAME, which is not symmetric where there are strides."""
    net = ResNet()
    net.block2.pad1 = layers.Identity()
    net.block2.conv1 = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)
    return net


def later():
    """The second convolution of a block has its stride, not the first."""
    net = ResNet()
    net.block2.conv1 = layers.Conv2D(16, 3, padding="valid", use_bias=False)
    net.block2.conv2 = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)
    return net


class Early(ResNet):
    """The activation of the stem comes before its norm."""

    def call(self, x, training=False):
        x = self.bn(keras.ops.relu(self.stem(self.stem_pad(x))), training=training)
        x = self.pool(self.pool_pad(x))
        x = self.block2(self.block1(x, training=training), training=training)
        return self.fc(self.gap(x))
