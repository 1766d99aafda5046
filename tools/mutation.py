"""Whether diagnosis names what is wrong: every defect put into the reference, and named from the outputs only.

`make evidence STEP=mutation` writes the page, in hours. The altered reference that stands for a port adds in an order
of its own, which none of the orders of `tolerance` has, so that no answer is equal bit for bit.
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
# Functions whose output, made 1 % larger, is a mistake that no page of the catalogue describes.
PLACES = (
    "attention.scaled_dot_product_attention", "attention.projection", "embedding.embedding", "embedding.logits", "feed_forward.activation",
    "feed_forward.feed_forward", "layers.residual_out", "normalization.layer_norm", "positional_encoding.positional_encoding",
)  # fmt: skip
MODELS = ("transformer", "masked_language_logits", "classify")
_einsum = arithmetic.einsum


Ids = tuple[str, ...]
Row = tuple[str, str, "Naming", "Naming"]  # a defect, its component, and what is named from its outputs and from the whole model


@dataclass(frozen=True)
class Naming:
    """What diagnosis said of an injected combination; dtype: where it showed, empty where no probe showed it. seconds: of the search."""

    injected: Ids
    named: list[Ids]
    dtype: str
    seconds: float = field(default=0.0, compare=False)

    @property
    def alone(self) -> bool:
        """True where exactly what was injected is named."""
        return [set(one) for one in self.named] == [set(self.injected)]

    @property
    def among(self) -> bool:
        """True where what was injected is named, alone or with others that the probes cannot tell from it."""
        return set(self.injected) in [set(one) for one in self.named]


def _ids(combination: Combination) -> Ids:
    return tuple(one.id for one in combination)


def _shuffled(array: np.ndarray, axis: int) -> np.ndarray:
    size = array.shape[axis]
    return np.take(array, np.random.default_rng(size).permutation(size), axis=axis)


def _einsum_shuffled(subscripts: str, *operands: np.ndarray) -> np.ndarray:
    """The contraction with its terms in a random order."""
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
    """The outputs of the altered reference, computed in another order; None where it fails."""
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
    """The component's cases alone, by which a combination shows or does not."""
    return Hypotheses([case.at(dtype) for case in all_by_id().values() if case.component == component and dtype in case.dtypes], [])


@functools.cache
def hypotheses(component: str, dtype: str) -> Hypotheses:
    """The whole catalogue and every setting, on the component's cases."""
    return _hypotheses(nothing_wrong(component, dtype).probes)


def _hypotheses(probes: Sequence[Case]) -> Hypotheses:
    return Hypotheses(probes, candidates(probes, observable()), candidates(probes, all_settings().values()))


def observable() -> list[Alteration]:
    """The defects that some output can reveal."""
    return [defect for defect in all_defects().values() if not defect.unobservable]


def name(component: str, combination: Combination, pairs: bool = False) -> Naming:
    """What diagnosis says of the reference with this combination in it, from the outputs of one component, in the first dtype that shows
    it."""
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
    """Some answers to every probe to which two answers differ."""
    if not draws(combination):
        return {}
    given = [as_port(combination, nothing_wrong(component, dtype).probes) for _ in range(DRAWS)]
    answers = enumerate([answer for answer in each if answer is not None] for each in zip(*given, strict=True))
    return {index: each for index, each in answers if any(differ(each[0], other) for other in each[1:])}


def random_pairs(count: int) -> Iterator[Combination]:
    """Pairs of defects of different components, each of which shows in the logits in float64 by more than rounding, the same every time."""
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
    """What diagnosis names, alone and in pairs, where the mistake is none of the catalogue's; it should name nothing."""
    return [naming for naming in map(unknown, range(count)) if naming.named or not naming.dtype]


def unknown(seed: int) -> Naming:
    """What diagnosis names where the output of some function is another by some percents, which is no defect."""
    rng = np.random.default_rng(seed)
    place, factor = str(rng.choice(PLACES)), 1 + 0.01 * rng.standard_normal()
    return name("transformer", (larger(place, factor),), pairs=True)


def larger(place: str, factor: float) -> Alteration:
    """The function at a place whose output is larger by a factor."""

    def multiplied(original: Callable, *arguments: Any, **options: Any) -> Any:
        output = original(*arguments, **options)
        if isinstance(output, tuple):
            return (output[0] * output[0].dtype.type(factor), *output[1:])
        return output * output.dtype.type(factor)

    title = f"{place} x {factor:.4f}"
    return Alteration(id="unknown", title=title, component="transformer", fix={}, replaces={place: multiplied})


def false_alarms(count: int) -> list[int]:
    """The seeds of random correct configurations that are not found to conform, so that diagnosis would look for a name."""
    alarms = []
    for seed in range(count):
        case = random_case(seed).at(DTYPES[seed % 2])
        if Evidence(Hypotheses([case], []), as_port((), [case])).failing:
            alarms.append(seed)
    return alarms


@functools.cache
def single_row(id_: str) -> Row:
    """One defect: named from the outputs of its component, and from those of the whole model."""
    defect = all_defects()[id_]
    named = {component: name(component, (defect,)) for component in {smallest(defect), whole(defect)}}
    return id_, smallest(defect), named[smallest(defect)], named[whole(defect)]


def whole(defect: Alteration) -> str:
    """What of a whole model shows the defect: its logits, its loss, its gradients; of what is done without or around it the component."""
    if forward_of(defect.component):
        return "transformer_vjp"
    if defect.component in ("cross_entropy", "training_loss"):
        return "training_loss"
    if defect.component in DECODING | TRAINING:
        return defect.component
    claiming = {case.component for case in all_by_id().values() if defect.id in case.catches}
    return next((model for model in MODELS if model in claiming), MODELS[0])


def smallest(defect: Alteration) -> str:
    """The defect's component, or where its cases claim nothing the smallest one whose cases do."""
    claiming = [case.component for case in all_by_id().values() if defect.id in case.catches]
    return defect.component if defect.component in claiming else claiming[0]


def main() -> None:
    """Writes the page. Results are kept, from which an interrupted run resumes."""
    folder = Path(sys.argv[1])
    (folder / KEPT).mkdir(exist_ok=True)
    with ProcessPoolExecutor(2) as pool, shelve.open(folder / KEPT / "named") as kept:
        rows = _all(pool, kept, single_row, [defect.id for defect in observable()])
        pairs = _all(pool, kept, _pair, range(PAIRS))
        unnamed = _all(pool, kept, unknown, range(UNKNOWN))
        page = _page(rows, pairs, unnamed, false_alarms(CONFIGURATIONS))
    write(folder, "mutation.md", page)


def _all(pool: Executor, kept: "shelve.Shelf[Any]", function: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
    """The function of each, those that are not kept computed in the pool."""
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
        "# What diagnosis names",
        "",
        "It injects every defect of the catalogue into the reference, lets it answer the cases in a summation order of its own, and asks",
        "diagnosis for a name from the outputs only.",
        "",
        f"- At the component: {exact} of {len(rows)} are named exactly ({exact / len(rows):.0%}).",
        f"- From outputs of the whole model (its logits; its loss or its gradients for what they show): {among} of {len(rows)} are named",
        f"  ({among / len(rows):.0%}), {alone} of them by one name, the others within a set that it cannot tell apart.",
        f"  No trace in it: {', '.join(hidden) or 'none'}.",
        "  What is done without a model or around it (the update, the learning rate, what is drawn, decoding) counts by its component.",
        f"- Pairs in different components, from logits: {both} of {len(pairs)} random pairs are named ({both / len(pairs):.0%}).",
        f"- Wrong names for a single defect: {len(wrong)}{' (' + ', '.join(wrong) + ')' if wrong else ''}.",
        f"- Names given to {UNKNOWN} random mistakes that the catalogue does not have: {sum(bool(naming.named) for naming in unnamed)}.",
        f"- Random correct configurations that get a name or a sentence, of {CONFIGURATIONS}: {len(alarms)}.",
        f"- Seconds of the search from the whole model on one core, median and largest: one defect {_times(one for *_, one in rows)}; two",
        f"  {_times(pairs)}; none of the catalogue {_times(unnamed)}.",
        "",
        "| injected | component | named from its outputs | named from the whole model | s |",
        "|---|---|---|---|---|",
    ]
    lines += [f"{line} {naming.seconds:.1f} |" for line, (*_, naming) in zip(table(rows), rows, strict=True)]
    lines += ["", "Not named pairs:", ""]
    lines += [f"- {_list(naming.injected)}: {_said(naming)}" for naming in pairs if not naming.among] or ["- none"]
    unobservable = [defect for defect in all_defects().values() if defect.unobservable]
    lines += ["", "Unobservable by any output, and so neither caught nor named:", ""]
    lines += [f"- {defect.id}, {defect.title}: {defect.unobservable}" for defect in unobservable] or ["- none"]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Row]) -> list[str]:
    """The confusion table: a line for every defect, without the time."""
    return [f"| {id_} | {component} | {_said(own)} | {_said(logits)} |" for id_, component, own, logits in rows]


def _said(naming: Naming) -> str:
    if not naming.dtype:
        return "not visible"
    return " or ".join(map(_list, naming.named[:6])) + (" or more" if len(naming.named) > 6 else "") or "unexplained"


def _list(ids: Ids) -> str:
    return " + ".join(ids)


if __name__ == "__main__":
    main()
