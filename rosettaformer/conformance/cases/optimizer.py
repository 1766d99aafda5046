"""Cases of the update: Adam, gradient clipping and the learning rate."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case
from .build import Builder, rng

# tensors of every kind that weight decay treats differently
SHAPES = {
    "embedding.table": (11, 6), "hidden.kernel": (6, 7), "hidden.bias": (7,), "norm.scale": (6,), "norm.offset": (6,),
    "query.kernel": (6, 3, 2),
}  # fmt: skip
PAPER: dict[str, Any] = {"learning_rate": 0.03, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
DTYPES = ("float64", "float32")


def cases(build: Builder) -> Iterator[Case]:
    """Yields gradients so small that epsilon shows, the first step and later ones, weight decay; norms above and below the limit; every
    phase of the warm-up.
    """
    for case in (*_adam_cases(build), *_clip_cases(build), *_noam_cases(build)):
        yield dataclasses.replace(case, dtypes=DTYPES)


def _adam_cases(build: Builder) -> Iterator[Case]:
    def case(name: str, catches: str, step: int, scale: float = 1.0, **changes: Any) -> Case:
        generator = rng(f"adam {name}")
        trees = {
            "parameters": {key: generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "gradients": {key: scale * generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "first_moment": {key: (step > 1) * scale / 3 * generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "second_moment": {key: (step > 1) * scale**2 / 9 * generator.random(shape) for key, shape in SHAPES.items()},
        }
        given: dict[str, Any] = {f"{tree}.{key}": value for tree, arrays in trees.items() for key, value in arrays.items()}
        return build.make("adam", name, build.config(), catches, **given, **{"step": step, "weight_decay": 0.0} | PAPER | changes)

    yield case("first_step", "OPT2", 1)
    yield case("second_step", "OPT2", 2)
    yield case("later_step", "", 4000)
    yield case("small_gradients", "OPT1 OPT2 OPT7", 1, 1e-8)
    yield case("small_gradients_later", "OPT1 OPT2 OPT7", 3, 1e-8)
    yield case("large_epsilon", "OPT1 OPT2 OPT7", 3, 1e-3, epsilon=1e-3)
    yield case("zero_gradients", "", 3, 0.0)
    yield case("decay", "OPT2 OPT3 OPT4 OPT6", 3, weight_decay=0.1)
    yield case("decay_of_small_gradients", "OPT1 OPT2 OPT3 OPT4 OPT6 OPT7", 3, 1e-8, weight_decay=0.1)
    yield case("no_momentum", "OPT2", 2, beta_1=0.0, beta_2=0.999)


def _clip_cases(build: Builder) -> Iterator[Case]:
    generator = rng("clip gradients")
    gradients = {f"gradients.{name}": generator.standard_normal(shape) for name, shape in SHAPES.items()}  # of norm about 11
    factors = {"above": 1.0, "below": 1.0, "zero": 0.0, "small": 1e-20, "large": 1e15}
    for name, factor in factors.items():
        given: dict[str, Any] = {key: factor * value for key, value in gradients.items()}
        yield build.make("clip_global_norm", name, build.config(), **given, limit=100.0 if name == "below" else 1.0)


def _noam_cases(build: Builder) -> Iterator[Case]:
    for name, step, warmup in (("first", 1, 4000), ("warmup", 2000, 4000), ("warmup_end", 4000, 4000), ("late", 100_000, 4000)):
        yield build.make("noam", name, build.config(), "OPT5 OPT8" if name == "late" else "OPT5", step=step, warmup=warmup)
    yield build.make("noam", "no_warmup", build.config(), "OPT5", step=1, warmup=1)
    yield build.make("noam", "trace", build.config(), "OPT5 OPT8", step=np.arange(1, 30), warmup=10)
