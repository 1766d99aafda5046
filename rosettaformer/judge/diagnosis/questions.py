"""Asks a port the cases of a component and further ones, and keeps the results as `check` does."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import outside
from ..case import Case
from ..catalogue import Alteration, all_defects
from ..catalogue.settings import all_settings
from ..expectation.expectation_store import Store
from ..expectation.near_ties import followed
from ..result import Expected, Result, judge
from ..status import FAILURES, LEFT, Kind, Status
from ..suite.asked import Question
from ..suite.hidden import Hidden
from ..summary import Summary
from . import altered
from .altered import Outputs
from .asked_port import AskedPort
from .evidence import Evidence, Search
from .evidence.crashes import Failed
from .evidence.evidence import complaint
from .evidence.first_wrong import first_wrong
from .evidence.randomness import twice
from .findings import Deadline
from .hypotheses import Hypotheses, candidates
from .words import fails_first, listed

TWICE = 3  # cases of a component that are evaluated twice at first
POSITIONS = ("rotary_embedding", "positional_encoding", "position_embedding")
SHOWN = 3  # paths listed in a name
STEPS = (3, 1, 2)  # tokens in each step of a short prompt

Progress = Callable[[str, float], None]
Say = Callable[[str], None]


class About(NamedTuple):
    """The subject of a finding. only_rounds: a wider dtype conforms; only rounding is wrong."""

    component: str
    dtype: str
    paths: Sequence[str] = ()
    only_rounds: bool = False

    @property
    def name(self) -> str:
        """The first paths, or the component if there are none."""
        return listed(self.paths, SHOWN, ", and {} more places") or self.component


@dataclass(frozen=True)
class Task:
    """The data shared by all steps. pairs: try pairs, too. say: called with each sentence."""

    port: AskedPort
    pairs: bool
    deadline: Deadline
    progress: Progress
    say: Say
    store: Store
    defects: Sequence[Alteration] = dataclasses.field(
        default_factory=lambda: [defect for defect in all_defects().values() if not defect.unobservable]
    )
    settings: Sequence[Alteration] = dataclasses.field(default_factory=lambda: list(all_settings().values()))

    def hypotheses(self, cases: Sequence[Case], only_rounds: bool = False) -> Hypotheses:
        """The hypotheses for these cases."""
        possible = [one for one in self.defects if one.rounding or not only_rounds]
        defects = candidates(cases, possible)
        if only_rounds:  # each takes long to try; those of positions show in long texts and come first
            defects.sort(key=lambda one: one.component not in POSITIONS)
        settings = candidates(cases, [one for one in self.settings if one.rounding or not only_rounds])
        return Hypotheses(cases, defects, settings, self.deadline, self.store)

    def search(self, place: About, cases: Sequence[Case], answers: Sequence[Outputs], failed: int = 0) -> Search:
        """The search on the port's outputs for these cases."""
        return Search(Evidence(self.hypotheses(cases, place.only_rounds), answers, failed))


class Questions:
    """Asks a port and keeps the results. heard: the first failure of the running component."""

    def __init__(self, task: Task) -> None:
        self.heard: tuple[About, str] | None = None
        self._task, self._port = task, task.port
        self._results: dict[tuple[str, str], tuple[Case, Result]] = {}

    def ask(self, place: About, every: bool = False) -> tuple[Search, Failed]:
        """The outputs and failures of a component in a dtype. every: not only core cases."""
        self.heard = None
        self._task.progress(f"{place.component} {place.dtype}", 0.0)
        cases = self._port.cases(place.component, place.dtype, every)
        replies = self._port.ask(twice(cases, TWICE), self._hear)
        failed = [(case, answer) for case, kind, answer in replies if kind not in (Kind.OUTPUTS, *LEFT)]
        answered = [(case, answer) for case, kind, answer in replies if kind == Kind.OUTPUTS]
        search = self._task.search(place, [case for case, _ in answered], [answer for _, answer in answered], len(failed))
        if search.evidence.failing and (short := [*_short(cases), *_cut(search.evidence)]):
            replied = [(case, answer) for case, kind, answer in self._port.ask(short) if kind == Kind.OUTPUTS]
            search.evidence.screen = self._task.search(place, [case for case, _ in replied], [answer for _, answer in replied]).evidence
        expected = iter(search.evidence.clean)
        for case, kind, answer in replies:
            self._judge(case, kind, answer, next(expected) if kind == Kind.OUTPUTS else {})
        return search, failed

    def fails_beyond(self, place: About) -> bool:
        """Whether the port fails a case that `ask` skips in this dtype."""
        asked = {case.id for case in self._port.cases(place.component, place.dtype)}
        rest = [case for case in self._port.cases(place.component, place.dtype, every=True) if case.id not in asked]
        self._task.progress(f"{place.component} {place.dtype}", 0.0)
        fails = False
        for case, kind, answer in self._port.ask(rest):
            expected = followed(case, self._task.store.expect(case), answer) if kind == Kind.OUTPUTS else {}
            self._judge(case, kind, answer, expected)
            fails = fails or kind not in (Kind.OUTPUTS, *LEFT) or (kind == Kind.OUTPUTS and not altered.equal(expected, answer))
        return fails

    def _hear(self, case: Case, kind: str, answer: Any) -> None:
        """Reports the first failure of a component before the other replies have arrived."""
        if self.heard is None and (wrong := complaint(case, kind, answer, self._task.store)):
            self.heard = About(case.component, case.dtype), wrong
            self._task.say(fails_first(case.component, case.dtype, wrong))

    def ask_declared(self) -> list[Result]:
        """The results of the cases declared to fail."""
        results = []
        for case, kind, answer in self._port.ask(self._port.declared):
            result = judge(self._row(case), kind, answer, self._task.store.expect(case) if kind == Kind.OUTPUTS else {})
            self._put(case, dataclasses.replace(result, status=Status.DEVIATION) if result.status in FAILURES else result)
            results.append(result)
        return results

    def ask_outside(self) -> None:
        """Asks the cases with ids out of range; an exported file declares how it handles them."""
        cases = [case.at(dtype) for case in self._port.outside for dtype in case.dtypes if dtype in self._port.dtypes]
        for case, kind, answer in self._port.ask(cases):
            expected = outside.expected(case, self._task.store) if kind == Kind.OUTPUTS else {}
            self._put(case, outside.judge(self._row(case), case, kind, answer, expected, self._port.promised(case)))

    def _judge(self, case: Case, kind: str, answer: Any, expected: Expected) -> None:
        """Judges the answer to a case in its dtype. expected: empty if there is no output."""
        self._put(case, judge(self._row(case), kind, answer, expected))

    def _row(self, case: Case) -> dict[str, Any]:
        """The fields of a result that identify its case."""
        return Question(case, case.dtype, case.device, case.mode).row(self._port.port)

    def _put(self, case: Case, result: Result) -> None:
        self._results[case.id, case.dtype] = case, result

    @property
    def results(self) -> list[Result]:
        """All results."""
        return [result for _, result in self._results.values()]

    @property
    def failed(self) -> list[Result]:
        """The results that are failures."""
        return [result for result in self.results if result.status in FAILURES]

    @property
    def reason(self) -> str:
        """Why the first skipped case was skipped; empty if there is none."""
        return next((result.message for result in self.results if result.message and result.status not in (Status.PASS, *FAILURES)), "")

    def shortage(self, hidden: Hidden) -> str:
        """The report of `check` if too little was compared. hidden: the vacuous cases."""
        found = []
        for case, result in self._results.values():
            reason = hidden.reason(case) if result.status == Status.PASS else ""
            found.append(dataclasses.replace(result, status=Status.NOT_SHOWN, message=reason) if reason else result)
        return Summary(found).shortage


def _cut(evidence: Evidence) -> list[Case]:
    """The smallest failing prompt in steps, up to the step that is wrong, with the first row and a
    wrong one.
    """
    index = evidence.cheapest()[0]
    case, found = evidence.probes[index], first_wrong(evidence.probes[index], evidence.clean[index], evidence.answers[index])
    if case.component != "decode_in_steps" or not case.folder or not found or found.position is None:
        return []
    ends = np.cumsum(case.inputs["splits"])
    steps = int((ends <= found.column_b.min()).sum()) + 1
    rows = sorted({0, int(found.column_b.argmin())})
    ids, mask = case.inputs["target"], case.inputs.get("target_mask_bt")
    cut = [None if given is None else given[rows, : ends[steps - 1]] for given in (ids, mask)]
    shorter = dataclasses.replace(case, name=f"{case.name}_cut", twice=False)
    return [shorter.given({"target": cut[0], "target_mask_bt": cut[1], "splits": case.inputs["splits"][:steps]})]


def _short(cases: Sequence[Case]) -> list[Case]:
    """The first tokens of a whole model's first prompt in steps; empty if there is none."""
    found = []
    for case in [case for case in cases if case.folder and case.component == "decode_in_steps"][:1]:
        real_bt = np.ones(case.inputs["target"].shape, bool) if case.real_bt is None else case.real_bt
        row = int(real_bt.sum(axis=1).argmax())
        tokens = case.inputs["target"][row, real_bt[row]][None, : sum(STEPS)]
        if tokens.shape[1] == sum(STEPS):
            short = dataclasses.replace(case, name="short_steps", twice=False)
            found.append(short.given({"target": tokens, "target_mask_bt": None, "splits": STEPS}))
    return found
