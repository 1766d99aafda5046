"""The same residual network in Keras. Padding is explicit, since SAME is asymmetric with strides."""

import keras
from keras import layers


class Block(layers.Layer):
    def __init__(self, filters, stride=1, project=False, epsilon=1e-5):
        super().__init__()
        self.pad1 = layers.ZeroPadding2D(1)
        self.conv1 = layers.Conv2D(filters, 3, strides=stride, padding="valid", use_bias=False)
        self.bn1 = layers.BatchNormalization(momentum=0.9, epsilon=epsilon)
        self.conv2 = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.bn2 = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        self.relu = layers.ReLU()
        self.shortcut = self.shortcut_bn = None
        if project:
            self.shortcut = layers.Conv2D(filters, 1, strides=stride, use_bias=False)
            self.shortcut_bn = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)

    def call(self, x, training=False):
        identity = x if self.shortcut is None else self.shortcut_bn(self.shortcut(x), training=training)
        x = self.relu(self.bn1(self.conv1(self.pad1(x)), training=training))
        x = self.bn2(self.conv2(x), training=training)
        return self.relu(x + identity)


class ResNet(keras.Model):
    def __init__(self, classes=4, epsilon=1e-5):
        super().__init__()
        self.stem_pad = layers.ZeroPadding2D(3)
        self.stem = layers.Conv2D(8, 7, strides=2, use_bias=False)
        self.bn = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        self.pool_pad = layers.ZeroPadding2D(1)
        self.pool = layers.MaxPooling2D(3, strides=2)
        self.block1 = Block(8)
        self.block2 = Block(16, stride=2, project=True, epsilon=epsilon)
        self.gap = layers.GlobalAveragePooling2D()
        self.fc = layers.Dense(classes)

    def call(self, x, training=False):
        x = keras.ops.relu(self.bn(self.stem(self.stem_pad(x)), training=training))
        x = self.pool(self.pool_pad(x))  # zeros are equivalent to -inf after relu
        x = self.block2(self.block1(x, training=training), training=training)
        return self.fc(self.gap(x))
