"""Tests whether diagnosis names each known bug, injected into the reference, from its outputs.

`make evidence STEP=mutation` writes the page; it takes hours. The altered reference that acts as
the port uses its own summation order, unlike any of `tolerance`, so that no output is equal bit for
bit.
"""

import functools
import shelve
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from evidence import KEPT, write
from expectations import all_by_id
from random_cases import random_case

from reference_numpy import arithmetic
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.catalogue import Alteration, all_defects, injected
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis.altered import Combination, differ, draws
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.crashes import alike
from rosettaformer.judge.diagnosis.evidence.randomness import DRAWS, random_defects
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses, candidates
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.expectation.components import DECODING, TRAINING, forward_of

PAIRS, CONFIGURATIONS, UNKNOWN = 100, 300, 50
# Functions whose output, increased by 1 %, is a bug outside the catalogue.
PLACES = (
    "attention.scaled_dot_product_attention", "attention.projection", "embedding.embedding", "embedding.logits", "feed_forward.activation",
    "feed_forward.feed_forward", "layers.residual_out", "normalization.layer_norm", "positional_encoding.positional_encoding",
)  # fmt: skip
MODELS = ("transformer", "masked_language_logits", "classify")
_einsum = arithmetic.einsum


Ids = tuple[str, ...]
Row = tuple[str, str, "Naming", "Naming"]  # a bug, its component, and the names found from its outputs and from the whole model


@dataclass(frozen=True)
class Naming:
    """A diagnosis. dtype: where the bug was visible; "" if nowhere. seconds: of the search."""

    injected: Ids
    named: list[Ids]
    dtype: str
    seconds: float = field(default=0.0, compare=False)

    @property
    def alone(self) -> bool:
        """True if exactly the injected combination is named."""
        return [set(one) for one in self.named] == [set(self.injected)]

    @property
    def among(self) -> bool:
        """True if the injected bug is named, alone or among indistinguishable ones."""
        return set(self.injected) in [set(one) for one in self.named]


def _ids(combination: Combination) -> Ids:
    return tuple(one.id for one in combination)


def _shuffled(array: np.ndarray, axis: int) -> np.ndarray:
    size = array.shape[axis]
    return np.take(array, np.random.default_rng(size).permutation(size), axis=axis)


def _einsum_shuffled(subscripts: str, *operands: np.ndarray) -> np.ndarray:
    """Returns the contraction with its terms in random order."""
    inputs, output = subscripts.split("->")
    moved = []
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        for axis, letter in enumerate(letters):
            operand = operand if letter in output else _shuffled(operand, axis)
        moved.append(operand)
    return _einsum(subscripts, *moved)


ORDER: dict[str, Callable] = {
    "einsum": _einsum_shuffled,
    "sum": lambda array, axis: np.sum(_shuffled(array, axis), axis=axis, keepdims=True),
}


def as_port(combination: Combination, probes: Iterable[Case]) -> list[dict[str, Any] | None]:
    """Returns the altered reference's outputs in another summation order; None if it fails."""
    answers: list[dict[str, Any] | None] = []
    for case in probes:
        with tolerance.order(ORDER), injected(*combination), np.errstate(all="ignore"):
            try:
                answers.append(components.answer(case))
            except (ValueError, IndexError):
                answers.append(None)
    return answers


@functools.cache
def nothing_wrong(component: str, dtype: str) -> Hypotheses:
    """Returns the component's cases, which decide whether a combination is visible."""
    return Hypotheses([case.at(dtype) for case in all_by_id().values() if case.component == component and dtype in case.dtypes], [])


@functools.cache
def hypotheses(component: str, dtype: str) -> Hypotheses:
    """Returns the whole catalogue and all settings, for the component's cases."""
    return _hypotheses(nothing_wrong(component, dtype).probes)


def _hypotheses(probes: Sequence[Case]) -> Hypotheses:
    return Hypotheses(probes, candidates(probes, observable()), candidates(probes, all_settings().values()))


def observable() -> list[Alteration]:
    """Returns the bugs that some output can reveal."""
    return [defect for defect in all_defects().values() if not defect.unobservable]


def name(component: str, combination: Combination, pairs: bool = False) -> Naming:
    """Diagnoses the reference with this bug in the first dtype that reveals it."""
    for dtype in DTYPES:
        probes = nothing_wrong(component, dtype).probes
        answers = as_port(combination, probes)
        failed = [probe for probe, answer in zip(probes, answers, strict=True) if answer is None]
        if not failed and not Evidence(nothing_wrong(component, dtype), answers).failing:
            continue
        if random := _draws(combination, component, dtype):
            return Naming(_ids(combination), list(map(_ids, random_defects(hypotheses(component, dtype), random))), dtype)
        answered = [probe for probe, answer in zip(probes, answers, strict=True) if answer is not None]
        known = _hypotheses(answered) if failed else hypotheses(component, dtype)
        start = time.perf_counter()
        evidence = Evidence(known, [answer for answer in answers if answer])
        search = Search(evidence)
        named = (search.explain() or search.imprecise() or (search.pairs() if pairs else [])) if evidence.failing else []
        both = alike(candidates(failed, observable()), failed, evidence, *named[:1]) if failed else []
        return Naming(_ids(combination), list(map(_ids, both or named)), dtype, time.perf_counter() - start)
    return Naming(_ids(combination), [], "")


def _draws(combination: Combination, component: str, dtype: str) -> dict[int, list[dict[str, Any]]]:
    """Returns outputs for each case on which two outputs differ."""
    if not draws(combination):
        return {}
    given = [as_port(combination, nothing_wrong(component, dtype).probes) for _ in range(DRAWS)]
    answers = enumerate([answer for answer in each if answer is not None] for each in zip(*given, strict=True))
    return {index: each for index, each in answers if any(differ(each[0], other) for other in each[1:])}


def random_pairs(count: int) -> Iterator[Combination]:
    """Yields pairs of bugs in different components, each visible in float64 logits."""
    model = nothing_wrong("transformer", "float64")
    of_logits = [defect for defect in observable() if whole(defect) == "transformer" and not (defect.rounding or defect.random)]
    visible = [defect for defect in of_logits if Evidence(model, as_port((defect,), model.probes)).failing]
    rng = np.random.default_rng(0)
    seen: set[frozenset[str]] = set()
    while len(seen) < count:
        first, second = (visible[index] for index in rng.choice(len(visible), 2, replace=False))
        if first.component != second.component and frozenset(_ids((first, second))) not in seen:
            seen.add(frozenset(_ids((first, second))))
            yield first, second


def false_names(count: int) -> list[Naming]:
    """Diagnoses a bug outside the catalogue, also looking for pairs; it should be given no name."""
    return [naming for naming in map(unknown, range(count)) if naming.named or not naming.dtype]


def unknown(seed: int) -> Naming:
    """Diagnoses a function whose output is off by a few percent, which is not a known bug."""
    rng = np.random.default_rng(seed)
    place, factor = str(rng.choice(PLACES)), 1 + 0.01 * rng.standard_normal()
    return name("transformer", (larger(place, factor),), pairs=True)


def larger(place: str, factor: float) -> Alteration:
    """Returns the function at a place with its output scaled by a factor."""

    def multiplied(original: Callable, *arguments: Any, **options: Any) -> Any:
        output = original(*arguments, **options)
        if isinstance(output, tuple):
            return (output[0] * output[0].dtype.type(factor), *output[1:])
        return output * output.dtype.type(factor)

    title = f"{place} x {factor:.4f}"
    return Alteration(id="unknown", title=title, component="transformer", fix={}, replaces={place: multiplied})


def false_alarms(count: int) -> list[int]:
    """Returns the seeds of random correct configurations that do not conform."""
    alarms = []
    for seed in range(count):
        case = random_case(seed).at(DTYPES[seed % 2])
        if Evidence(Hypotheses([case], []), as_port((), [case])).failing:
            alarms.append(seed)
    return alarms


@functools.cache
def single_row(id_: str) -> Row:
    """Diagnoses one bug, from its component's outputs and from the whole model's."""
    defect = all_defects()[id_]
    named = {component: name(component, (defect,)) for component in {smallest(defect), whole(defect)}}
    return id_, smallest(defect), named[smallest(defect)], named[whole(defect)]


def whole(defect: Alteration) -> str:
    """Returns what reveals the bug in a whole model: logits, loss or gradients."""
    if forward_of(defect.component):
        return "transformer_vjp"
    if defect.component in ("cross_entropy", "training_loss"):
        return "training_loss"
    if defect.component in DECODING | TRAINING:
        return defect.component
    claiming = {case.component for case in all_by_id().values() if defect.id in case.catches}
    return next((model for model in MODELS if model in claiming), MODELS[0])


def smallest(defect: Alteration) -> str:
    """Returns the bug's component, or the smallest one whose cases claim to reveal it."""
    claiming = [case.component for case in all_by_id().values() if defect.id in case.catches]
    return defect.component if defect.component in claiming else claiming[0]


def main() -> None:
    """Writes the page. Results are kept, so that an interrupted run resumes."""
    folder = Path(sys.argv[1])
    (folder / KEPT).mkdir(exist_ok=True)
    with ProcessPoolExecutor(2) as pool, shelve.open(folder / KEPT / "named") as kept:
        rows = _all(pool, kept, single_row, [defect.id for defect in observable()])
        pairs = _all(pool, kept, _pair, range(PAIRS))
        unnamed = _all(pool, kept, unknown, range(UNKNOWN))
        page = _page(rows, pairs, unnamed, false_alarms(CONFIGURATIONS))
    write(folder, "mutation.md", page)


def _all(pool: Executor, kept: "shelve.Shelf[Any]", function: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
    """Returns the function of each item; items without a kept result are computed in the pool."""
    keys = {one: f"{function.__name__} {one}" for one in given}
    asked = {pool.submit(function, one): key for one, key in keys.items() if key not in kept}
    for future in as_completed(asked):
        kept[asked[future]] = future.result()
        kept.sync()
    return [kept[key] for key in keys.values()]


@functools.cache
def _pairs() -> list[Combination]:
    return list(random_pairs(PAIRS))


def _pair(index: int) -> Naming:
    return name("transformer", _pairs()[index], pairs=True)


def _times(namings: Iterable[Naming]) -> str:
    seconds = sorted(naming.seconds for naming in namings)
    return f"{seconds[len(seconds) // 2]:.1f} and {seconds[-1]:.1f}"


def _page(rows: Sequence[Row], pairs: Sequence[Naming], unnamed: Sequence[Naming], alarms: Sequence[int]) -> str:
    exact = sum(component.alone for *_, component, _ in rows)
    alone, among = sum(logits.alone for *_, logits in rows), sum(logits.among for *_, logits in rows)
    hidden = [id_ for id_, *_, logits in rows if not logits.dtype]
    wrong = [_list(naming.injected) for _, _, *namings in rows for naming in namings if naming.named and not naming.among]
    both = sum(naming.among for naming in pairs)
    lines = [
        "# Bugs that diagnosis names",
        "",
        "Every known bug is injected into the reference, which then runs the cases in its own summation order. Diagnosis",
        "has to name the bug from the outputs only.",
        "",
        f"- From the component's outputs: {exact} of {len(rows)} are named exactly ({exact / len(rows):.0%}).",
        f"- From the whole model's outputs (logits, loss or gradients): {among} of {len(rows)} are named ({among / len(rows):.0%}),",
        f"  {alone} of them exactly, the others within a set of indistinguishable bugs.",
        f"  Not visible there: {', '.join(hidden) or 'none'}.",
        "  Bugs outside a model (update, learning rate, random numbers, decoding) are diagnosed from their component.",
        f"- Pairs in different components, from logits: {both} of {len(pairs)} random pairs are named ({both / len(pairs):.0%}).",
        f"- Wrong names for a single bug: {len(wrong)}{' (' + ', '.join(wrong) + ')' if wrong else ''}.",
        f"- Names given to {UNKNOWN} random bugs outside the catalogue: {sum(bool(naming.named) for naming in unnamed)}.",
        f"- False alarms for {CONFIGURATIONS} random correct configurations: {len(alarms)}.",
        f"- Search time from the whole model in seconds on one core, median and largest: one bug {_times(one for *_, one in rows)}; two",
        f"  {_times(pairs)}; outside the catalogue {_times(unnamed)}.",
        "",
        "| injected | component | named from its outputs | named from the whole model | s |",
        "|---|---|---|---|---|",
    ]
    lines += [f"{line} {naming.seconds:.1f} |" for line, (*_, naming) in zip(table(rows), rows, strict=True)]
    lines += ["", "Pairs that are not named:", ""]
    lines += [f"- {_list(naming.injected)}: {_said(naming)}" for naming in pairs if not naming.among] or ["- none"]
    unobservable = [defect for defect in all_defects().values() if defect.unobservable]
    lines += ["", "Not visible in any output, so neither caught nor named:", ""]
    lines += [f"- {defect.id}, {defect.title}: {defect.unobservable}" for defect in unobservable] or ["- none"]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of the table, one per bug, without times."""
    return [f"| {id_} | {component} | {_said(own)} | {_said(logits)} |" for id_, component, own, logits in rows]


def _said(naming: Naming) -> str:
    if not naming.dtype:
        return "not visible"
    return " or ".join(map(_list, naming.named[:6])) + (" or more" if len(naming.named) > 6 else "") or "unexplained"


def _list(ids: Ids) -> str:
    return " + ".join(ids)


if __name__ == "__main__":
    main()
