"""How far a training run may lie from the reference's, step by step: derived from the reference's own runs in other summation orders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe
from reference_numpy.training import Trainer

from ..conformance.case import Case
from ..conformance.reference import tolerance

__all__ = ["LOSS", "RELATIVE", "Allowed", "Envelope", "is_unseen"]

LOSS = "loss"
RELATIVE = 1e-9  # of a tensor's largest value: what a float64 run may be away
_PREFIX = "parameters."
_UNSEEN = ".key.bias"


def is_unseen(name: str) -> bool:
    """Whether the loss does not see a parameter: the bias of an attention's keys adds the same to all logits of a query.

    Softmax ignores that, so the gradient is 0 and what is computed is rounding, which Adam makes steps of.
    """
    return name.endswith(_UNSEEN)


@dataclass(frozen=True)
class Allowed:
    """The reference's value of the loss or of a parameter after a step, and the largest error that stays together with it."""

    reference: np.ndarray
    bound: float

    @property
    def scale(self) -> float:
        """What relative distances are relative to: the largest value, or 1 where all are 0."""
        return float(np.abs(self.reference).max()) or 1.0


class Envelope:
    """The reference's run in float64 from the given parameters, and the same run in their dtype in every summation order.

    float32: an error may be `MAX_FACTOR max_i max|c_i - r| + ulp` at every step, with r the float64 run and c_i the run in one order, each
    from the beginning: the bound grows as rounding grows. float64: RELATIVE of r's largest value; but a parameter that `is_unseen` as in
    float32, with r the run in the plain order.
    """

    def __init__(self, config: TransformerConfig, recipe: Recipe, values: Mapping[str, np.ndarray]) -> None:
        self.dtype = str(next(iter(values.values())).dtype)
        self._case = Case("step", "training", config, {}, dtype=self.dtype)
        self._start, self._runs = (config, recipe, dict(values)), [Trainer(config, recipe, _wide(values))]
        self._unseen = any(map(is_unseen, values))

    def step(self, *batch: Any) -> dict[str, Allowed]:
        """One step of all runs: what the loss before it and every parameter after it may be."""
        if self.dtype == "float32":
            expected = self._expected(batch)
            return {name: Allowed(value.reference, value.bound) for name, value in expected.items()}
        reference = _advanced(self._runs[0], batch)
        allowed = {name: Allowed(value, RELATIVE * float(np.abs(value).max())) for name, value in reference.items()}
        if self._unseen:
            expected = self._expected(batch, reference)
            allowed |= {name: Allowed(value.reference, value.bound) for name, value in expected.items()}
        return allowed

    def _expected(self, batch: Any, reference: Mapping[str, np.ndarray] | None = None) -> dict[str, tolerance.Expectation]:
        """The policy's expectation of what a step gives; where the reference is there already, of the unseen parameters alone."""
        index = 0

        def answer(case: Case) -> dict[str, np.ndarray]:
            nonlocal index
            trainer, first = self._run(index), index == 0
            index += 1
            values = reference if reference is not None and first else _advanced(trainer, batch)
            return dict(values) if reference is None else {name: value for name, value in values.items() if is_unseen(name)}

        return tolerance.expect(self._case, answer)

    def _run(self, index: int) -> Trainer:
        """The run of that index: 0 is r; the others, as many as the policy has orders, begin when they are first asked."""
        if index == len(self._runs):
            self._runs.append(Trainer(*self._start))
        return self._runs[index]


def _advanced(trainer: Trainer, batch: Any) -> dict[str, np.ndarray]:
    """The loss and the parameters of one step."""
    value = trainer.train_step(*batch)
    state = trainer.state()
    dtype = next(iter(state.values())).dtype
    values = {name.removeprefix(_PREFIX): array for name, array in state.items() if name.startswith(_PREFIX)}
    return {LOSS: np.asarray(value, dtype)} | values


def _wide(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in values.items()}
