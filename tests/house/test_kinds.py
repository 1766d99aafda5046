"""Kinds of tests: their order, restrictions on unit tests, and the report of a run."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import FOLDERS, conformance, every, no_processes

HOUSE = Path(__file__).resolve().parents[2]
MODULE = """
import os, subprocess, sys
import pytest

def test_plain(record_property):
    record_property("cases compared", 7)

@pytest.mark.product
def test_marked():
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0

@pytest.mark.product
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.evidence)])
def test_parameters(number):
    pass

def test_wrong():
    try:
        subprocess.run([sys.executable, "-c", ""])
    except Exception:
        pass
"""


def run(folder: Path, *options: str, module: str = MODULE) -> tuple[int, dict[str, int], str]:
    """Returns the exit code, the counts and the output of running the module among the tests of the reference."""
    file = folder / "tests" / "reference" / "test_module.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(module)
    path = os.pathsep.join(str(HOUSE / "tests" / part) for part in ("", "support", "backends"))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--counts", "counts.json", *options, "tests"]
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    return done.returncode, json.loads((folder / "counts.json").read_text()), done.stdout


def test_every_folder_of_tests_has_a_kind() -> None:
    assert [*FOLDERS] == sorted({path.parent.name for path in (HOUSE / "tests").glob("*/test_*.py")})


@pytest.mark.parametrize("start", [
    lambda: subprocess.run([sys.executable, "-c", ""]), lambda: os.system(""), lambda: os.fork(),
    lambda: multiprocessing.get_context("fork").Process(target=print).start(),
    lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
], ids=["subprocess", "system", "fork", "forked", "spawned"])  # fmt: skip
def test_where_processes_are_refused_none_starts(start) -> None:
    with no_processes(), pytest.raises(pytest.fail.Exception):
        start()


def test_a_run_counts_and_a_unit_test_that_starts_a_process_fails_even_if_it_catches_exceptions(tmp_path: Path) -> None:
    code, counts, _ = run(tmp_path)
    assert (code, counts["tests"], counts["passed"], counts["failed"], counts["cases compared"]) == (1, 5, 4, 1, 7)


def test_a_run_of_a_kind_fails_above_its_limit_of_cpu_seconds(tmp_path: Path) -> None:
    code, counts, _ = run(tmp_path, "--kind", "product", "--cpu-limit", "0.01")
    assert (code, counts["tests"], counts["passed"]) == (1, 2, 2)


@pytest.mark.conformance
def test_a_run_of_several_processes_ends_after_its_time_and_says_what_did_not_run(tmp_path: Path) -> None:
    code, counts, out = run(tmp_path, "--kind", "product", "--kind", "evidence", "-n", "2", "--minutes", "0.00001")
    assert (code, counts["not run"], counts["passed"]) == (0, 3, 0)
    assert "3 of 3 tests were not run" in out


def test_a_run_ends_after_its_time_whatever_its_tests_do_to_the_timers(tmp_path: Path) -> None:
    stop = "import signal, time\n\ndef test_timer():\n    signal.setitimer(signal.ITIMER_REAL, 0)\n    time.sleep(2)\n"
    code, counts, _ = run(tmp_path, "--minutes", "0.03", module=stop + MODULE)
    assert (code, counts["passed"], counts["not run"]) == (0, 1, 5)


def test_parameters_get_the_mark_and_every_nth_keeps_its_kind() -> None:
    assert conformance(1).values == (1,) and conformance((1, 2)).values == conformance(1, 2).values == (1, 2)
    assert [bool(getattr(value, "marks", ())) for value in every(3, "abcd")] == [False, True, True, False]
