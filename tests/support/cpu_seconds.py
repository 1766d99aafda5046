"""CPU seconds of each folder of tests, including all processes."""

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

# The CPU seconds that `make test` may take, on a quiet core and a clean clone.
LIMIT = 1100


class CpuSeconds:
    """Adds up what each test costs, in each process of a run, and prints the sums at its end.

    costliest: how many tests are named, 0 for no table at all.
    """

    def __init__(self, costliest: int) -> None:
        self.costliest = costliest
        self.tests: Counter[str] = Counter()
        self.rest = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _used()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] += _used() - before

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if session.config.getoption("dist", "no") == "no" or hasattr(session.config, "workerinput"):
                self.rest += _used() - sum(self.tests.values())
            else:  # what its workers took comes from them
                self.rest += sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            if (output := getattr(session.config, "workeroutput", None)) is not None:
                output["cpu_seconds"] = (dict(self.tests), self.rest)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes over what a worker of xdist has measured."""
        tests, rest = getattr(node, "workeroutput", {}).get("cpu_seconds", ({}, 0.0))
        self.tests.update(tests)
        self.rest += rest

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.costliest:
            return
        folders = Counter({"start and collection": self.rest})
        for test, seconds in self.tests.items():
            folders[PurePosixPath(test.partition("::")[0]).parts[1]] += seconds
        terminalreporter.section("CPU seconds")
        for name, seconds in [*folders.most_common(), (f"together, of {LIMIT}", sum(folders.values()))]:
            terminalreporter.line(f"{name:<22}{seconds:>7.0f}")
        terminalreporter.line(f"the {self.costliest} costliest tests:")
        for test, seconds in self.tests.most_common(self.costliest):
            terminalreporter.line(f"{seconds:>7.1f}  {test}")


def _used() -> float:
    """The CPU seconds of this process and of the processes that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
