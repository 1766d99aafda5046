"""Options, test kinds, and skip reasons."""

import gc
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import browser
import expectations
import pytest
import run_report
from affected import affected, changed
from kinds import FOLDERS, KINDS, kind_of, no_processes
from sides_in_process import in_process

from rosettaformer.judge import suite as cases

cases.all_cases = expectations.all_cases = expectations.made_once(cases.all_cases)

# XLA's optimization is off, which halves its time, except in the test of test_conformance that compiles like users do.
XLA = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": "false",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Modules are compiled once, also for the processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

# The workers of a run share the cores: spinning threads of one would take them from the others.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) >= workers > 1:
        os.sched_setaffinity(0, cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) :: workers])


def pytest_configure(config: pytest.Config) -> None:
    """Caches programs compiled by XLA and Inductor, and the reference's expectations, for other processes and the next run."""
    config.pluginmanager.register(run_report.RunReport(config))
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--{name}={value}" for name, value in XLA.items()))
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # lowering is faster without source lines
    if cache := getattr(config, "cache", None):
        os.environ.setdefault("ROSETTAFORMER_EXPECTATIONS", str(cache.mkdir("expectations")))
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.mkdir("inductor")))
        os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")


def pytest_collection_finish() -> None:
    """Freezes everything imported by collection: the garbage collector, a tenth of the time, then skips it."""
    gc.freeze()
    platform.processor()  # starts a process on the first call, which unit tests must not do


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", type=int, default=16, help="how many random configurations are drawn, and an eighth as many models")
    parser.addoption("--kind", action="append", choices=KINDS, help="run the tests of this kind; may be repeated")
    parser.addoption("--affected", action="store_true", help="run the tests that the last day's commits can affect, the nearest first")
    run_report.options(parser)
    parser.addoption("--kills", type=int, default=1, help="how often a run is killed in a framework, which compiles again every time")


def _cuda() -> bool:
    """Whether torch or JAX has a CUDA device."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return True
    if importlib.util.find_spec("jax"):
        import jax

        return any(device.platform == "gpu" for device in jax.devices())
    return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips reading folders without unit tests."""
    of_tests = collection_path.parent == Path(__file__).parent
    return (of_tests and config.getoption("--kind") == ["unit"] and FOLDERS.get(collection_path.name, "unit") != "unit") or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedules whole files per worker, as their tests share fixtures; files of conformance are too long for that."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

    return None if "conformance" in (config.getoption("--kind") or KINDS) else ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Weights that a framework draws during a test are the same in every run."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(0)
    with no_processes() if kind_of(item) == "unit" else nullcontext():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kinds = config.getoption("--kind") or KINDS
    chosen = [item for item in items if kind_of(item) in kinds]
    if config.getoption("--affected"):
        chosen = affected(chosen, *changed(config.rootpath))
    config.hook.pytest_deselected(items=[*{*items} - {*chosen}])
    items[:] = chosen
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if silent := [item.nodeid for item in gpu if not item.function.__doc__]:
        raise pytest.UsageError(f"a gpu test must say what it adds to what is shown without one; got no docstring: {', '.join(silent)}")
    if gpu and not _cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def sides_in_process() -> Iterator[None]:
    """Runs both sides of comparisons in the test process."""
    with in_process():
        yield


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """Yields a browser without network access."""
    with browser.offline() as driver:
        yield driver


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Reports at the end if pages could not be opened in a browser. Frozen objects are not collected: the process ends."""
    yield
    gc.freeze()
    if session.config.getoption("--affected") and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and any(browser.MISSING in str(report.longrepr) for report in reporter.stats.get("skipped", ())):
        reporter.line(f"pages were not read in a browser, which is not installed: {browser.INSTALL}", yellow=True)
