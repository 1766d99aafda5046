"""Runs ports against cases: every port in its own process, so that a crash, a hang or a wrong dtype is a row and not the end.

The truth's expectations are computed here, meanwhile, in one thread, since the orders of its arithmetic replace module functions.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from . import tolerance
from .case import Case
from .compare import compare
from .worker import receive, send

__all__ = ["FAILURES", "Result", "Worker", "describe_ports", "run"]

FAILURES = ("differs", "error", "crash", "hang")
RESTARTS = 3


@dataclass(frozen=True)
class Result:
    """One row: what became of a case with a port.

    status: pass; differs (values, shape, dtype or NaN); error (an exception); crash; hang; unsupported (the framework has no kernel);
    not covered; missing (the framework is not installed); skipped (the port had crashed too often).
    """

    case: str
    component: str
    port: str
    dtype: str
    device: str
    mode: str
    status: str
    message: str = ""
    ratio: float = float("nan")
    excess: float = float("nan")
    error: float = float("nan")
    noise: float = float("nan")
    ulps: float = float("nan")


class Worker:
    """The process of a port. `ask` puts a case to it and waits at most so many seconds for the answer."""

    def __init__(self, port: str, threads: int, start_limit: float = 120.0) -> None:
        self.port, self._threads = port, threads
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._start()
        self.greeting = self._receive(start_limit)

    def _start(self) -> None:
        environment = os.environ | {
            name: str(self._threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        }
        command = [sys.executable, "-m", f"{__package__}.worker", self.port]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def ask(self, case: Case, limit: float) -> tuple[str, Any]:
        """The kind of the answer and the answer; ("hang", ...) and ("crash", ...) end the process."""
        try:
            send(self._process.stdin, case)  # type: ignore[arg-type]
        except OSError:
            return self._dead()
        return self._receive(limit)

    def _receive(self, limit: float) -> tuple[str, Any]:
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(limit, expire)
        timer.start()
        try:
            return receive(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            return ("hang", f"no answer within {limit:g} s") if expired.is_set() else self._dead()
        finally:
            timer.cancel()

    def _dead(self) -> tuple[str, str]:
        code = self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return "crash", f"the port's process ended with {cause}" + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


def run(
    cases: Sequence[Case],
    ports: Sequence[str],
    dtypes: Sequence[str],
    devices: Sequence[str] = ("cpu",),
    modes: Sequence[str] = ("",),
    limit: float = 120.0,
    progress: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Puts every case in every dtype, on every device and in every mode to every port, the ports in parallel.

    modes: names; "" is the port's default mode and "all" each mode that it has. limit: seconds for one case. progress is called with each
    result as it comes, from one thread at a time.
    """
    threads = max(1, (os.cpu_count() or 1) // max(1, len(ports)))
    lock = threading.Lock()

    def report(result: Result) -> Result:
        with lock:
            progress(result)
        return result

    with ThreadPoolExecutor(1) as truth, ThreadPoolExecutor(max(1, len(ports))) as pool:
        expectations = _expectations(truth, cases, dtypes, devices)
        jobs = [pool.submit(_run_port, port, cases, dtypes, devices, modes, limit, threads, expectations, report) for port in ports]
        return [result for job in jobs for result in job.result()]


Expectations = dict[tuple[str, str, str], Future]


def _expectations(truth: ThreadPoolExecutor, cases: Iterable[Case], dtypes: Sequence[str], devices: Sequence[str]) -> Expectations:
    return {
        (case.id, dtype, device): truth.submit(lambda case: tolerance.expect(case), case.at(dtype, device))
        for case in cases
        for device in devices
        for dtype in dtypes
        if dtype in case.dtypes
    }


def _run_port(
    port: str, cases: Sequence[Case], dtypes: Sequence[str], devices: Sequence[str], modes: Sequence[str], limit: float, threads: int,
    expectations: Expectations, report: Callable[[Result], Result],
) -> list[Result]:  # fmt: skip
    worker = Worker(port, threads)
    kind, about = worker.greeting
    if kind != "ready":
        worker.close()
        return [report(Result("", "", port, "", "", "", kind, about))]
    results, deaths = [], 0
    for mode in _chosen(modes, about["modes"]):
        for case, dtype, device in ((c, t, d) for d in devices for c in cases for t in dtypes if t in c.dtypes):
            row: dict[str, Any] = {
                "case": case.id,
                "component": case.component,
                "port": port,
                "dtype": dtype,
                "device": device,
                "mode": mode,
            }
            if reason := _unable(device, about, deaths):
                results.append(report(Result(**row, status="skipped", message=reason)))
                continue
            kind, answer = worker.ask(case.at(dtype, device, mode), limit)
            if kind in ("crash", "hang"):
                deaths += 1
                worker.close()
                worker = Worker(port, threads)
            results.append(report(_judge(row, kind, answer, expectations[case.id, dtype, device])))
    worker.close()
    return results


def _chosen(modes: Sequence[str], available: Sequence[str]) -> list[str]:
    chosen = []
    for mode in modes:
        chosen += list(available) if mode == "all" else [mode or available[0]]
    return list(dict.fromkeys(mode for mode in chosen if mode in available))


def _unable(device: str, about: dict[str, Any], deaths: int) -> str:
    """Why a case is not put to the port, or nothing."""
    kind = device.partition("-")[0]
    if not any(available.startswith(kind) for available in about.get("devices", ["cpu"])):
        return f"no {kind} device"
    return f"the port's process had ended {deaths} times" if deaths > RESTARTS else ""


def _judge(row: dict[str, Any], kind: str, answer: Any, expectation: Future) -> Result:
    if kind != "outputs":
        return Result(**row, status=kind, message=str(answer))
    expected = expectation.result()
    if answer.keys() != expected.keys():
        return Result(**row, status="differs", message=f"must return {', '.join(expected)}; got {', '.join(answer)}")
    comparisons = {name: compare(expected[name], answer[name]) for name in expected}
    name, worst = max(comparisons.items(), key=lambda item: (item[1].excess, item[1].ratio))
    return Result(
        **row,
        status="differs" if worst.excess > 1 else "pass",
        message=f"{name}: {worst.message}" if worst.message else "",
        ratio=max(comparison.ratio for comparison in comparisons.values()),
        excess=worst.excess,
        error=worst.error,
        noise=worst.noise,
        ulps=worst.ulps,
    )


def describe_ports(ports: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """What every port says of itself: ("ready", versions, devices, precision, modes), or ("missing", how to install it)."""

    def describe(port: str) -> tuple[str, Any]:
        worker = Worker(port, 1)
        worker.close()
        return worker.greeting

    with ThreadPoolExecutor(max(1, len(ports))) as pool:
        return dict(zip(ports, pool.map(describe, ports), strict=True))
