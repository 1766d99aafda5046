"""Whether the prompts of `--like` reveal a change of the reference: the logits of some prompt exceed their tolerance."""

import functools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.suite.like import like_cases

__all__ = ["DTYPE", "ENOUGH", "Model", "changes_another", "hidden", "model"]

DTYPE = "float32"
ENOUGH = 10.0  # times the tolerance: the least error of every known bug in some case
CHANGED = 1e-5  # relative to the largest logit: the least visible change in float32
# the prompts, most revealing and cheapest first
ORDER = """
    medium left_padding right_padding two_segments batch left_padding_columns right_padding_columns short one_token left_padding_alone
    original_length original_length_left_padding beyond_original_length long medium_steps steps long_steps
""".split()  # noqa: SIM905 - a list of names reads better in lines
OF_OTHERS = ("medium", "left_padding", "two_segments", "original_length_left_padding", "medium_steps", "steps")
LOGITS, STEPS = ("transformer", "masked_language_logits"), ("decode_in_steps",)


class Model:
    """A built-in checkpoint with its prompts and their expected logits in float32."""

    def __init__(self, name: str, settings: tuple[tuple[str, Any], ...] = (), steps: bool = False) -> None:
        """settings: changed entries of config.json. steps: the prompts are read in decoding steps."""
        with tempfile.TemporaryDirectory() as root:
            new.write(name, Path(root) / DTYPE, dtype=DTYPE, settings=dict(settings))
            asked = like_cases(Path(root))
        found = {case.name: case for case in asked if case.component in (STEPS if steps else LOGITS)}
        self.cases = [_kept(found[prompt]) for prompt in ORDER if prompt in found]

    @functools.cache  # noqa: B019 - models live as long as the tests
    def _expected(self, index: int) -> tolerance.Expectation:
        return tolerance.expect(self.cases[index].at(DTYPE))["output"]

    def times(self, changing: Any) -> float:
        """Returns the largest error with the change in the reference, divided by the tolerance; `ENOUGH` ends the search. changing: makes a
        context manager."""
        largest = 0.0
        for index, case in enumerate(self.cases):
            got = _answer(case, changing)
            if got is None:
                return np.inf
            with np.errstate(over="ignore"):
                largest = max(largest, compare(self._expected(index), got.astype(DTYPE)).excess)
            if largest > ENOUGH:
                break
        return largest


def _kept(case: Case) -> Case:
    """Returns the case with read-only arrays."""
    for array in (*case.inputs.values(), *case.parameters.values()):
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return case


def _answer(case: Case, changing: Any) -> np.ndarray | None:
    """Returns the logits with the change; None if it raises or returns no logits."""
    try:
        with changing(), np.errstate(all="ignore"):
            got = components.answer(case)["output"]
    except Exception:  # a change can cause any error
        return None
    return got if isinstance(got, np.ndarray) and got.dtype.kind in "fV" else None


model = functools.cache(Model)


@functools.cache
def others(name: str, steps: bool = False) -> list[tuple[Case, np.ndarray]]:
    """Returns prompts and logits of another model of the same kind, in which every number of config.json except sizes differs."""
    with tempfile.TemporaryDirectory() as root:
        new.write(name, Path(root) / "float64", seed=1, dtype="float64", settings=dict(_settings(new._said(name, "tiny", {}))))
        asked = [case for case in like_cases(Path(root)) if case.component in (STEPS if steps else LOGITS)]
        cases = [_kept(case) for case in asked if case.name in OF_OTHERS]
    return [(case, components.answer(case)["output"]) for case in cases]


def _settings(said: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{path}{name}.")
        elif name in ("sliding_window", "original_max_position_embeddings", "query_pre_attn_scalar"):
            yield path + name, value // 2 + 1
        elif isinstance(value, float) and "drop" not in name and "partial" not in name:
            yield path + name, value * 1.75
        elif isinstance(value, list) and value and all(isinstance(one, float) for one in value):
            yield path + name, [one * (1 + index / 5) for index, one in enumerate(value)]


def changes_another(name: str, changing: Any, steps: bool = False) -> bool:
    """Whether the change alters the logits of another model of that kind."""
    for case, logits in others(name, steps):
        got = _answer(case, changing)
        if got is None or got.shape != logits.shape or not np.abs(got - logits).max() <= CHANGED * np.abs(logits).max():
            return True
    return False


def hidden(
    name: str, changes: Iterable[tuple[str, Any]], settings: tuple[tuple[str, Any], ...] = (), steps: bool = False
) -> dict[str, float]:
    """Returns the changes that alter another model of that kind but that no prompt of this one reveals, with how near they come."""
    own = model(name, settings, steps)
    found = ((title, own.times(changing)) for title, changing in changes if changes_another(name, changing, steps))
    return {title: times for title, times in found if times <= ENOUGH}
