"""The report of a run: CPU seconds, counts, and the number of tests that the time limit left out."""

import json
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import kind_of

COUNTED = ("cases compared", "mutants caught", "mutants named")


def options(parser: pytest.Parser) -> None:
    """Adds the options of the report."""
    parser.addoption("--cpu-seconds", type=int, default=0, help="list so many of the costliest tests, and the kinds and folders")
    parser.addoption("--cpu-limit", type=float, help="fail a run that takes more CPU seconds")
    parser.addoption("--minutes", type=float, help="start no test after so many minutes")
    parser.addoption("--counts", type=Path, help="write the counts of the run to this JSON file")


class RunReport:
    """Sums the measurements of a run's processes, prints them at the end and writes them with --counts.

    A test adds to a count with `record_property("cases compared", 12)`, which counts if the test passes.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.options = config.option
        self.start = self.before = 0.0
        self.tests: Counter[str] = Counter()  # CPU seconds
        self.kinds: Counter[str] = Counter()  # CPU seconds
        self.counts: Counter[str] = Counter(dict.fromkeys(("tests", "passed", "failed", "skipped", "not run", *COUNTED), 0))
        self.rest = 0.0

    def pytest_collection_finish(self) -> None:
        self.start = time.monotonic()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.before = _used()
        item.user_properties.append(("kind", kind_of(item)))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.options.minutes and time.monotonic() - self.start > 60 * self.options.minutes:
            pytest.skip(f"not run: {self.options.minutes:g} minutes are over")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append(("cpu seconds", _used() - self.before))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        given = dict(report.user_properties)
        if report.when == "teardown":
            self.tests[report.nodeid] += given["cpu seconds"]
            self.kinds[given["kind"]] += given["cpu seconds"]
        if report.when == "call" or report.outcome != "passed":
            not_run = report.outcome == "skipped" and "not run: " in str(report.longrepr)
            self.counts["not run" if not_run else report.outcome] += 1
            self.counts["tests"] += report.when != "teardown"
        if report.when == "call" and report.passed:
            self.counts.update({name: given[name] for name in COUNTED if name in given})

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if session.config.getoption("dist", "no") == "no" or hasattr(session.config, "workerinput"):
                self.rest += _used() - self.tests.total()
            else:  # the workers report their own usage
                self.rest += sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            if (output := getattr(session.config, "workeroutput", None)) is not None:
                output["start and collection"] = self.rest
            elif self.options.cpu_limit and self._total() > self.options.cpu_limit and not session.exitstatus:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collects the measurements of an xdist worker."""
        self.rest += getattr(node, "workeroutput", {}).get("start and collection", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.options.counts:
            self.options.counts.parent.mkdir(parents=True, exist_ok=True)
            self.options.counts.write_text(json.dumps(self.counts | {"CPU seconds": round(self._total())}, indent=1) + "\n")
        if self.counts["not run"]:
            terminalreporter.line(f"{self.counts['not run']} of {self.counts['tests']} tests were not run", yellow=True)
        if not self.options.cpu_seconds:
            return
        folders = Counter({"start and collection": self.rest})
        for test, seconds in self.tests.items():
            folders[test.partition("::")[0].split("/")[1]] += seconds
        terminalreporter.section("CPU seconds")
        together = f"together, of {self.options.cpu_limit:.0f}" if self.options.cpu_limit else "together"
        for name, seconds in [*folders.most_common(), *self.kinds.most_common(), (together, self._total())]:
            terminalreporter.line(f"{name:<22}{seconds:>7.0f}")
        for test, seconds in self.tests.most_common(self.options.cpu_seconds):
            terminalreporter.line(f"{seconds:>7.1f}  {test}")

    def _total(self) -> float:
        return self.tests.total() + self.rest


def _used() -> float:
    """Returns the CPU seconds of this process and its finished children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
