"""Bounds a training run's distance from the reference, by running it in other summation orders."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe
from reference_numpy.training import Trainer

from ...judge.case import Case
from ...judge.expectation import tolerance
from ...judge.expectation.tolerance import Expectation
from .backends import parameters_of

LOSS = "loss"
RELATIVE = 1e-9  # tolerance of a float64 run, relative to a tensor's largest value


def is_unseen(name: str) -> bool:
    """Whether the loss ignores a parameter: the key bias, which adds a constant per query.

    Softmax ignores it. Its gradient is 0, but its computed gradient is rounding error, which Adam
    turns into steps.
    """
    return name.endswith(".key.bias")


class Envelope:
    """The reference's run in float64, and in the parameters' dtype in every summation order.

    float32: the bound at each step is `MAX_FACTOR max_i max|c_i - r| + ulp`, where r is the float64
    run and c_i is the run in order i, each from the start, so that the bound grows like rounding
    does. float64: RELATIVE of r's largest value; parameters that are `is_unseen` have the bound of
    float32, with r the run in the plain order.
    """

    def __init__(self, config: TransformerConfig, recipe: Recipe, values: Mapping[str, np.ndarray]) -> None:
        self.dtype = str(next(iter(values.values())).dtype)
        self._case = Case("step", "training", config, {}, dtype=self.dtype)
        wide = {name: value.astype(np.float64) for name, value in values.items()}
        self._start, self._runs = (config, recipe, dict(values)), [Trainer(config, recipe, wide)]
        self._unseen = any(map(is_unseen, values))

    def step(self, *batch: Any) -> dict[str, Expectation]:
        """Advances all runs; returns the loss before and all parameters after it, with bounds."""
        if self.dtype == "float32":
            return self._expected(batch)
        reference = _advanced(self._runs[0], batch)
        units = {name: RELATIVE * float(np.abs(value).max()) for name, value in reference.items()}
        allowed = {name: Expectation(value, value.dtype, noise=0.0, noise_rmse=0.0, unit=units[name]) for name, value in reference.items()}
        return allowed | (self._expected(batch, reference) if self._unseen else {})

    def _expected(self, batch: Any, reference: dict[str, np.ndarray] | None = None) -> dict[str, Expectation]:
        """Returns the expectation of a step; with `reference`, only of the unseen parameters.

        The policy asks for r first, then for one run per order; runs start on first use.
        """
        indexes = itertools.count()

        def answer(case: Case) -> dict[str, np.ndarray]:
            if (index := next(indexes)) == len(self._runs):
                self._runs.append(Trainer(*self._start))
            if reference is None:
                return _advanced(self._runs[index], batch)
            values = _advanced(self._runs[index], batch) if index else reference
            return {name: value for name, value in values.items() if is_unseen(name)}

        return tolerance.expect(self._case, answer)


def _advanced(trainer: Trainer, batch: Any) -> dict[str, np.ndarray]:
    """Returns the loss and the parameters of one step."""
    value = trainer.train_step(*batch)
    values = parameters_of(trainer.state())
    return {LOSS: np.asarray(value, next(iter(values.values())).dtype)} | values
