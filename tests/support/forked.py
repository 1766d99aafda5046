"""Runs the command many times, each in a fork of one warmed process, and measures output, time and memory.

`python tests/support/forked.py` is the server: one line of JSON in, one line of JSON out.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM = ("tokenizers", "matplotlib.figure", "torch", "safetensors.torch", "impl_torch.weights")
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {"TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Outcome:
    """code: negative if a signal ended it. seconds: CPU time. memory: peak bytes, including those of the warmed process."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int

    def assert_refused(self) -> str:
        """Asserts exit code 2, one message, and bounded time and memory; returns the message."""
        self.assert_modest()
        assert self.code == 2, self
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1 and len(self.err) < 20_000 and "Traceback" not in self.err, self
        return self.err

    def assert_modest(self) -> None:
        assert "Traceback" not in self.err and self.seconds < 15 and self.memory < 1e9, self


class Forks:
    """The warmed process, started by the first command, and the outcomes of commands in its forks."""

    _server: Any = None

    def run(self, *arguments: object, stdin: bytes = b"", folder: Path | None = None, before: str = "", limit: float = 20.0) -> Outcome:
        """Runs a command in a fork. before: Python that the fork executes first. The command is killed after `limit` seconds."""
        if self._server is None:
            line = [sys.executable, __file__]
            self._server = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD)
        asked = {"arguments": [*map(str, arguments)], "stdin": stdin.hex(), "folder": str(folder or Path.cwd()), "before": before}
        self._server.stdin.write(json.dumps(asked | {"limit": limit}) + "\n")
        self._server.stdin.flush()
        return Outcome(**json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        """Ends the process and waits for it."""
        if self._server is not None:
            self._server.communicate()
            self._server = None


def _serve() -> None:
    for name in WARM:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    from rosettaformer import cli

    for name in cli.COMMANDS:
        importlib.import_module(f"rosettaformer.commands.{name.replace('-', '_')}")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fork(**json.loads(line))) + "\n")
        sys.stdout.flush()


def _fork(arguments: list[str], stdin: str, folder: str, before: str, limit: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(bytes.fromhex(stdin))
        given.seek(0)
        start = time.monotonic()
        if not (child := os.fork()):
            _become(arguments, folder, before, given.fileno(), out.fileno(), err.fileno())
        while not (ended := os.wait4(child, os.WNOHANG))[0]:
            if time.monotonic() - start > limit:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.002)
        used = ended[2]
        for file in (out, err):
            file.seek(0)
        texts = {"out": out.read().decode(errors="replace"), "err": err.read().decode(errors="replace")}
        return {"code": os.waitstatus_to_exitcode(ended[1]), **texts, "seconds": used.ru_utime + used.ru_stime,
                "memory": used.ru_maxrss * 1024}  # fmt: skip


def _become(arguments: list[str], folder: str, before: str, *files: int) -> None:
    """Runs the command in this process as the interpreter would."""
    code = 1
    try:
        os.setsid()
        for target, file in enumerate(files):
            os.dup2(file, target)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, "r"), os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        exec(before, {})
        from rosettaformer.cli import main

        main(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
