"""Processes: waits are short, nothing stays behind, and environment failures are told apart from port errors."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from expectations import all_by_id
from invoke import heed_interrupts, invoke, marked
from kinds import conformance, every
from messages import mentions

from bench import __main__ as bench
from rosettaformer.common.backends import unavailable
from rosettaformer.common.extras import install
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports.process import Process
from rosettaformer.judge.summary import Summary

pytestmark = pytest.mark.product

HOUSE = Path(__file__).resolve().parents[2]
PLAIN = all_by_id()["layer_norm/plain"]
RIGHT = """
import enum, os, signal, subprocess, threading, time
from reference_numpy import normalization

def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    before(case)
    return y

def before(case): pass
"""
SLEEP = "def before(case): subprocess.Popen(['sleep', '600'], start_new_session=True)"
FORK = "def before(case): os.fork() or time.sleep(600)"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Sets a variable in the environment of all processes of a test."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("TEST_PROCESSES", value)
    yield f"TEST_PROCESSES={value}"
    for process in marked(f"TEST_PROCESSES={value}"):
        os.kill(process, signal.SIGKILL)


def _port(folder: Path, text: str) -> str:
    (folder / "port.py").write_text(RIGHT + text)
    return str(folder / "port.py")


def _cases(*names: str) -> list[Case]:
    return [dataclasses.replace(PLAIN, name=name, twice=False) for name in names]


def _rows(port: str, *names: str, limit: float = 20.0) -> list[tuple[str, str]]:
    return [(row.status, row.message) for row in runner.run(_cases(*names), [port], ["float64"], limit=limit)]


@pytest.mark.parametrize("text", [SLEEP, FORK], ids=["another session", "a fork that holds the pipes"])
def test_processes_that_a_port_leaves_are_ended_and_said(tmp_path: Path, mark: str, text: str) -> None:
    start = time.monotonic()
    rows = runner.run(_cases("plain"), [_port(tmp_path, text)], ["float64"], limit=20)
    assert time.monotonic() - start < 10
    assert [(row.status, row.message[-1:]) for row in rows] == [("pass", ""), ("left over", "1")]
    summary = Summary(rows)
    assert (summary.compared, summary.conforms) == (1, True)
    assert not marked(mark)


def test_helpers_that_end_with_the_port_are_not_left_over(tmp_path: Path, mark: str) -> None:
    text = """
import multiprocessing, sys
def before(case):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
"""
    assert _rows(_port(tmp_path, text), "plain") == [("pass", "")]
    assert not marked(mark)


def test_a_port_that_dies_while_its_fork_holds_the_pipes_is_a_crash_at_once(tmp_path: Path, mark: str) -> None:
    port = _port(tmp_path, "def before(case):\n    if case.name == 'bad': os.fork() and os._exit(7) or time.sleep(600)")
    start = time.monotonic()
    good, (status, message), last = _rows(port, "good", "bad", "last")
    assert good == last == ("pass", "")
    assert status == "crash" and mentions(message, "exit code 7 … 1")
    assert time.monotonic() - start < 10
    assert not marked(mark)


@pytest.mark.conformance
def test_a_port_that_takes_no_question_hangs_until_the_limit(tmp_path: Path) -> None:
    text = "def before(case): threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()"
    large = dataclasses.replace(PLAIN, parameters=dict(PLAIN.parameters) | {"other": PLAIN.inputs["x_btd"].repeat(2000)})
    worker = Process(_port(tmp_path, text), 1, 20.0)
    try:
        assert worker.ask(PLAIN, 20.0)[0] == "outputs"
        time.sleep(0.5)
        start = time.monotonic()
        assert worker.ask(large, 1.0)[0] == "hang"
        assert time.monotonic() - start < 2
        assert worker.ask(PLAIN, 20.0)[0] == "outputs"  # from a new process
    finally:
        worker.close()


def test_ports_read_no_questions_may_name_text_by_enumerations_and_return_what_can_be_copied(tmp_path: Path) -> None:
    text = "import sys\ndef before(case): assert sys.stdin.read() == ''"
    assert _rows(_port(tmp_path, text), "one", "two") == [("pass", "")] * 2
    text = "class Act(str, enum.Enum):\n    GELU = 'gelu_erf'\n\nconfig = {'activation': Act.GELU, 'model_width': 12}"
    assert _rows(_port(tmp_path, text), "plain") == [("pass", "")]
    text = "import numpy as np\ndef layer_norm(case): return np.broadcast_to(np.float64(0), (10**5, 10**5))"
    ((status, message),) = _rows(_port(tmp_path, text), "plain")
    assert status == "differs" and mentions(message, "1073748896 … 80000000000")


@pytest.mark.parametrize("number", [signal.SIGINT, conformance(signal.SIGTERM), signal.SIGKILL])
def test_the_command_leaves_nothing_when_it_is_ended(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    port = _port(tmp_path, "from pathlib import Path\ndef before(case):\n    Path(__file__).with_name('here').touch()\n    time.sleep(600)")
    command = [sys.executable, "-m", "rosettaformer", "check", port, "--component", "layer_norm", "--dtype", "float64"]
    with subprocess.Popen(command, cwd=HOUSE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "here").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(marked(mark)) == 2
        process.send_signal(number)
        process.wait(10)
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not marked(mark)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]


def test_a_diagnosis_that_is_interrupted_gives_the_best_so_far(tmp_path: Path, mark: str) -> None:
    """Ctrl-C reaches every process of the terminal while the second component hangs."""
    (tmp_path / "port.py").write_text("""
import pathlib, time
from reference_numpy import softmax as own

def softmax(case):
    return 2 * own.softmax(case.inputs["logits"], case.inputs.get("mask"))

def feed_forward(case):
    pathlib.Path("asked").touch()
    time.sleep(600)
""")
    command = [sys.executable, "-m", "rosettaformer", "diagnose", "port.py", "--json", "findings.json"]
    command += ["--answer-limit", "600"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(HOUSE), "PYTHONDONTWRITEBYTECODE": "1"}}
    own = {"start_new_session": True, "preexec_fn": heed_interrupts}  # its own process group, which receives Ctrl-C
    with subprocess.Popen(command, **pipes, **place, **own) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "asked").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert " softmax: " in out, out  # the results so far, whatever state the search is in
    assert "stopped: interrupted" in out.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "findings.json", "port.py"]
    assert [finding["component"] for finding in json.loads((tmp_path / "findings.json").read_text())["findings"]] == ["softmax"]
    assert not marked(mark)


BROKEN = {"torch": "OSError: libtorch.so: cannot open shared object file", "jax": "RuntimeError: compiled for NumPy 1"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package, error in BROKEN.items():
        (tmp_path / package).mkdir()
        kind, _, message = error.partition(": ")
        (tmp_path / package / "__init__.py").write_text(f"raise {kind}({message!r})\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] in (*BROKEN, "impl_torch")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "torch", "--component", "softmax"),
        ("check", "own.py", "--component", "softmax"),
        ("diagnose", "torch"),
        ("train", "--out", "run", "--task", "copy", "--backend", "torch"),
        ("compare-training", "--backend", "torch", "--steps", "1"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_broken_framework_is_exit_3_with_the_reason_in_one_line(broken: Path, arguments: tuple[str, ...]) -> None:
    (broken / "own.py").write_text("import torch\nframework = 'torch'\ncomponents = {'softmax': lambda config, dtype: torch.softmax}\n")
    result = invoke(*arguments, folder=broken)
    assert result.code == 3, result
    lines = [line for line in (result.out + result.err).splitlines() if BROKEN["torch"] in line]
    assert lines
    assert all("torch" in line for line in lines)
    assert "Traceback" not in result.err
    if arguments[0] == "check":
        assert "nothing was compared" in result.out


def test_a_broken_framework_is_exit_3_of_the_benchmarks_too(broken: Path) -> None:
    arguments = ("--framework", "torch", "--row", "impl_torch", "--workload", "W5", "--size", "tiny", "--rounds", "1")
    result = invoke(*arguments, folder=broken, command=bench.main)
    assert (result.code, BROKEN["torch"] in result.out, "Traceback" in result.err) == (3, True, False), result


def test_a_broken_framework_beside_a_port_that_conforms_is_exit_3_where_it_is_named(broken: Path) -> None:
    port = _port(broken, "from rosettaformer.ports import CLASSIC\nconfig = CLASSIC\n")
    for ports, code in (((port, "jax"), 3), ((port,), 0)):
        result = invoke("check", *ports, "--component", "layer_norm", "--dtype", "float64")
        assert (result.code, "FAILED" not in result.out) == (code, True), result


@pytest.mark.parametrize(
    ("text", "reason"),
    every(2, [
        ("import numpy.nothing", "ModuleNotFoundError: No module named 'numpy.nothing'"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
        (None, "port.py"),
    ]),
)  # fmt: skip
def test_a_file_that_is_no_port_is_exit_2_and_nothing_is_compared(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "port.py").write_text(text)
    result = invoke("check", "port.py", "--component", "softmax", "--limit", "2", folder=tmp_path)
    assert result.code == 2, result
    assert mentions(result.out + result.err, reason)
    assert ("FAILED" in result.out) == (text is not None)
    assert "Traceback" not in result.err


def test_what_is_wrong_in_a_file_is_not_the_framework_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework counts as broken if its own import fails, not if it is used incorrectly."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("def softmax(x):\n    raise TypeError('must be a tensor')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", sys)  # restores the other module at the end
    monkeypatch.delitem(sys.modules, "torch")
    for text, expected in (
        ("import torch; torch.softmax(3)", ""),
        ("import torch.nothing", ""),
        ("from torch import nothing", ""),
        ("raise ModuleNotFoundError(name='torch')", install("torch")),
    ):
        with pytest.raises((TypeError, ImportError)) as caught:
            exec(text, {"__name__": "own"})
        assert unavailable(caught.value) == expected
