"""Predictions of each implementation: the most likely tokens or classes, and choices that flip."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...judge.compare import Comparison, compare
from ...judge.expectation import components
from ...judge.expectation.tolerance import expectation
from ...use.inference.classification import Labels, probabilities
from .. import words as sentences
from ..engine.beside import Beside
from .layer_errors import whole_case
from .subject import Subject

SHOWN = 5
TOKENS = Labels((), "softmax")


@dataclass(frozen=True)
class Candidate:
    """A token or class with its probability, or its value in a regression, by implementation."""

    word: str
    reference: float
    found: Mapping[str, float]


@dataclass(frozen=True)
class Place:
    """A prediction with the reference's most likely candidates.

    margin: difference of the first two logits, or of a label's logit and 0; infinite without a
    choice. errors: largest error of a logit, by implementation.
    """

    title: str
    candidates: Sequence[Candidate]
    margin: float
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Flip:
    """A choice of an implementation, `found`, that differs from the reference's.

    place: title of the prediction. margin: see `Place`. allowed: tolerance of a logit.
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
        """Whether tolerated errors of both logits can flip the choice."""
        return self.margin <= 2 * self.allowed


@dataclass(frozen=True)
class Predictions:
    """Predictions of all implementations.

    choices: number of greedy choices, one per position or label. margin: the smallest margin.
    close: number of choices with a margin of at most twice the largest error, which could flip.
    found: comparison of the logits, by implementation.
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
        """Largest error of a logit in any implementation."""
        return max((one.error for one in self.found.values()), default=0.0)

    @property
    def sentence(self) -> str:
        """Whether all implementations make the same choices, as text."""
        return sentences.predictions(self)


def predict(subject: Subject, beside: Beside, dtype: str) -> Predictions | None:
    """Compares the logits of the whole model on the subject's tokens. Returns None without a head."""
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
    """Returns the logits `n v` of the text: one row per position, or one row of classes."""
    return logits[0] if logits.ndim == 3 else logits


@dataclass(frozen=True)
class _Reading:
    """Interprets the logits of a component as tokens or classes."""

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
        """Returns the logits `n c` of each choice; an independent label is a choice."""
        if self.labels.function == "none":
            return logits_nv[:0]
        return np.stack([logits_nv[0], np.zeros(logits_nv.shape[1])], 1) if self.labels.function == "sigmoid" else logits_nv

    def chosen(self, ids: Sequence[int]) -> list[str]:
        """Returns the texts of choices."""
        return [("yes", "no")[id_] for id_ in ids] if self.labels.function == "sigmoid" else self.words(ids)

    def title(self, n: int) -> str:
        """Returns the title of a choice."""
        if self.component == "classify":
            return self.labels.names[n] if self.labels.function == "sigmoid" else "label"
        side, where = ("target", "after") if self.component == "transformer" else ("source", "at")
        return f"{where} token {n}, “{self.subject.tokens[side][n]}”"

    def shown(self, count: int) -> list[tuple[int, str]]:
        """Returns the rows to show, with titles: the next token, every mask, or the classes."""
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
    """Returns the difference of the two largest logits of each choice; infinite with one logit."""
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
