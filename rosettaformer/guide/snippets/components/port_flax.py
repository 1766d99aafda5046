"""The port file of the plain versions in JAX, computed in float64."""

import jax
import plain_flax
from plain_port import Port

jax.config.update("jax_enable_x64", True)
dtypes = ("float64",)
globals().update(Port(plain_flax, jax.numpy.asarray).functions())
