"""The plain files of the guide: those of Keras and JAX are the one of NumPy in other words."""

import functools
import re
from importlib import resources

FOLDER = resources.files(__package__) / "snippets" / "components"
# file -> patterns in the file of NumPy and what stands for them in this one, replaced one after the other
WORDS = {
    "plain_keras.py": (
        ("plain NumPy", "plain Keras"),
        ("port_numpy", "port_keras"),
        ("import numpy as np", "import keras\nfrom keras import ops"),
        (r"np.random.default_rng\(seed\).random\((.+?)\)", r"keras.random.uniform(\1, seed=seed)"),
        (r"uniform\(x.shape, seed=seed\)", "uniform(x.shape, seed=seed, dtype=x.dtype)"),
        (r"np.random.default_rng\(seed\).standard_normal\(shape\)", "keras.random.normal(shape, seed=seed)"),
        (r"np.vectorize\(math.erf\)", "ops.erf"),
        ("-np.inf", "-math.inf"),
        (r"\bnp\.", "ops."),
        (r'parameters\["table"\]\[(.+)\]$', r'ops.take(parameters["table"], \1, axis=0)'),
        (r"(position_bt\[.+\]) \* (frequency_\w)", r"ops.multiply(\1, \2)"),
        (r"\(-slope_h11 \* distance_ts\)", "ops.multiply(-slope_h11, distance_ts)"),
        (r"(ops.stack\(.+\)).reshape\((.+)\)", r"ops.reshape(\1, \2)"),
        (r"(ops.sum\(ops.where\(.+\)\)) / (ops.sum\(mask_bt\))", r"ops.divide(\1, \2)"),
        (r"(token_bn\[.+?\]) == (ops.arange\(.+?\]\))", r"ops.equal(\1, \2)"),
        (', kind="stable"', ""),
        (r", bool\)", ', "bool")'),
    ),
    "plain_flax.py": (
        ("plain NumPy", "plain JAX"),
        ("port_numpy", "port_flax"),
        ("import numpy as np", "import jax\nimport jax.numpy as jnp\nimport numpy as np"),
        (r"\bnp\.(?!arange\((width|pairs)\))", "jnp."),  # constants are NumPy's
        (r"jnp.vectorize\(math.erf\)", "jax.lax.erf"),
        (r"jnp.random.default_rng\(seed\).random\((.+?)\)", r"jax.random.uniform(jax.random.key(seed), \1)"),
        (r"jnp.random.default_rng\(seed\).standard_normal\(", "jax.random.normal(jax.random.key(seed), "),
        ('kind="stable"', "stable=True"),
    ),
}


@functools.cache
def text(file: str) -> str:
    """Returns the text of a file."""
    found = (FOLDER / ("plain_numpy.py" if file in WORDS else file)).read_text(encoding="utf-8")
    for pattern, words in WORDS.get(file, ()):
        found = re.sub(pattern, words, found, flags=re.MULTILINE)
    return found
