"""Residual blocks as keras.applications has them: the first 1 x 1 convolution has the stride, and every convolution a bias."""

import keras
from keras import layers


def bottleneck(x, width, stride, name):
    shortcut = layers.Conv2D(4 * width, 1, strides=stride, name=name + "_0_conv")(x)
    shortcut = layers.BatchNormalization(epsilon=1.001e-5, name=name + "_0_bn")(shortcut)
    x = layers.Conv2D(width, 1, strides=stride, name=name + "_1_conv")(x)
    x = layers.Activation("relu")(layers.BatchNormalization(epsilon=1.001e-5, name=name + "_1_bn")(x))
    x = layers.Conv2D(width, 3, padding="same", name=name + "_2_conv")(x)
    x = layers.Activation("relu")(layers.BatchNormalization(epsilon=1.001e-5, name=name + "_2_bn")(x))
    x = layers.Conv2D(4 * width, 1, name=name + "_3_conv")(x)
    x = layers.BatchNormalization(epsilon=1.001e-5, name=name + "_3_bn")(x)
    return layers.Activation("relu")(layers.Add()([shortcut, x]))


def net():
    inputs = keras.Input((32, 32, 3))
    x = bottleneck(bottleneck(inputs, 6, 1, "conv2_block1"), 10, 2, "conv3_block1")
    return keras.Model(inputs, layers.Dense(7, name="predictions")(layers.GlobalAveragePooling2D()(x)))
