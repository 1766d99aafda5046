"""The port file of the plain versions in NumPy."""

import numpy as np
import plain_numpy
from plain_port import Port

dtypes = ("float64",)
globals().update(Port(plain_numpy, np.asarray).functions())
