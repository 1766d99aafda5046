"""The port file of the plain versions in Keras, computed in float64."""

import keras
import plain_keras
from plain_port import Port

keras.config.set_floatx("float64")
dtypes = ("float64",)
globals().update(Port(plain_keras, keras.ops.convert_to_tensor, keras.ops.convert_to_numpy).functions())
