"""Facts about the wrong outputs of a port on a mesh, each verified on every wrong output."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reference_numpy import parameters
from reference_numpy.sharding import splits

from ...case import Case
from ...compare import compare
from ...expectation.components import forward_of, model_of
from ...expectation.tolerance import Expectation
from ..symptoms.answered import Answered, Run
from ..words import SHOWN, listed

PARAMETERS = "parameters."


@dataclass(frozen=True, eq=False)
class Reply:
    """One case in its dtype, with the expected and the actual outputs."""

    case: Case
    expected: Mapping[str, Expectation]
    given: Mapping[str, np.ndarray]

    @functools.cached_property
    def outputs(self) -> dict[str, Answered]:
        """The outputs that can be compared."""
        run, given = Run(self.case), self.case.part(self.given)
        return {
            name: Answered(run, name, one, given[name])
            for name, one in self.expected.items()
            if isinstance(given.get(name), np.ndarray) and not one.incomparable
        }

    @functools.cached_property
    def wrong(self) -> list[str]:
        """The outputs that differ."""
        return [name for name, output in self.outputs.items() if compare(output.expectation, output.answer).excess > 1]

    @property
    def wrong_gradients(self) -> list[str]:
        """The names of the parameters whose gradients are wrong."""
        return [name.removeprefix(PARAMETERS) for name in self.wrong if name.startswith(PARAMETERS)]

    @property
    def right_gradients(self) -> list[str]:
        """The names of the parameters whose gradients are right and not zero by construction."""
        own = [name for name, output in self.outputs.items() if name.startswith(PARAMETERS) and not output.expectation.whole]
        return [name.removeprefix(PARAMETERS) for name in own if name not in self.wrong]

    def equals(self, predicted: Mapping[str, np.ndarray]) -> bool:
        """Whether every output equals the prediction, where NaN matches any number."""
        return all(name in predicted and self._equals(output, predicted[name]) for name, output in self.outputs.items())

    def determined(self, predicted: Mapping[str, np.ndarray]) -> bool:
        """Whether the prediction has a number for some wrong element."""
        return any((output.off & ~np.isnan(predicted[name])).any() for name in self.wrong if (output := self.outputs[name]).shaped)

    @staticmethod
    def _equals(output: Answered, predicted: np.ndarray) -> bool:
        known = ~np.isnan(predicted)
        if known.all() or predicted.shape != output.got.shape:
            return output.near(predicted)
        return output.near(np.where(known, predicted, output.got), known)

    def gradient(self, name: str) -> Answered:
        """The gradient of a parameter."""
        return self.outputs[PARAMETERS + name]


SAME = 1e-6  # relative difference up to which two factors count as equal


def facts(failing: Sequence[Reply], right: Sequence[Reply]) -> list[str]:
    """The facts about the wrong outputs, in words. right: the correct ones."""
    return [*_forward(failing, right), *_losses(failing), *_steps(failing), *_gradients(failing)]


def _forward(failing: Sequence[Reply], right: Sequence[Reply]) -> Iterator[str]:
    own = [reply for reply in failing if "output" in reply.wrong and reply.outputs["output"].answer.ndim]
    if not own:
        return
    beside = [reply for reply in right if "output" in reply.outputs and reply.case.component == own[0].case.component]
    if beside and all(_rows(reply) > 1 for reply in own) and all(_rows(reply) == 1 for reply in beside):
        yield "outputs are right for one row and wrong for several"
    found = [_moved_rows(reply) for reply in own]
    if all(found):
        yield from dict.fromkeys(found)


def _rows(reply: Reply) -> int:
    return len(reply.outputs["output"].answer)


def _moved_rows(reply: Reply) -> str:
    """How rows are permuted, or that only the first device's are right; else empty."""
    output = reply.outputs["output"]
    if not output.shaped or len(output.got) < 2:
        return ""
    same = _same_rows(reply)
    places = [int(row.argmax()) if row.sum() == 1 else -1 for row in same]
    if all(place >= 0 for place in places):
        return f"the rows of your output are rows {places} of the reference"
    most = -(-len(places) // reply.case.mesh.data) if reply.case.mesh else 0
    if 0 < most < len(places) and [index for index, row in enumerate(same) if row[index]] == list(range(most)):
        return "only the rows in the first part of the batch are right"
    return ""


def _same_rows(reply: Reply) -> np.ndarray:
    """Which rows of the output equal which of the reference, at tokens real in both."""
    output, real_bt = reply.outputs["output"], reply.case.real_bt
    allowed, count = output.allowed(output.reference), len(output.got)
    same = np.zeros((count, count), bool)
    for i, j in np.ndindex(count, count):
        near = output.close(output.got[i], output.reference[j], allowed)
        if real_bt is not None and near.ndim == 2 and len(near) == real_bt.shape[1]:
            near = near[real_bt[i] & real_bt[j]]
        same[i, j] = near.size > 0 and near.all()
    return same


def _losses(failing: Sequence[Reply]) -> Iterator[str]:
    found = [
        (reply, name) for reply in failing for name in ("loss", "output") if name in reply.wrong and not reply.outputs[name].answer.ndim
    ]
    ratios = [float(reply.outputs[name].got) / float(reply.outputs[name].reference) for reply, name in found]
    if ratios:
        yield f"the loss is {_range(ratios)} times the correct loss"


def _range(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.4g}", f"{max(ratios):.4g}"
    return low if low == high else f"{low} to {high}"


def _steps(failing: Sequence[Reply]) -> Iterator[str]:
    """Whether training goes wrong with the first loss or later."""
    losses = [reply.outputs["losses"] for reply in failing if "losses" in reply.outputs and reply.outputs["losses"].shaped]
    off = [output.off for output in losses]
    if off and all(each[0] for each in off):
        yield "the loss before the first step is wrong"
    elif off and not any(each[0] for each in off):
        yield "the loss before the first step is right, so a gradient or the update is wrong"


def _gradients(failing: Sequence[Reply]) -> Iterator[str]:
    own = [reply for reply in failing if reply.wrong_gradients and reply.case.component != "training_steps"]
    if not own:
        return
    order = list(own[0].case.parameters)
    wrong = [name for name in order if any(name in reply.wrong_gradients for reply in own)]
    right = [name for name in order if all(name in reply.right_gradients for reply in own)]
    factors = {name: _factor([reply for reply in own if name in reply.wrong_gradients], name) for name in wrong}
    every = "every gradient" if not right else f"{len(wrong)} of {len(wrong) + len(right)} gradients"
    verb = "are" if right and len(wrong) > 1 else "is"
    numbers = [factor for factor in factors.values() if factor is not None]
    if len(numbers) == len(wrong) and np.ptp(numbers) <= SAME * abs(numbers[0]):
        yield f"{every} {verb} {numbers[0]:.6g} times the correct one: {_listed(own[0].case, wrong)}"
        return
    yield f"{every} {verb} wrong" + f": {_listed(own[0].case, wrong)}" * bool(right)
    if (first := _first(order, wrong, right)) and right:
        yield f"{first} is the first wrong gradient in backward order; all before it are right"
    for name in wrong[::-1][: SHOWN if right else 1]:
        yield f"{name} is {_ratio([reply for reply in own if name in reply.wrong_gradients], name, factors[name])}"


def _first(order: Sequence[str], wrong: Sequence[str], right: Sequence[str]) -> str:
    """The first wrong gradient in backward order; empty unless those before it are right."""
    last = wrong[-1]
    after = order[order.index(last) + 1 :]
    return last if after and set(after) <= set(right) else ""


def _listed(case: Case, names: Sequence[str]) -> str:
    """The names in backward order, each with its split."""
    return listed([f"{name} ({_split(case, name)})" for name in names[::-1]])


def _factor(replies: Sequence[Reply], name: str) -> float | None:
    """The factor from the correct gradient to the port's in every case; None if none."""
    gradients = [reply.gradient(name) for reply in replies]
    found = [gradient.factor(gradient.got, gradient.reference) if gradient.shaped else None for gradient in gradients]
    known = [factor for factor in found if factor is not None]
    return float(np.mean(known)) if known and len(known) == len(found) and np.ptp(known) <= SAME * abs(known[0]) else None


def _ratio(replies: Sequence[Reply], name: str, factor: float | None) -> str:
    if factor is not None:
        return f"the correct gradient times {factor:.6g}"
    gradients = [reply.gradient(name) for reply in replies]
    if any(not gradient.shaped or not np.isfinite(gradient.got).all() for gradient in gradients):
        return "not finite or has the wrong shape"
    norms = [float(np.linalg.norm(gradient.got) / np.linalg.norm(gradient.reference)) for gradient in gradients]
    return f"no multiple of the correct gradient; its norm is {_range(norms)} times as large"


def _split(case: Case, name: str) -> str:
    """How a parameter is split, such as `h over model, d over data`, or `whole`."""
    if case.mesh is None:
        return "whole"
    component = model_of(forward_of(case.component) or case.component)
    places = zip(parameters.axes(case.config, component)[name].split(), splits(case.config, case.mesh, component)[name], strict=True)
    found = [f"{letter} over {' and '.join(place) if isinstance(place, tuple) else place}" for letter, place in places if place]
    return ", ".join(found) or "whole"
