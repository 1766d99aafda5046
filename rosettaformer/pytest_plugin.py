"""pytest plug-in that runs the suite's cases as tests of a port.

    from rosettaformer.pytest_plugin import parametrize_with_cases

    @parametrize_with_cases("my_port.py", dtypes=["float32"])
    def test_conforms(case):
        case.judge()

pytest loads this module in every run on a machine that has rosettaformer installed, so heavy
imports are deferred until the plug-in is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from .judge.status import Status

if TYPE_CHECKING:
    from .judge.case import Case
    from .judge.deviations import Deviation
    from .judge.expectation.expectation_store import Store
    from .judge.ports.session import Session
    from .judge.result import Result

__all__ = ["DeclaredDeviation", "PortCase", "parametrize_with_cases"]

SKIPPED = (
    Status.NOT_COMPARABLE, Status.EMPTY, Status.NOT_SHOWN, Status.NOT_COVERED, Status.UNSUPPORTED, Status.MISSING, Status.SKIPPED,
    Status.TOO_LARGE,
)  # fmt: skip
COMPARED = "rosettaformer compared"  # the key under which a pytest-xdist worker sends its results


class _Asked(NamedTuple):
    """A port, and the whole model it is judged on, if any."""

    port: str
    like: str = ""
    seed: int = 0


def _like_cases(asked: _Asked, closing: ExitStack) -> list[Case]:
    """The cases of a whole model. Closing `closing` removes their checkpoints."""
    from .judge.selection import Selection, cases_for

    return closing.enter_context(cases_for((), Selection(like=asked.like, seed=asked.seed)))


class _Ports:
    """The port processes of one pytest process, one per port, and the results of their cases."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._open: dict[_Asked, Session] = {}
        self._store: Store | None = None
        self._results: dict[tuple[_Asked, str, str, str], Result] = {}
        self.compared: dict[str, bool] = {}  # port -> whether any case of it was compared

    def started(self, asked: _Asked) -> Session:
        """Returns the port's session. The first call starts its process."""
        from .common.processes import cores
        from .judge.ports.session import Session
        from .judge.suite.asked import Suite

        if asked not in self._open:
            sharers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
            cases = _like_cases(asked, self._closing) if asked.like else None
            self._open[asked] = Session(asked.port, Suite(cases), max(1, cores() // sharers))
            self._closing.callback(self._open[asked].close)
        return self._open[asked]

    def result(self, asked: _Asked, case: str, dtype: str, mode: str, limit: float) -> Result:
        """Returns the result of a case; each case runs once."""
        from .judge.expectation.expectation_store import Store
        from .judge.runner import run_alone

        key = (asked, case, dtype, mode)
        if key not in self._results:
            session, self._store = self.started(asked), self._store or Store()
            self._results[key] = run_alone(session, session.question(case, dtype, mode), limit, self._store)
        return self._results[key]

    def close(self) -> None:
        """Ends the processes."""
        self._closing.close()


@dataclass
class _Question:
    """The value of a test's `case` argument. `ports` is assigned during test setup."""

    asked: _Asked
    limit: float = field(repr=False)
    ports: _Ports = field(init=False, repr=False)

    @property
    def port(self) -> str:
        """The port's name."""
        return self.asked.port

    def result(self, case: str, dtype: str, mode: str) -> Result:
        """Returns the result of a case on the port."""
        return self.ports.result(self.asked, case, dtype, mode, self.limit)


@dataclass
class PortCase(_Question):
    """A case of the suite for a port, in one dtype and mode."""

    id: str
    dtype: str
    mode: str
    deviations: Sequence[Deviation] = field(repr=False)
    alike: int = field(default=1, repr=False)  # the cases this one represents: all are skipped for the same reason

    @property
    def component(self) -> str:
        """The component under test."""
        return self.id.partition("/")[0]

    def judge(self) -> None:
        """Raises AssertionError with a single message unless the port conforms.

        Skips the test if nothing could be compared. Marks it as an expected failure if the
        deviations file declares it.
        """
        __tracebackhide__ = True
        from .judge.deviations import declare

        result = declare(self.result(self.id, self.dtype, self.mode), self.deviations)
        self.ports.compared[self.port] = self.ports.compared.get(self.port, False) or result.status not in SKIPPED
        if result.status == Status.PASS:
            return
        others = f" ({self.alike} cases)" if self.alike > 1 else ""
        if result.status in SKIPPED:
            pytest.skip(f"{result.status}: {result.message}{others}")
        if result.status == Status.DEVIATION:
            pytest.xfail(result.message)
        where = " ".join(filter(None, (self.id, result.dtype, result.mode)))
        raise AssertionError(f"{self.port} {result.status} {where}: {result.message}{others}")


@dataclass
class DeclaredDeviation(_Question):
    """An entry of the deviations file; judging it runs all of its cases on the port."""

    deviation: Deviation
    modes: Sequence[str]

    def judge(self) -> None:
        """Raises AssertionError for an unexpected pass: no declared failure occurs."""
        __tracebackhide__ = True
        from .judge.deviations import stale

        covers = sorted(self.deviation.covers)
        results = [self.result(case, dtype, mode) for mode in self.modes for case, dtype in covers]
        if stale(self.deviation, results):
            entry = f"{self.deviation.case} of {self.port}"
            raise AssertionError(
                f"unexpected pass: none of the failures that the entry {entry} declares occurs any more. Remove the entry from the "
                f"deviations file. Its reason was: {self.deviation.reason} ({self.deviation.link})"
            )


def parametrize_with_cases(
    port: str = "",
    *,
    command: str = "",
    components: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    like: str = "",
    seed: int = 0,
    core: bool = False,
    grad: bool = False,
    deviations: str | Path | None = None,
    limit: float = 180.0,
) -> pytest.MarkDecorator:
    """Parametrizes a test's `case` argument with cases, each with a method `judge()`.

    port: as in `rosettaformer check PORT`.
    command: instead of `port`, the command line of a port in another environment or language.
    components, dtypes: restrict the cases; all by default.
    modes: "eager", "compiled"; by default the port's own mode.
    like: judges a whole model, as `rosettaformer check --like`, with random weights from `seed`.
    core: only the cases of a quick check.
    grad: also checks gradients; not needed for those listed in `components` (layer_norm_vjp).
    deviations: the file of expected failures. Each entry whose cases are all selected adds a test
        that fails on an unexpected pass.
    limit: seconds per case.

    Raises ValueError for unknown names, and lists all errors of the deviations file.
    """
    from .judge.case import DTYPES
    from .judge.deviations import read

    if bool(port) == bool(command):
        raise ValueError("pass either port or command" + ("; got both" if port else "; got neither"))
    port = port or f"command:{command}"
    asked = _Asked(port, like, seed)
    cases, known = _chosen(asked, components, dtypes, core, grad)
    entries = [entry for entry in read(Path(deviations), known) if entry.port == port] if deviations else []
    pairs = [(case.id, dtype) for case in cases for dtype in case.dtypes if dtypes is None or dtype in dtypes]
    if like:  # so that each dtype's checkpoint is loaded once
        pairs.sort(key=lambda pair: DTYPES.index(pair[1]))
    parameters: list[Any] = []
    for mode in modes or ("",):
        for case, dtype in pairs:
            name = "-".join(filter(None, (case, dtype, mode)))
            parameters.append(pytest.param(PortCase(asked, limit, case, dtype, mode, entries), id=name))
    for number, entry in enumerate(entries, 1):
        if entry.covers <= set(pairs):
            parameters.append(pytest.param(DeclaredDeviation(asked, limit, entry, modes or ("",)), id=f"deviation-{number}-{entry.case}"))
    return pytest.mark.parametrize("case", parameters)


def _chosen(
    asked: _Asked, components: Sequence[str] | None, dtypes: Sequence[str] | None, core: bool, grad: bool
) -> tuple[list[Case], list[Case]]:
    """Returns the selected cases, and all cases."""
    from .judge.case import DTYPES
    from .judge.expectation.components import COMPONENTS
    from .judge.suite import all_cases, of_components

    for what, names, known in (("components", components, COMPONENTS), ("dtypes", dtypes, DTYPES)):
        if isinstance(names, str) or (unknown := [name for name in names or () if name not in known]):
            got = repr(names) if isinstance(names, str) else ", ".join(unknown)
            raise ValueError(f"{what} must be a list of names from {', '.join(known)}; got {got}")
    with ExitStack() as closing:
        cases = _like_cases(asked, closing) if asked.like else all_cases(grad=True)
    return [case for case in of_components(cases, components or (), grad or bool(asked.like)) if case.core or not core], cases


_PORTS = pytest.StashKey[_Ports]()


def _question(item: pytest.Item) -> _Question | None:
    """Returns the question that a test asks a port; None for other tests."""
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return next((value for value in values if isinstance(value, _Question)), None)


def _test(item: pytest.Item, question: PortCase) -> tuple[str, _Asked]:
    """Returns the item's test function and the port it tests."""
    return item.nodeid.partition("[")[0], question.asked


def _is_other_layout(session: Session, component: str) -> bool:
    """Whether the component belongs to a layout (division into modules) other than the port's."""
    from .judge.expectation.components import is_layout

    return session.ready and is_layout(component) and component not in session.about["components"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduces the tests that cannot run to one per reason.

    Of all tests of a component that share a reason (such as: the port does not define it), only the
    first remains; so it does for all tests of a port that does not start. Components of layouts
    that the port does not use are deselected if the test function has other cases of that port.
    """
    if config.option.collectonly:
        return
    standing: dict[tuple[object, ...], PortCase] = {}
    asked: dict[pytest.Item, PortCase] = {item: found for item in items if isinstance(found := _question(item), PortCase)}
    ports = config.stash.setdefault(_PORTS, _Ports()) if asked else _Ports()
    others = [item for item, question in asked.items() if _is_other_layout(ports.started(question.asked), question.component)]
    own = {_test(item, question) for item, question in asked.items() if item not in others}
    left = [item for item in others if _test(item, asked[item]) in own]
    for item, question in asked.items():
        if item in left:
            continue
        session = ports.started(question.asked)
        posed = session.question(question.id, question.dtype, question.mode)
        key = (*_test(item, question), question.component if session.ready else "", posed.status, posed.reason)
        if posed.status and key in standing:
            standing[key].alike += 1
            left.append(item)
        elif posed.status:
            standing[key] = question
    if left:
        gone = set(left)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attaches the processes of this run to a test's question."""
    if question := _question(item):
        question.ports = item.config.stash.setdefault(_PORTS, _Ports())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fails the run if nothing of a port was compared, and ends the processes."""
    ports = session.config.stash.get(_PORTS, None)
    if ports and hasattr(session.config, "workeroutput"):  # on a pytest-xdist worker: the controller decides
        session.config.workeroutput[COMPARED] = ports.compared
    elif ports and _lacking(ports) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    try:
        return (yield)
    finally:
        if ports:
            ports.close()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects the results of a pytest-xdist worker."""
    ports = node.config.stash.setdefault(_PORTS, _Ports())
    for port, compared in getattr(node, "workeroutput", {}).get(COMPARED, {}).items():
        ports.compared[port] = ports.compared.get(port, False) or compared


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Reports the ports of which nothing was compared."""
    for port in _lacking(config.stash.get(_PORTS, _Ports())):
        terminalreporter.write_line(f"FAILED {port}: nothing was compared", red=True)


def _lacking(ports: _Ports) -> list[str]:
    return [port for port, compared in ports.compared.items() if not compared]
