"""Finds the failing parts of a traced model, their causes, and whether the whole follows."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import injected
from ..expectation import tolerance, trace
from ..expectation.components import DIFFERENTIABLE, FORWARD
from ..ports.adapters.recorder import Force
from ..ports.adapters.submodules import transposed
from ..status import Kind
from . import altered, words
from .altered import FAILURES, Combination, Outputs
from .conclusions import Conclusions
from .divergence import Backward, Divergence, Failure, backward, divergence
from .evidence import Evidence
from .findings import Verdict
from .port_symptoms import symptoms_of
from .questions import About, Task

TRIED = 3  # failing cases that are tried
TRACED = 2  # failing cases on which an unexplained model is traced
TRACEABLE = [component for component in FORWARD if component in DIFFERENTIABLE]  # those with one output, computed by their parts
NAMELESS = (Verdict.DESCRIBED, Verdict.PARTLY, Verdict.UNEXPLAINED)


class FailingParts:
    """Adds the findings on the parts of traced models. divergences, gradients: see `Diagnosis`."""

    def __init__(self, task: Task, conclusions: Conclusions) -> None:
        self.divergences: list[Divergence] = []
        self.gradients: list[Backward] = []
        self._task, self._port, self._conclusions = task, task.port, conclusions

    def failures(self, dtype: str, evidence: Evidence, count: int = 1) -> list[Failure]:
        """The innermost parts that fail on the reference's inputs in the count-th failing case."""
        if len(evidence.failing) < count:
            return []
        case = evidence.probes[evidence.failing[count - 1]]
        if case.component not in TRACEABLE:
            return []
        found = divergence(self._port.worker, case, dtype, limit=self._port.limit, progress=self._progress(f"{case.id}, its parts"))
        if len(found.rows) < 2:
            return []
        if count == 1:
            self.divergences.append(found)
        paths = [failure.path for failure in found.failures]
        return [failure for failure in found.failures if failure.path and not any(path.startswith(f"{failure.path}.") for path in paths)]

    def localise(self, place: About, evidence: Evidence, failures: Sequence[Failure]) -> None:
        """Adds the findings on the parts of a model that fail in the first or in a further case."""
        kinds: dict[str, list[Failure]] = {}
        for failure in (*failures, *self.failures(place.dtype, evidence, TRACED)):
            kinds.setdefault(failure.case.component, []).append(failure)
        for own in kinds.values():
            self._localise_kind(place, own)

    def _localise_kind(self, place: About, failures: Sequence[Failure]) -> None:
        """Adds the finding on parts of one kind, or one per position in a layer if they differ."""
        paths = sorted({failure.path for failure in failures})
        place = place._replace(component=failures[0].case.component, paths=paths)
        part = self._task.search(place, [failure.case for failure in failures], [{"output": failure.output} for failure in failures])
        roles: dict[str, list[Failure]] = {}
        for failure in failures:
            roles.setdefault(re.sub(r"\d+", "*", failure.path), []).append(failure)
        known = self._conclusions.known
        if not (found := part.explain(known) or part.constants(known)):
            symptoms = symptoms_of(self._task, place, part.evidence, known, aloud=len(roles) == 1)
            complete = any(symptom.complete for symptom in symptoms)
            if len(roles) > 1 and not complete:
                for own in roles.values():
                    self._localise_kind(place, own)
                return
            found = [] if complete else part.pairs()
        if found:
            finding = self._conclusions.explained(place, part.evidence, found)
        else:
            finding = self._conclusions.nameless(place, part.evidence, symptoms)
        self._conclusions.open.append((finding, part.evidence))

    def whole_follows(self, place: About, evidence: Evidence) -> str:
        """The text of a finding that follows from unexplained parts; empty if it does not."""
        nameless = [finding for finding in self._conclusions.findings if finding.verdict in NAMELESS]
        components = {finding.component for finding in nameless if not finding.paths and finding.component in FORWARD}
        paths = {path for finding, _ in self._conclusions.open for path in finding.paths if finding in nameless}
        if place.component not in FORWARD or not (components or paths):
            return ""
        known = self._conclusions.known
        tried = [(evidence.probes[index], evidence.answers[index]) for index in evidence.cheapest()[:TRIED]]
        if not tried or not all(self._equals_with_own(components, paths, known, *each) for each in tried):
            return ""
        return words.follows_own(sorted(components) or sorted(paths), known, len(tried))

    def _equals_with_own(self, components: Collection[str], paths: Collection[str], known: Combination, probe: Case, got: Outputs) -> bool:
        """Whether the altered reference gives the output with the port's own parts in it."""

        def own(call: trace.TracedCall) -> np.ndarray | None:
            if call.path and call.component in components:
                return _like(call, self._alone(call))
            return _like(call, self._within_the_model(call)) if call.path in paths else None

        def answer(case: Case) -> dict[str, Any]:
            with injected(*(one.on(case) for one in known)):
                return {"output": trace.record(case, own)[""].output}

        try:
            return altered.equal(tolerance.expect(probe, answer), got)
        except FAILURES:
            return False

    def _alone(self, call: trace.TracedCall) -> Any:
        """The port's output for a call, asked as a case of the component."""
        replies = self._port.ask([call.case(str(call.output.dtype))])
        return replies[0][2]["output"] if replies and replies[0][1] == Kind.OUTPUTS else None

    def _within_the_model(self, call: trace.TracedCall) -> Any:
        """The output of the port's part for the inputs of a call, in a run of the whole model."""
        force = Force(call.path, trace.arrays(call.case(str(call.output.dtype)).inputs))
        kind, answer = self._port.worker.call("trace", call.origin, [force], limit=self._port.limit)
        return answer[0].get(call.path, {}).get("output") if kind == Kind.OUTPUTS else None

    def first_random(self, case: Case) -> str:
        """The path of the first part that is random on equal inputs; empty if none is traced."""
        if case.component not in TRACEABLE:
            return ""
        kind, runs = self._port.worker.call("trace", case, [None, None], limit=self._port.limit)
        if kind != Kind.OUTPUTS:
            return ""
        for path in filter(None, trace.record(case.at("float64"))):
            inputs, outputs = ([run.get(path, {}).get(name) for run in runs] for name in ("inputs", "output"))
            arrays = None not in inputs and all(isinstance(output, np.ndarray) for output in outputs)
            if arrays and _same(*inputs) and not _same(*([output] for output in outputs)):
                return str(path)
        return ""

    def walk_gradients(self, components: Iterable[str]) -> Backward | None:
        """Walks the gradients of the largest component back; None if no parts are traced."""
        cases = self._port.undeclared(set(components) & set(self._port.covered) & set(TRACEABLE))
        if not cases or not self._port.dtypes:
            return None
        dtype, worker, limit = self._port.dtypes[0], self._port.worker, self._port.limit
        case = max(cases, key=lambda case: (list(FORWARD).index(case.component), case.core))
        forward = divergence(worker, case, dtype, limit=limit)
        if not forward.rows:
            return None
        self.gradients.append(backward(worker, forward, case, limit=limit, progress=self._progress(f"{case.id}, gradients")))
        return self.gradients[-1]

    def _progress(self, what: str) -> Callable[[float], None]:
        return lambda share: self._task.progress(what, share)


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def _like(call: trace.TracedCall, output: Any) -> np.ndarray:
    """Returns a port's output like the reference's. Raises ValueError on another shape."""
    if not isinstance(output, np.ndarray) or (output := transposed(output, call.output.shape)).shape != call.output.shape:
        raise ValueError(f"the port's {call.name} must have an output of shape {call.output.shape}")
    return output.astype(call.output.dtype)
