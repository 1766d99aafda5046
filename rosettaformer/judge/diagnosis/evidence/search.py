"""Searches for alterations that give a port's outputs: one, a constant, two, or more."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...catalogue import Alteration
from ...catalogue.alteration import Site
from ...compare import compare
from ...expectation import tolerance
from .. import altered
from ..altered import Combination, Outputs
from ..hypotheses.constants import constants
from ..hypotheses.readings import TOLD, readings
from .evidence import Evidence
from .first_wrong import all_first_wrong

LOSS = 10  # a loss of digits with more than this many times the port's error is a different one
NEAR = 25  # nearest alterations whose pairs are tried first
HALF = 0.5  # an alteration that leaves more of the error is not the larger bug of a pair
JOINT = 1000  # combinations of alterations of one component, at most
SCREENED = 6  # number of smallest failing outputs, one of which each part of a cover must explain


class Search:
    """Searches for the alterations that explain a port's outputs."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.hypotheses = evidence, evidence.hypotheses
        self.constants = functools.cache(self._fit)

    def explain(self, known: Combination = (), located: bool = True) -> list[Combination]:
        """The simplest alterations that explain the outputs.

        In this order: the known ones, a known one at one place, a single alteration or another
        reading of the prompts, the known ones and another. Several results are indistinguishable on
        the probes. located: also alterations at one place of the model.
        """
        if known and self.evidence.explains(known, known):
            return [known]
        shown = self._shown(known)
        placed: list[Combination] = [(one,) for one in self.hypotheses.at_places(known, shown) if self.evidence.explains((one,), (one,))]
        if placed:
            return self._different(placed)[-1:]
        return next((found for tier in self._tiers(shown, located) if (found := self._among(tier, known))), [])

    def recoded(self, known: Combination = ()) -> list[Combination]:
        """The code changes that explain the outputs, alone or with known alterations; none if only a
        single number fails, which some change gives by chance.
        """
        if self.evidence.one_number:
            return []
        return next((found for changes in self.hypotheses.code(self._shown(known)) if (found := self._among(changes, known))), [])

    def _among(self, tier: Sequence[Alteration], known: Combination) -> list[Combination]:
        """The alterations of a tier that explain the outputs, alone or with the known ones."""
        self.evidence.tried |= set(tier)
        for before in ((), known) if known else ((),):
            found: dict[Combination, None] = {}
            for one in tier:
                meant = one not in before and (not before or self._combines(one))
                said = any(one.id == each.id and one.title != each.title for (*_, each) in found)  # `_different` keeps that
                if meant and not said and self.evidence.explains((*before, one), before):
                    found[*before, one] = None
            if found:
                return self._different([*found])
        return []

    def _tiers(self, shown: tuple[int, ...], located: bool = True) -> Iterator[Sequence[Alteration]]:
        """The tiers of the hypotheses, with other readings of the prompts before the known bugs if
        the first wrong tokens tell them, else after the settings.
        """
        tiers, found = self.hypotheses.tiers(shown, located), readings(self.evidence.probes, all_first_wrong(self.evidence))
        yield [one for one in found if one.id.startswith(TOLD)]
        yield from itertools.islice(tiers, 2)
        yield [one for one in found if not one.id.startswith(TOLD)]
        yield from tiers

    def _shown(self, known: Combination = ()) -> tuple[int, ...]:
        """The cheapest failing probe, and the cheapest that the known alterations do not match."""
        failing = self.evidence.cheapest()
        left = (index for index in failing if known and not self.evidence.near(known, index))
        return tuple(dict.fromkeys([*failing[:1], *itertools.islice(left, 1)]))

    def where_failing(self) -> list[Combination]:
        """The alterations that explain a port that fails only under a condition (batch size 1)."""
        if not self.evidence.condition:
            return []
        for tier in self._tiers(self._shown()):
            if found := [one for one in tier if self._explains_failing(one)]:
                return self._different([(one,) for one in found])
        return []

    def _explains_failing(self, one: Alteration) -> bool:
        return all(self.evidence.explained((one,), [index]) for index in self.evidence.cheapest())

    def _different(self, found: list[Combination]) -> list[Combination]:
        """One combination for each set of ids: the first variant of a bug, at its narrowest place.

        Of places that are equivalent in the failing outputs the widest is kept.
        """
        chosen: dict[tuple[str, ...], Combination] = {}
        for combination in found:
            ids = tuple(one.id for one in combination)
            first = chosen.setdefault(ids, combination)
            if [one.title for one in first] == [one.title for one in combination] and self._where(first) != self._where(combination):
                chosen[ids] = combination
        return list(chosen.values())

    def _where(self, combination: Combination) -> list[list[list[Site]]]:
        """The sites of each of these in the small failing probes."""
        return [[self.hypotheses.where(one, index) for index in self.evidence.small] for one in combination]

    def missing(self) -> list[Combination]:
        """The alterations with the port's NaN; empty if the reference has the same NaN."""
        answers, clean = self.evidence.answers, [{name: one.reference for name, one in own.items()} for own in self.evidence.clean]
        same = [(answer, reference) for answer, reference in zip(answers, clean, strict=True) if answer.keys() == reference.keys()]
        if all(_nan(answer) == _nan(reference) for answer, reference in same):
            return []
        found: list[Combination] = []
        for one in self._combined():
            predicted = (self.hypotheses.answer((one,), index) for index in range(len(answers)))
            if all(other is not None and _nan(other) == _nan(answer) for other, answer in zip(predicted, answers, strict=True)):
                found.append((one,))
        return found

    def _fit(self, known: Combination = ()) -> list[Combination]:
        """The constants whose other values explain the outputs, alone or with known alterations."""
        for before in ((), known) if known else ((),):
            found: list[Combination] = []
            for group in constants(self.hypotheses, self.evidence.cheapest(), self.evidence.answers, before):
                self.evidence.tried |= set(group)
                found += [(*before, one) for one in group if self.evidence.explains((*before, one), before)][:1]
            if found:
                return self._different(found)
        return []

    def with_nearest(self) -> list[Combination]:
        """Pairs of a near miss and an alteration at one place or a constant."""
        for one, _ in self.evidence.nearest(most=HALF):
            if found := self.explain((one,)) or self.constants((one,)):
                return found
        return []

    def imprecise(self) -> list[Combination]:
        """The known bugs that only lose digits, if no error is larger than theirs.

        Which digits are lost depends on the summation order, so that outputs cannot be required to
        match.
        """
        return self.low_products() or [(defect,) for defect in next(self.hypotheses.tiers()) if self._loses_digits((defect,))]

    def low_products(self) -> list[Combination]:
        """The known bug of TF32 products, if no error is larger than that makes it."""
        low = [dataclasses.replace(probe, device="cuda-tf32") for probe in self.evidence.probes if probe.dtype == "float32"]
        pairs = zip(low, self.evidence.answers, strict=True) if len(low) == len(self.evidence.answers) else ()
        meant = bool(pairs) and all(altered.equal(tolerance.expect(probe), answer) for probe, answer in pairs)
        return [(defect,) for defect in self.hypotheses.called("PRC1")] if meant else []

    def _loses_digits(self, combination: Combination) -> bool:
        """Whether the alteration only loses digits, as the port does.

        It matches every output without support, fails on exactly the failing probes, and its errors
        are at most LOSS times the port's.
        """
        if not self.evidence.equals(combination) or self.evidence.silent(combination) != self.evidence.failing:
            return False
        answers = [altered.answer(combination, probe) for probe in self.evidence.probes]
        failing = [index for index, answer in enumerate(answers) if not altered.equal(self.evidence.clean[index], answer)]
        return failing == self.evidence.failing and all(
            self._error(answers[index], index) <= LOSS * self._error(self.evidence.answers[index], index) for index in failing
        )

    def _error(self, outputs: Outputs | None, index: int) -> float:
        """The largest error of a probe's outputs; infinite without outputs."""
        clean = self.evidence.clean[index]
        return max((compare(clean[name], outputs[name]).error for name in clean), default=0.0) if outputs else np.inf

    def together(self) -> list[Combination]:
        """Two or three known bugs or settings of one component that explain the outputs: a port may
        follow another family's rules there.
        """
        if self.evidence.one_number:
            return []
        parts: dict[str, list[Alteration]] = {}
        for one in self.hypotheses.altering(self.evidence.small[:1]):
            if self._combines(one):
                parts.setdefault(one.component, []).append(one)
        for count, own in itertools.product((2, 3), parts.values()):
            if math.comb(len(own), count) <= JOINT:
                several = [each for each in itertools.combinations(own, count) if len({one.id for one in each}) == count]
                if found := [each for each in several if self.evidence.explains(each)]:
                    return self._different(found)
        return []

    def pairs(self, progress: Callable[[float], None] = lambda share: None) -> list[Combination]:
        """The pairs of alterations that explain the outputs, with as few settings as possible and
        the main variant of each bug.

        Pairs with a near miss come first, the others only if none of those explains the outputs.
        Empty if only a single number fails. progress is called with the finished share.
        """
        if self.evidence.one_number:
            return []
        candidates = [one for one in self.hypotheses.altering(self.evidence.small) if self._combines(one) and not one.variant]
        near = {one for one, _ in self.evidence.nearest(NEAR)}
        pairs = sorted(ordered_pairs(candidates), key=lambda pair: not near & set(pair))
        found: list[Combination] = []
        for count, pair in enumerate(pairs):
            if found and not near & set(pair):
                break
            if count % 100 == 0:
                progress(count / len(pairs))
            if pair[::-1] not in found and self._can(pair) and self.evidence.explains(pair):
                found.append(pair)
        settings = [sum(one in self.hypotheses.settings for one in pair) for pair in found]
        return [pair for pair, number in zip(found, settings, strict=True) if number == min(settings)]

    def _can(self, pair: Combination) -> bool:
        """False if a failing probe is altered by neither, or by one that does not match it."""
        for index in self.evidence.failing:
            altering = tuple(one for one in pair if self.hypotheses.alters(one, index))
            if len(altering) < len(pair) and not (altering and self.evidence.near(altering, index)):
                return False
        return True

    def generated(self) -> list[Combination]:
        """The derived alterations that explain one of the smallest failing outputs, those that
        explain most of them first.
        """
        shown, count = self._shown(), dict[Combination, int]()
        for tier in (self.hypotheses.inputs(shown), self.hypotheses.dataflow(shown), *self.hypotheses.code(shown)):
            found = {(one,): len(self.evidence.explained((one,), self.evidence.small[: SCREENED // 2])) for one in tier}
            count |= {base: number for base, number in found.items() if number}
        return sorted(count, key=lambda base: -count[base])

    def cover(self, base: Combination = ()) -> Combination:
        """Adds alterations one by one, each explaining the most further outputs, until none
        explains more.

        Each must explain one of the smallest unexplained outputs.
        """
        left = [index for index in self.evidence.left(base) if index in self.evidence.failing][:SCREENED]
        candidates = [candidate for candidate in self._further(base) if self.evidence.explained(candidate, left)]
        best = max(candidates, key=lambda candidate: len(self.evidence.explained(candidate)), default=base)
        return self.cover(best) if len(self.evidence.explained(best)) > len(self.evidence.explained(base)) else base

    def partly(self, base: Combination) -> list[Combination]:
        """The explanations of what the base leaves; else the base if it explains half."""
        return self.remaining(base) or [base] * self.most(base)

    def most(self, base: Combination) -> bool:
        """Whether the base explains at least half of the failing outputs."""
        return bool(base) and 2 * len(self.evidence.explained(base, self.evidence.failing)) >= len(self.evidence.failing)

    def alike(self, base: Combination) -> list[Combination]:
        """Combinations that explain the same outputs as the base, with another last alteration."""
        meant = self.evidence.explained(base)
        shown = [index for index in self.evidence.cheapest() if index in meant]
        others = [(*base[:-1], one) for one in self._combined() if base and one.id not in {each.id for each in base}]
        others = [other for other in others if all(self.evidence.explained(other, [index]) for index in shown)]
        return self._different([other for other in others if set(self.evidence.explained(other)) == set(meant)])

    def remaining(self, base: Combination) -> list[Combination]:
        """The alterations that, added to the base, explain every output that it leaves."""
        left = self.evidence.left(base)
        return [candidate for candidate in self._further(base) if all(self.evidence.explained(candidate, [index]) for index in left)]

    def _further(self, base: Combination) -> list[Combination]:
        """The base with another alteration, also below it if both alter the same function."""
        others = [one for one in self._combined() if one not in base]
        both = [one for one in others if any(one.replaces.keys() & each.replaces.keys() for each in base)]
        return [*((*base, one) for one in others), *((one, *base) for one in both)]

    def _combined(self) -> list[Alteration]:
        """The known bugs and settings that may explain the outputs in combination."""
        return [one for one in self.hypotheses.catalogued if self._combines(one)]

    def _combines(self, one: Alteration) -> bool:
        """Whether it may be combined: in float64, digit losses match anything close."""
        return not one.rounding or all(probe.dtype != "float64" for probe in self.evidence.probes)


def _nan(outputs: Outputs) -> dict[str, bytes]:
    """The positions of NaN in the outputs."""
    return {name: np.isnan(np.asarray(value, np.float64)).tobytes() for name, value in outputs.items()}


def ordered_pairs(candidates: Sequence[Alteration]) -> Iterator[Combination]:
    """All pairs of candidates, in both orders if they alter the same function."""
    for first, second in itertools.combinations(candidates, 2):
        yield first, second
        if first.replaces.keys() & second.replaces.keys():
            yield second, first
