"""The network of resnet_keras.py with one bug each."""

from functools import partial

import keras
from keras import layers
from resnet_keras import ResNet

epsilon = partial(ResNet, epsilon=1e-3)  # Keras' default in one norm


def same():
    """Uses SAME padding, which is asymmetric with strides."""
    net = ResNet()
    net.block2.pad1 = layers.Identity()
    net.block2.conv1 = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)
    return net


def later():
    """Puts the stride of a block in its second convolution instead of the first."""
    net = ResNet()
    net.block2.conv1 = layers.Conv2D(16, 3, padding="valid", use_bias=False)
    net.block2.conv2 = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)
    return net


class Early(ResNet):
    """Applies the stem's activation before its norm."""

    def call(self, x, training=False):
        x = self.bn(keras.ops.relu(self.stem(self.stem_pad(x))), training=training)
        x = self.pool(self.pool_pad(x))
        x = self.block2(self.block1(x, training=training), training=training)
        return self.fc(self.gap(x))
