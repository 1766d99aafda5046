"""Cases of components that draw random numbers: they are judged by statistics."""

from collections.abc import Iterator
from typing import Any

from ..case import Case
from .build import Builder, rng

# So large that the statistics of every kernel tell one formula for its fans from another, and small enough that many draws are quick.
SIZES = {"model_width": 48, "key_size": 16, "value_size": 24, "feed_forward_width": 64, "encoder_layers": 1, "decoder_layers": 1}
DTYPES = ("float64", "float32")


def cases(build: Builder) -> Iterator[Case]:
    """Yields a fresh model of each kind of head; dropout of vectors and of attention weights."""
    for dialect in ("semillero", "keras_lab"):
        config = build.config(dialect, source_vocabulary=97, target_vocabulary=97, **SIZES)
        yield build.make("initialise", dialect, config, "INI1 INI2", dtypes=DTYPES, seed=1007)
    alone: dict[str, Any] = {"max_positions": 32, "source_vocabulary": 97, "target_vocabulary": 97}
    for name, dialect, own in (
        ("bert", "bert_base", {"segments": 16, "classes": 32, "decoder_layers": 0}),
        ("gpt2", "gpt2_small", {"encoder_layers": 0}),
    ):
        config = build.config(dialect, **SIZES | alone | own)
        yield build.make("initialise", name, config, "INI1 INI2", dtypes=DTYPES, seed=1007)
    for name, catches, shape in (("vectors", "", (48, 32, 24)), ("weights", "DRP5", (16, 6, 16, 24))):
        x = rng(f"random dropout {name}").uniform(0.5, 1.5, shape)
        yield build.make("random_dropout", name, build.config(dropout_rate=0.3), catches, dtypes=DTYPES, x=x, seed=1007)
