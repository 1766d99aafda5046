"""Actions of users of Keras and TensorFlow."""

from . import Actions

ACTIONS = Actions("tf")
