"""Every component in plain JAX: the functions of `plain_numpy.py` in the words of JAX."""

from rosettaformer.guide.plain_files import text

exec(compile(text("plain_flax.py"), "plain_flax.py in words of JAX", "exec"))
