"""What the model says in each implementation: its likeliest tokens or classes, and whether any choice flips within the error."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...judge.compare import Comparison, compare
from ...judge.expectation import components
from ...judge.expectation.tolerance import expectation
from ...use.inference.classification import Labels, probabilities
from ..engine.beside import Beside
from ..numbers import number
from .layer_errors import whole_case
from .subject import Subject

SHOWN = 5
COUNTS = {3: "three", 4: "four", 5: "five"}
TOKENS = Labels((), "softmax")


@dataclass(frozen=True)
class Candidate:
    """A token or class: its text, and its probability in the reference and in each implementation; in a regression its number."""

    word: str
    reference: float
    found: Mapping[str, float]


@dataclass(frozen=True)
class Place:
    """Where something is said, with the reference's likeliest candidates. margin: between the logits of the first two, or of a label and
    0; infinite where nothing is chosen. errors: the largest error of a logit here, by implementation.
    """

    title: str
    candidates: Sequence[Candidate]
    margin: float
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Flip:
    """A choice of an implementation, `found`, that is not the reference's. place: where. margin: see `Place`. allowed: the largest error
    that passes.
    """

    name: str
    place: str
    reference: str
    found: str
    margin: float
    error: float
    allowed: float

    @property
    def explained(self) -> bool:
        """Whether errors that pass, of both logits, can turn the choice."""
        return self.margin <= 2 * self.allowed


@dataclass(frozen=True)
class Predictions:
    """choices: how many are made: greedily at every position, or of a class. margin: the smallest of them. close: how many have a margin
    of at most twice the largest error there, which could turn them. found: how the logits compare, by implementation.
    """

    component: str
    dtype: str
    choices: int
    margin: float
    close: int
    found: Mapping[str, Comparison]
    places: Sequence[Place] = ()
    flips: Sequence[Flip] = ()

    @property
    def error(self) -> float:
        """The largest error of a logit in any implementation."""
        return max((one.error for one in self.found.values()), default=0.0)

    @property
    def sentence(self) -> str:
        """Says whether all choose the same."""
        if not self.choices:
            return f"The model gives numbers and chooses nothing; the largest error is {number(self.error)}."
        size = f"the smallest margin between the first two logits is {number(self.margin)}, the largest error {number(self.error)}"
        if self.flips:
            beyond = sum(not flip.explained for flip in self.flips)
            how = f"{beyond} of them by more than rounding explains" if beyond else "each within what rounding explains"
            return f"{len(self.flips)} of {self.choices * len(self.found)} choices flip, {how}: {size}."
        could = f"; {self.close} of {self.choices} could flip within the error" if self.close else ""
        return f"{self._agreement}{could}: {size}."

    @property
    def _agreement(self) -> str:
        """Says what all implementations choose alike."""
        count = len(self.found)
        who = f"All {COUNTS.get(count, count)} give" if count > 2 else "Both give" if count == 2 else "The implementation gives"
        of = "" if count > 1 else " as the reference"
        if self.component == "classify":
            return f"{who} the same label{of}" if self.choices == 1 else f"{who} the same answer for all {self.choices} labels{of}"
        what = "next token" if self.component == "transformer" else "likeliest token"
        return f"{who} the same {what} at {f'all {self.choices} positions' if self.choices > 1 else 'the one position'}{of}"


def predict(subject: Subject, beside: Beside, dtype: str) -> Predictions | None:
    """Asks for the logits of the whole model on the subject's tokens. Returns None if it has no head that says anything."""
    case = whole_case(subject).at(dtype)
    if case.component in ("states", "pool"):
        return None
    exact, runs, answers = beside.measured("logits", case, components.answer)
    reference, expected = exact["output"], expectation(exact["output"], [run["output"] for run in runs])
    arrays = {name: answer.get("output") for name, answer in answers.items()}
    found = {name: compare(expected, array) for name, array in arrays.items()}
    for name, one in found.items():
        if one.message:
            beside.problem(name, f"{case.component} of the text in {dtype}: {one.message}")
    fitting = {name: _rows(array.astype(np.float64)) for name, array in arrays.items() if np.isfinite(found[name].error)}
    return _said(_Reading(subject, case.component), dtype, _rows(reference), fitting, found, expected.bound)


def _rows(logits: np.ndarray) -> np.ndarray:
    """Returns the logits of the one text, `n v`: a row for every position, or the one of the classes."""
    return logits[0] if logits.ndim == 3 else logits


@dataclass(frozen=True)
class _Reading:
    """What the logits of a component are about."""

    subject: Subject
    component: str

    @property
    def labels(self) -> Labels:
        return self.subject.labels if self.component == "classify" else TOKENS

    def words(self, ids: Iterable[int]) -> list[str]:
        """Returns the texts of tokens or classes."""
        if self.component == "classify":
            return [self.labels.names[int(id_)] for id_ in ids]
        return [word.replace("\n", "↵") for word in self.subject.words([int(id_) for id_ in ids])]

    def choices(self, logits_nv: np.ndarray) -> np.ndarray:
        """Returns the logits among which each choice is made, `n c`: of labels that exclude nothing each is one, yes or no."""
        if self.labels.function == "none":
            return logits_nv[:0]
        return np.stack([logits_nv[0], np.zeros(logits_nv.shape[1])], 1) if self.labels.function == "sigmoid" else logits_nv

    def chosen(self, ids: Sequence[int]) -> list[str]:
        """Returns the texts of what can be chosen."""
        return [("yes", "no")[id_] for id_ in ids] if self.labels.function == "sigmoid" else self.words(ids)

    def title(self, n: int) -> str:
        """Returns where a choice is made."""
        if self.component == "classify":
            return self.labels.names[n] if self.labels.function == "sigmoid" else "label"
        side, where = ("target", "after") if self.component == "transformer" else ("source", "at")
        return f"{where} token {n}, “{self.subject.tokens[side][n]}”"

    def shown(self, count: int) -> list[tuple[int, str]]:
        """Returns the rows of which the likeliest are shown, with their titles: the next token, every mask, or the classes."""
        if self.component != "masked_language_logits":
            return [(count - 1, "next token" if self.component == "transformer" else "label")]
        masked = np.flatnonzero(self.subject.inputs["source"][0] == (-1 if self.subject.mask_id is None else self.subject.mask_id)).tolist()
        return [(n, f"{self.subject.tokens['source'][n]} at token {n}") for n in masked]


def _said(
    reading: _Reading,
    dtype: str,
    reference_nv: np.ndarray,
    found_nv: Mapping[str, np.ndarray],
    found: Mapping[str, Comparison],
    allowed: float,
) -> Predictions:
    own_nc, flips = reading.choices(reference_nv), list[Flip]()
    margin_n, largest_n = _margins(own_nc), np.zeros(len(own_nc))
    for name, array_nv in found_nv.items():
        their_nc = reading.choices(array_nv)
        error_n = np.abs(their_nc - own_nc).max(axis=1)
        largest_n = np.maximum(largest_n, error_n)
        own_n, their_n = own_nc.argmax(axis=1), their_nc.argmax(axis=1)
        for n in np.flatnonzero(own_n != their_n).tolist():
            own, their = reading.chosen([int(own_n[n]), int(their_n[n])])
            flips.append(Flip(name, reading.title(n), own, their, float(margin_n[n]), float(error_n[n]), allowed))
    places = [
        _place(reading, title, reference_nv[n], {name: array[n] for name, array in found_nv.items()})
        for n, title in reading.shown(len(reference_nv))
    ]
    smallest, close = float(margin_n.min(initial=np.inf)), int((margin_n <= 2 * largest_n).sum())
    return Predictions(reading.component, dtype, len(own_nc), smallest, close, found, places, flips)


def _margins(logits_nc: np.ndarray) -> np.ndarray:
    """Returns the distance between the largest two logits of every choice; infinite where there is one."""
    if logits_nc.shape[1] < 2:
        return np.full(len(logits_nc), np.inf)
    top_n2 = np.partition(logits_nc, -2, axis=1)[:, -2:]
    return np.asarray(top_n2[:, 1] - top_n2[:, 0])


def _place(reading: _Reading, title: str, reference_v: np.ndarray, found_v: Mapping[str, np.ndarray]) -> Place:
    best = np.argsort(-reference_v, kind="stable")[:SHOWN].tolist()
    own_v = probabilities(reference_v[None], reading.labels)[0]
    their_v = {name: probabilities(array[None], reading.labels)[0] for name, array in found_v.items()}
    candidates = [
        Candidate(word, float(own_v[id_]), {name: float(array[id_]) for name, array in their_v.items()})
        for id_, word in zip(best, reading.words(best), strict=True)
    ]
    margin = float(_margins(reading.choices(reference_v[None])).min(initial=np.inf))
    return Place(title, candidates, margin, {name: float(np.abs(array - reference_v).max()) for name, array in found_v.items()})
