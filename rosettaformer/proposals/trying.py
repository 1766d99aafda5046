"""Deciding by trying: the component's cases for each value of what is open, and the value that gives the reference's numbers."""

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..conformance.case import Case
from ..conformance.reference.components import answer
from .draft import Choice, Draft, Settings
from .trials import trial_cases
from .writing import written

__all__ = ["decide", "is_causal", "said", "start"]

SAME = 2e-5  # of the largest number: a port that is right up to what it computes in float32
NEARER = 0.5  # the share of the likeliest value's error at which another is taken, and still marked
TRIED = 200  # combinations of masks at most, until the module runs
LONGEST = 20.0  # seconds for one group of choices, on a machine that has other work
# where a choice shows; the last two: masks of keys that are given, and of a decoder's own
GROUPS = ("norms", "feed_forward", "attention", "source", "target")


def decide(draft: Draft) -> None:
    """Sets what trying decides: each group of choices that shows in the same part of a model, on cases in which the other parts are silent.

    One that alone gives the reference's numbers is decided, and the likeliest of several that give the same. Where none does, the group is
    tried once more in the whole, and is otherwise undecided.
    """
    open_ = [choice for choice in draft.choices if len(choice.values) > 1]
    for group in GROUPS:
        choices = [choice for choice in open_ if choice.shows_in == group]
        if choices and not _decided(draft, choices, group):
            draft.undecided += [choice.name for choice in choices]
    again = [choice for choice in open_ if choice.name in draft.undecided]
    if again and _decided(draft, again, "all"):
        draft.undecided = [name for name in draft.undecided if name not in {choice.name for choice in again}]


def start(draft: Draft) -> None:
    """Sets the masks with which the module gives an output of the right shape, so that what does not depend on them can be tried, and what
    follows its call to get that output, where it returns several things.

    Raises ValueError where a model gives no logits.
    """
    masks = [choice for choice in draft.choices if choice.name.startswith("argument")]
    case = trial_cases(draft, draft.settings, "all")[0]
    shape, shapes = answer(case)["output"].shape, set()
    for indices in itertools.islice(_combinations(masks), TRIED):
        settings = draft.settings | _chosen(masks, indices)
        with contextlib.suppress(Exception):  # whatever the user's code raises: with another mask it may run
            found = _run(_adapter(draft, settings), case)
            several = dict(enumerate(found)) if isinstance(found, tuple) else found if isinstance(found, dict) else {}
            shapes.add(getattr(found, "shape", ()))
            places = [name for name, value in several.items() if getattr(value, "shape", None) == shape]
            if places or shape in shapes:
                draft.settings, draft.output = settings, f"[{json.dumps(places[0])}]" if places else ""
                return
    if draft.component == "transformer" and (*shape[:2], case.config.model_width) in shapes:
        raise ValueError(
            f"{draft.source.name} gives its last layer's vectors, for which no case asks; name a model with logits, or its layers"
        )


def _chosen(choices: Sequence[Choice], indices: Sequence[int]) -> dict[str, int]:
    return dict(zip((choice.name for choice in choices), indices, strict=True))


def _decided(draft: Draft, choices: Sequence[Choice], group: str) -> bool:
    """Tries the values of these choices in every combination; whether one gives the reference's numbers.

    It is set; where none does, the nearest, if it is much nearer than the likeliest.
    """
    started, found = time.monotonic(), []
    for indices in _combinations(choices):
        settings = draft.settings | _chosen(choices, indices)
        found.append((_error_of(draft, settings, group), settings))
        if found[-1][0] < SAME:
            draft.settings = settings
            draft.tried += [text for choice in choices if (text := _said(draft, choice)) not in draft.tried]
            return True
        if time.monotonic() - started > LONGEST:
            break
    error, settings = min(found, key=lambda pair: pair[0])
    if error < NEARER * found[0][0]:
        draft.settings = settings
    return False


def _combinations(choices: Sequence[Choice]) -> Iterator[tuple[int, ...]]:
    """Every combination of indices, those with the fewest values that are not the likeliest first."""
    found = itertools.product(*(range(len(choice.values)) for choice in choices))
    yield from sorted(itertools.islice(found, 20_000), key=lambda indices: (sum(map(bool, indices)), sum(indices)))


def _said(draft: Draft, choice: Choice) -> str:
    return f"{choice.name}: {said(draft, choice, draft.value(choice))}"


def said(draft: Draft, choice: Choice, value: Any) -> str:
    """A value of a choice, in words."""
    if choice.name.startswith("axes of"):
        parts = _parts_of(draft, choice.name.removeprefix("axes of "))
        rows = [row for part in parts for row in part.rows if len(row.axes) > 1]
        return ", ".join(dict.fromkeys(f"{row.native} {row.axes[min(value, len(row.axes) - 1)]}" for row in rows[:1]))
    return ", ".join(other for _, other in value) if choice.name.startswith("order of") else str(value)


def _parts_of(draft: Draft, component: str) -> list[Any]:
    queue, found = [draft.match.root], []
    while queue:
        part = queue.pop(0)
        found += [part] if part.component == component else []
        queue += part.parts
    return found


def _error_of(draft: Draft, settings: Settings, group: str) -> float:
    """The largest error on the cases of a group; infinite where the module cannot be run with these settings."""
    try:
        adapter = _adapter(draft, settings)
        return max(_error(adapter, case) for case in trial_cases(draft, settings, group))
    except Exception:  # whatever the user's code raises
        return np.inf


def _adapter(draft: Draft, settings: Settings) -> Any:
    """The judge's adapter, of the port as it would be written."""
    port = ModuleType("proposed_port")
    exec(compile(written(draft, settings), "proposed_port.py", "exec"), port.__dict__)
    port.modes = ("eager",)  # type: ignore[attr-defined]
    name = f"rosettaformer.conformance.ports.adapters.{draft.adapter}"
    return importlib.import_module(name).Adapter(port)


def _run(adapter: Any, case: Case) -> Any:
    dtype = next(iter(adapter.port.dtypes))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adapter.run(case.at(dtype, mode="eager"))


def _error(adapter: Any, case: Case) -> float:
    """The largest difference from the reference, as a part of its largest number; infinite where it is no such array."""
    found, wanted = _run(adapter, case), answer(case)["output"]
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return np.inf
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    return error if np.isfinite(error) else np.inf


def is_causal(draft: Draft) -> bool:
    """Whether the first position of a stack or layer keeps its output where the last one has another input: later tokens are hidden."""
    try:
        adapter, case = _adapter(draft, draft.settings), trial_cases(draft, draft.settings, "all")[0]
        (name, x), *_ = case.inputs.items()
        other = x.copy()
        other[:, -1] += 1
        first, second = (_run(adapter, dataclasses.replace(case, inputs={**case.inputs, name: value})) for value in (x, other))
        first, second = (found[0] if isinstance(found, tuple) else found for found in (first, second))
        return bool(np.array_equal(first[:, 0], second[:, 0])) and not np.array_equal(first, second)
    except Exception:  # whatever the user's code raises
        return False
