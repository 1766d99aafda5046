"""Proves that what `check` asks shows every operation, constant, branch, comparison and input of a model.

    python tools/mutants.py FOLDER                  # every family of --like, and every component
    python tools/mutants.py FOLDER llama softmax    # these

The reference changes at one place at a time. A change is killed if the outputs of some case that
`check` asks, computed in float64, exceed a float32 tolerance tenfold, or if it raises. What
survives is in mutants.toml, with the reason why no output can show it, or is a gap.
`make evidence STEP=mutants` writes the page; a target that is finished is kept.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutant_values
import numpy as np
from evidence import kept, write
from expectations import all_by_id

from reference_numpy.fields import is_number
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import injected
from rosettaformer.judge.catalogue.alteration import places, setting, sites
from rosettaformer.judge.compare import compare
from rosettaformer.judge.diagnosis.hypotheses import code as of_code
from rosettaformer.judge.diagnosis.hypotheses.dataflow import dataflow_changes
from rosettaformer.judge.diagnosis.hypotheses.inputs import other_inputs
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.suite.like_folders import cases_of

__all__ = ["DTYPE", "ENOUGH", "INFERRED", "Asked", "Change", "changes", "code", "of_component", "of_family", "survivors"]

DTYPE = "float32"  # in which `check --like FAMILY` asks by default
ENOUGH = 10.0  # tolerances
FEW = 200  # tokens of a case that is not long
LAST = 100  # the last id of the built-in vocabularies
SIZES = """
    source_vocabulary target_vocabulary model_width heads key_value_heads key_size value_size feed_forward_width encoder_layers
    decoder_layers segments max_positions classes padding_id
""".split()  # noqa: SIM905 - a list of names reads better in lines
OTHER = {"local": "global", "global": "local", True: False, False: True}
LOGITS = ("transformer", "masked_language_logits", "classify")
KINDS = ("code", "dataflow", "inputs", "numbers")


@dataclass(frozen=True)
class Change:
    """One mutant. key: names it in mutants.toml. changing: makes a context manager. changed: the case that the mutant reads instead, None
    if it does not apply. reached: whether the case of this index evaluates the changed place. same: whether no short case changes."""

    kind: str
    key: str
    changing: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    changed: Callable[[Case], Case | None] = lambda case: case
    reached: Callable[[int], bool] = lambda index: True
    same: Callable[[], bool] = lambda: False


class Asked:
    """Cases that a check asks, with their expectations."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = _in_memory([case for case in cases if DTYPE in case.dtypes and not components.forward_of(case.component)])
        self._expected: dict[int, tolerance.Expectations] = {}
        self._seconds = dict.fromkeys(range(len(self.cases)), 0.0)
        self._kills = Counter[int]()

    @property
    def component(self) -> str:
        """The component, empty for a family's model."""
        return "" if self.cases[0].folder else self.cases[0].component

    @functools.cached_property
    def reached(self) -> list[dict[str, frozenset[int]]]:
        """The sites of functions that each case reaches."""
        found = []
        with of_code.reached(functions()) as sites:
            for index, case in enumerate(self.cases):
                start = time.perf_counter()
                components.answer(case)
                self._seconds[index] = time.perf_counter() - start
                found.append({name: frozenset(indices) for name, indices in sites.items()})
                for indices in sites.values():
                    indices.clear()
        return found

    @functools.cached_property
    def short(self) -> list[tuple[int, Case]]:
        """The cases that are not long, with their indices, the fastest first."""
        return sorted(((index, case) for index, case in enumerate(self.cases) if not _long(case)), key=lambda one: self._seconds[one[0]])

    def killing(self, change: Change, long: bool = False) -> str:
        """Returns the name of a case that kills a change, empty if none does. long: asks the long cases, instead of the others."""
        promising = sorted(self._seconds, key=lambda index: self._seconds[index] / (1 + self._kills[index]))
        for index in promising:
            if change.reached(index) and long == _long(self.cases[index]) and self._differs(index, change):
                self._kills[index] += 1
                return self.cases[index].name
        return ""

    def _differs(self, index: int, change: Change) -> bool:
        case = None
        with contextlib.suppress(LookupError):  # the case lacks an input
            case = change.changed(self.cases[index])
        if case is None:
            return False
        try:
            with change.changing(), np.errstate(all="ignore"):
                outputs = components.answer(case)
        except Exception:  # a mutant can raise anything
            return True
        if index not in self._expected:
            self._expected[index] = tolerance.expect(self.cases[index].at(DTYPE))
        expected = self._expected[index]
        with np.errstate(all="ignore"):
            return outputs.keys() != expected.keys() or any(_excess(one, outputs[name]) >= ENOUGH for name, one in expected.items())


def _in_memory(cases: Sequence[Case]) -> list[Case]:
    """The cases with arrays that no mutant can change."""
    read = {id(case.parameters): {name: np.array(value) for name, value in case.parameters.items()} for case in cases}
    found = [dataclasses.replace(case, parameters=read[id(case.parameters)]) for case in cases]
    for case in found:
        for array in (*case.inputs.values(), *case.parameters.values()):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
    return found


def _excess(expected: tolerance.Expectation, output: Any) -> float:
    if not isinstance(output, np.ndarray) or output.dtype.kind not in "fiub":
        return np.inf
    found = compare(expected, output.astype(expected.dtype))
    return 0.0 if found.incomparable else found.excess


def _long(case: Case) -> bool:
    return any(np.size(value) > FEW for value in case.inputs.values()) and bool(case.folder)


def functions() -> list[of_code.Function]:
    """The functions whose changes outputs must show: all but those of the backward pass."""
    return [one for one in of_code.functions() if of_code.BACKWARD not in one.name]


def code(asked: Asked) -> Iterator[Change]:
    """Changes of the code that some case reaches."""
    for function in functions():
        by_case = [sites[function.name] for sites in asked.reached]
        for mutant in function.mutants() if any(by_case) else ():
            if any(mutant.site in sites for sites in by_case):
                changing = functools.partial(_swapped, mutant)
                reached, same = functools.partial(_in, by_case, mutant), functools.partial(_same, asked, mutant)
                yield Change("code", mutant.key, changing, reached=reached, same=same)


def _swapped(mutant: of_code.Mutant) -> AbstractContextManager[None]:
    return of_code.swapped(mutant.function, mutant.code())


def _in(by_case: Sequence[frozenset[int]], mutant: of_code.Mutant, index: int) -> bool:
    return mutant.site in by_case[index]


def _same(asked: Asked, mutant: of_code.Mutant) -> bool:
    """Whether no short case computes with what changes, or the values before and after are the same, as `compared` defines it."""
    return any(_of_short(asked, mutant, changing) for changing in (mutant_values.compared, mutant_values.without))


def _of_short(asked: Asked, mutant: of_code.Mutant, changing: Callable[[of_code.Mutant], AbstractContextManager[list[bool]]]) -> bool:
    for index, case in asked.short:
        if mutant.site in asked.reached[index][mutant.function.name]:
            try:
                with changing(mutant) as found, np.errstate(all="ignore"):
                    components.answer(case)
            except Exception:  # a changed value can raise anything
                return False
            if not all(found):
                return False
    return True


def dataflow(asked: Asked) -> Iterator[Change]:
    """Other values in a part of the model: in all layers, and in each place that separates some layers from the others."""
    padded = [case for case in asked.cases if case.component in LOGITS and case.name in ("left_padding", "right_padding", "two_segments")]
    reading = padded[-2:]
    found = dataflow_changes(reading)
    for function, altered in OF_LAYERS.items():
        if any(at := [sites(case, [function])[function] for case in reading]):
            found[setting(function, reading[0].component, function, "", altered, function)] = at
    for change, at in found.items():
        for place in (None, *places(at)):
            limited = dataclasses.replace(change, place=place)
            yield Change("dataflow", f"{change.id}{f' in {place}' if place else ''}", functools.partial(injected, limited))


OF_LAYERS: dict[str, Callable[..., Any]] = {
    "normalization.norm": lambda original, tree, config, x: original(tree, config.replace(epsilon=1.25 * config.epsilon), x),
    "mask.window_mask": lambda original, target, source, window: original(target, source, window + 1),
    "rotary.rotated": lambda original, x, turned, layout: x,
    "softmax.soft_cap": lambda original, x, cap: np.clip(x, -cap, cap),
}


def inputs(asked: Asked) -> Iterator[Change]:
    """Inputs that are ignored, replaced, shifted, or inferred from others; parameters that are ignored."""
    found = {one.words: one.change for case in asked.cases for one in other_inputs(case)}
    for words, change in (found | INFERRED | {f"with `{name}` rolled": _rolled(name) for name in asked.cases[0].parameters}).items():
        yield Change("inputs", words, changed=change)


def _rolled(name: str) -> Callable[[Case], Case | None]:
    """A change of a parameter: rows or values are moved by one; a single row is zero."""

    def change(case: Case) -> Case | None:
        value = case.parameters[name]
        other = np.roll(value, 1, axis=0) if len(value) > 1 else np.zeros_like(value)
        return dataclasses.replace(case, parameters={**case.parameters, name: other})

    return change


def _inferred(function: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[[Case], Case | None]:
    """A change of token ids and mask, given both and the places."""

    def change(case: Case) -> Case | None:
        for ids, mask in (("target", "target_mask_bt"), ("source", "source_mask_bs")):
            token_bt = case.inputs.get(ids)
            if case.folder and token_bt is not None:
                real_bt = np.ones(token_bt.shape, bool) if case.real_bt is None else case.real_bt
                other = function(token_bt, real_bt, np.arange(token_bt.shape[1]))
                return dataclasses.replace(case, inputs={**case.inputs, ids: other[0], mask: other[1]})
        return None

    return change


def _without_columns(case: Case) -> Case | None:
    if not case.folder or case.real_bt is None or "splits" in case.inputs:
        return None
    shape, used = case.real_bt.shape, case.real_bt.any(axis=0)
    cut = {name: value[:, used] if np.shape(value) == shape else value for name, value in case.inputs.items()}
    return dataclasses.replace(case, inputs=cut)


INFERRED: dict[str, Callable[[Case], Case | None]] = {
    "without the columns that are padding in all rows": _without_columns,
    "with the mask inferred from id 0": _inferred(lambda ids, mask, place: (ids, ids != 0)),
    "with tokens of id 0 also masked": _inferred(lambda ids, mask, place: (ids, mask & (ids != 0))),
    "with only tokens of id 0 masked": _inferred(lambda ids, mask, place: (ids, mask | (ids != 0))),
    "with the first row's mask": _inferred(lambda ids, mask, place: (ids, np.broadcast_to(mask[:1], mask.shape))),
    "with padding moved to the right": _inferred(lambda ids, mask, place: (ids, np.sort(mask)[:, ::-1])),
    "with padding moved to the left": _inferred(lambda ids, mask, place: (ids, np.sort(mask))),
    "with the last token of every row real": _inferred(lambda ids, mask, place: (ids, mask | (place == place[-1]))),
    "with the first token of every row real": _inferred(lambda ids, mask, place: (ids, mask | (place == 0))),
    "with the last id read as the one before": _inferred(lambda ids, mask, place: (np.minimum(ids, LAST - 1), mask)),
    "with id 0 read as 1": _inferred(lambda ids, mask, place: (np.maximum(ids, 1), mask)),
    "with all but the last 512 tokens masked": _inferred(lambda ids, mask, place: (ids, mask & (place > place[-1] - 512))),
}


def numbers(asked: Asked) -> Iterator[Change]:
    """Each number of the config two per cent larger, or one more; those that YaRN rounds, twice as large. Each layer of another kind."""
    given = asked.cases[0].config
    for field, value in given.to_dict().items():
        if field not in SIZES and "dropout" not in field:
            rounded = isinstance(value, dict) and value.get("truncate")
            found = _near(value, 2.0 if rounded else 1.02)
            for place, other in [("", value - 2 / given.key_size)] if field == "rotary_fraction" else found:
                with contextlib.suppress(ValueError):  # the model has no such number
                    config = given.replace(**{field: other})
                    yield Change("numbers", f"{field}{place}", changed=functools.partial(dataclasses.replace, config=config))


def _near(value: Any, times: float) -> Iterator[tuple[str, Any]]:
    """Yields nearby values in which one entry differs, and its place."""
    if isinstance(value, dict):
        yield from ((f".{key}{place}", {**value, key: near}) for key, one in value.items() for place, near in _near(one, times))
    elif isinstance(value, list | tuple):
        others = [one * times if is_number(one) else OTHER[one] for one in value]
        yield from ((f".{index}", [*value[:index], other, *value[index + 1 :]]) for index, other in enumerate(others))
    elif is_number(value):
        yield "", max(value + 1, int(value * times)) if isinstance(value, int) else value * times


def changes(asked: Asked) -> Iterator[Change]:
    """All changes of a family's model."""
    for make in (code, dataflow, inputs, numbers):
        yield from make(asked)


@dataclass(frozen=True)
class Rule:
    """Changes that no output can show. when: a condition of `config`, the first case's, and `component`; keys: patterns of their keys."""

    when: str
    reason: str
    keys: Sequence[str]

    def holds(self, change: Change, asked: Asked) -> bool:
        """Whether the rule is about a change."""
        names = {"config": asked.cases[0].config, "component": asked.component}
        return any(fnmatch.fnmatchcase(change.key, key.replace("[", "[[]")) for key in self.keys) and eval(self.when, names)


SAME = Rule("False", "the same object or the same choice of the config before and after the change, or of no use", ())


@functools.cache
def rules() -> list[Rule]:
    """The rules in mutants.toml, and the one that is found by running."""
    said = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [*(Rule(when, reason, keys) for when, reasons in said.items() for reason, keys in reasons.items()), SAME]


def survivors(asked: Asked, given: Iterable[Change]) -> Iterator[tuple[Change, str, Rule | None]]:
    """Yields each change with the name of a case that kills it, and the rule that says why none does.

    A change with a rule is not asked on long cases."""
    for change in given:
        rule = next((one for one in rules() if one.holds(change, asked)), None)
        killer = asked.killing(change)
        if not killer and rule is None:
            rule = SAME if change.same() else None
            killer = "" if rule else asked.killing(change, long=True)
        yield change, killer, rule


@contextlib.contextmanager
def of_family(name: str) -> Iterator[Asked]:
    """The cases of `check --like NAME`."""
    with tempfile.TemporaryDirectory() as root:
        yield Asked(case for case in cases_of(name, Path(root), ()) if case.name != "deep")  # which has another config


def of_component(name: str) -> Asked:
    """The cases of a component."""
    return Asked(case for case in all_by_id().values() if case.component == name and not case.excluded)


def result(target: str) -> dict[str, Any]:
    """Returns what becomes of a target's changes, by kind: counts, and the keys of those that survive."""
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(of_family(target)) if (family := target in new.names()) else of_component(target)
        found: dict[str, Any] = {kind: {"mutants": 0, "killed": 0, "equivalent": {}, "gaps": []} for kind in KINDS}
        for change, killer, rule in survivors(asked, (changes if family else code)(asked)):
            of_kind = found[change.kind]
            of_kind["mutants"] += 1
            if killer:
                of_kind["killed"] += 1
            elif rule:
                of_kind["equivalent"].setdefault(rule.reason, []).append(change.key)
            else:
                of_kind["gaps"].append(change.key)
                print(f"{target}: {change.key}", flush=True)
    return found


def main() -> None:
    """Writes the page."""
    folder, *chosen = sys.argv[1:]
    targets = chosen or [*new.names(), *(name for name in components.COMPONENTS if not components.forward_of(name))]
    write(Path(folder), "mutants.md", page({target: kept(Path(folder), target, functools.partial(result, target)) for target in targets}))


def page(found: dict[str, Any]) -> str:
    """The page: a table of mutants and survivors, the reasons, and the gaps."""
    lines = ["# Changes that the cases show", "", "A cell has the changes, those that no output can show, and the gaps.", ""]
    lines += [f"| target | {' | '.join(KINDS)} |", "|---|---|---|---|---|"]
    total, gaps = Counter[str](), list[str]()
    for target, kinds in found.items():
        cells = [f"{one['mutants']}, {sum(map(len, one['equivalent'].values()))}, {len(one['gaps'])}" for one in kinds.values()]
        lines.append(f"| {target} | {' | '.join(cells)} |")
        for one in kinds.values():
            total.update({reason: len(keys) for reason, keys in one["equivalent"].items()})
            gaps += [f"- {target}: `{key}`" for key in one["gaps"]]
    lines += ["", "Changes that no output can show:", "", *(f"- {reason}: {count}" for reason, count in total.most_common())]
    return "\n".join([*lines, "", "Gaps:", "", *(gaps or ["- none"])]) + "\n"


if __name__ == "__main__":
    main()
