"""Runs a draft as the port that would be written, to find masks and dtypes and measure errors."""

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration
from ..diagnosis import altered
from ..expectation.components import answer
from . import words
from .components import is_model
from .draft import Choice, Draft, Selection
from .helpers import DIALECTS
from .port_text import written
from .trials import FIRST, trial_cases
from .user_code import FAILURES, failure, limited

DTYPES = ("float64", "float32")
_CONFIG = re.compile(r'\A""".*?"""|^config = \{.*?^\}', re.MULTILINE | re.DOTALL)
SAME = 2e-5  # relative to the largest number: the error of a correct port that computes some things in float32
TRIED = 200  # the most combinations of values, independent of the machine's load


def combinations(choices: Sequence[Choice]) -> Iterator[dict[str, Any]]:
    """Yields all combinations of values, those with the fewest unlikely values first."""
    found = itertools.product(*(range(len(choice.values)) for choice in choices))
    for indices in sorted(itertools.islice(found, 20_000), key=lambda indices: (sum(map(bool, indices)), sum(indices))):
        yield {choice.name: choice.values[index] for choice, index in zip(choices, indices, strict=True)}


def start(draft: Draft, masked: bool) -> None:
    """Finds masks, dtypes and an expression with which the output has the right shape.

    masked: whether it needs masks even if a case has none.
    """
    case = trial_cases(draft, draft.selection, "all")[0]
    problems: dict[str, None] = {}
    if draft.component == "positional_encoding":  # its inputs become known when it runs
        draft.undecided = {}
    plain, needed = draft.choices, draft.call.filled
    filled = [dataclasses.replace(one, values=tuple(needed.get(one.argument, one.values))) for one in plain]
    for choices in ([plain] if not needed or not masked else []) + [filled] * bool(needed):
        draft.choices = choices
        for chosen in itertools.islice(combinations([choice for choice in choices if choice.argument]), TRIED):
            selection = draft.selection | chosen
            found = {dtype: _attempt(draft, selection, case, dtype) for dtype in DTYPES}
            works = {dtype: place for dtype, (place, _) in found.items() if place is not None}
            if works:
                draft.selection, draft.dtypes, draft.refused = selection, tuple(works), found["float64"][1]
                draft.output = next(iter(works.values()))
                draft.undecided = {one.name: "" for one in choices if one.name in draft.undecided and len(one.values) > 1}
                return
            problems |= {problem: None for _, problem in found.values()}
    draft.choices = plain
    draft.failure = next((problem for problem in problems if problem.startswith(words.WRONG_SHAPE)), next(iter(problems)))
    if case.inputs.get("target") is not None:
        vectors = (*case.inputs["target"].shape, case.config.model_width)
        draft.gives_vectors = f"{words.WRONG_SHAPE} {vectors}," in " ".join(problems)


def _attempt(draft: Draft, selection: Selection, case: Case, dtype: str) -> tuple[str | None, str]:
    """Returns the expression for the output and no problem, or None and the problem."""
    shape = answer(case)["output"].shape
    try:
        found = _run(_adapter(draft, selection), case, dtype)
        if '"position_bt"' in draft.given(selection).values() and _ignores_positions(draft, selection, case, found):
            return None, words.IGNORES_POSITIONS
    except FAILURES as error:
        return None, failure(error)
    several: dict[Any, Any] = dict(enumerate(found)) if isinstance(found, tuple) else found if isinstance(found, dict) else {"": found}
    for name, value in several.items():
        text = _reshaped(draft, case, f"output[{json.dumps(name)}]" if name != "" else "output", getattr(value, "shape", None), shape)
        if text and str(value.dtype) != dtype:
            return None, words.of_dtype(value.dtype)
        if text:
            return text, ""
    if own := [str(value.shape) for value in several.values() if hasattr(value, "shape")]:
        return None, words.wrong_shape(own, shape)
    return None, words.no_tensor([type(value).__name__ for value in several.values()], shape)


def _reshaped(draft: Draft, case: Case, text: str, own: Any, shape: tuple[int, ...]) -> str:
    """Returns the expression that gives a tensor the required shape; "" if there is none.

    All positions of all rows may be one axis, and encodings of positions may have no batch axis.
    """
    if own == shape:
        return text
    library = DIALECTS[draft.adapter].library
    if draft.component == "positional_encoding":
        return f'{library}.broadcast_to({text}, inputs["zeros_btd"].shape)' if own == shape[1:] else ""
    if own != (shape[0] * shape[1], *shape[2:]):
        return ""
    name = next(name for name, value in case.inputs.items() if getattr(value, "shape", ())[:2] == shape[:2])
    return f'{library}.reshape({text}, (*inputs["{name}"].shape[:2], -1))'


def _ignores_positions(draft: Draft, selection: Selection, case: Case, found: Any) -> bool:
    later = dataclasses.replace(case, inputs={"position_bt": case.inputs["position_bt"] + 1})
    return np.array_equal(found, _run(_adapter(draft, selection), later, draft.dtypes[0]))


class Trials:
    """The errors of a draft for different values of its choices. Nothing runs twice."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._found: dict[Any, list[tuple[Case, Any]]] = {}
        self._errors: dict[Any, float] = {}
        self._runs: dict[tuple[str, str], Any] = {}

    def error(self, selection: Selection, group: str, deviation: Alteration | None) -> float:
        """Returns a group's largest error with a bug of the norms; infinity if it fails."""
        key = group, *sorted(selection.items())
        if key not in self._found:
            self._found[key] = self._outputs(selection, group)
        named = (*key, deviation and deviation.title)
        if named not in self._errors:
            errors = [min(_errors(case, output, deviation).values()) for case, output in self._found[key]]
            self._errors[named] = max(errors, default=np.inf)
        return self._errors[named]

    def form(self) -> str:
        """Returns the form of the model's logits, if they then match the reference."""
        draft, found = self.draft, dict[str, float]()
        for case, output in self._outputs(draft.selection, "all"):
            found |= {form: max(error, found.get(form, 0.0)) for form, error in _errors(case, output, draft.deviation).items()}
        best = min(found, key=lambda form: found[form], default="")
        return best if best and found[best] < min(SAME, found[""]) else ""

    def _outputs(self, selection: Selection, group: str) -> list[tuple[Case, Any]]:
        """Returns the cases with outputs, or [] on failure. Ignores the judge's fields."""
        text, found = written(self.draft, selection), []
        module = _CONFIG.sub("", text)
        try:
            for case in trial_cases(self.draft, selection, group):
                key = module, _digest(case, module)
                if key not in self._runs:
                    self._runs[key] = None  # the result if it fails
                    self._runs[key] = _run(_adapter(self.draft, selection, text), case, self.draft.dtypes[0])
                found.append((case, self._runs[key]))
        except FAILURES:
            return []
        return found


def _digest(case: Case, module: str) -> str:
    """Returns a digest of what a module reads of a case: arrays, and config fields in its text."""
    found = hashlib.sha256()
    for name, value in (*case.inputs.items(), *case.parameters.items()):
        found.update(f"{name} {value.shape}".encode() + value.tobytes() if isinstance(value, np.ndarray) else f"{name} {value}".encode())
    fields = sorted(set(re.findall(r"\bconfig\.(\w+)", module)))
    found.update(repr([getattr(case.config, name, None) for name in fields]).encode())
    return found.hexdigest()


def _adapter(draft: Draft, selection: Selection, text: str = "") -> Any:
    """Returns the judge's adapter for the port. text: of its file, if known."""
    port = ModuleType("proposed_port")
    exec(compile(text or written(draft, selection), "proposed_port.py", "exec"), port.__dict__)
    port.modes = ("eager",)  # type: ignore[attr-defined]
    return importlib.import_module(f"...ports.adapters.{draft.adapter}", __name__).Adapter(port)


def _run(adapter: Any, case: Case, dtype: str) -> Any:
    with limited("a call of the module"):
        return adapter.run(case.at(dtype, mode="eager"))


def _errors(case: Case, found: Any, deviation: Alteration | None) -> dict[str, float]:
    """Returns the largest relative error for each form of logits; infinity for a wrong shape."""
    outputs = altered.answer((deviation,), case) if deviation else answer(case)
    if outputs is None or not isinstance(found, np.ndarray) or found.shape != outputs["output"].shape:
        return {"": np.inf}
    errors = {form: float(np.abs(found - wanted).max() / np.abs(wanted).max()) for form, wanted in _forms(case, outputs["output"])}
    return {form: error if np.isfinite(error) else np.inf for form, error in errors.items()}


def _forms(case: Case, wanted: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the expected output, and other accepted forms of logits."""
    yield "", wanted
    if is_model(case.component):
        shares = np.exp(wanted - wanted.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        yield "log_softmax of", np.log(shares)
        yield "softmax of", shares
        yield "1 / sqrt(model_width) times", wanted / case.config.model_width**0.5


def is_causal(draft: Draft) -> bool:
    """Whether the first position's output ignores the last position's input."""
    with contextlib.suppress(*FAILURES):
        adapter, case = _adapter(draft, draft.selection), trial_cases(draft, draft.selection, "all")[0]
        name, x = next((name, value) for name, value in case.inputs.items() if value is not None)
        other = x.copy()
        other[:, -1] = np.where(x[:, -1] == FIRST, FIRST + 1, FIRST)  # for ids: two ids other than padding
        first, second = (
            _run(adapter, dataclasses.replace(case, inputs={**case.inputs, name: value}), draft.dtypes[0]) for value in (x, other)
        )
        return bool(np.array_equal(first[:, 0], second[:, 0])) and not np.array_equal(first, second)
    return False
