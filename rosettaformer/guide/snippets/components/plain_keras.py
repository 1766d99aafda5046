"""Every component in plain Keras: the functions of `plain_numpy.py` in the words of Keras."""

from rosettaformer.guide.plain_files import text

exec(compile(text("plain_keras.py"), "plain_keras.py in words of Keras", "exec"))
