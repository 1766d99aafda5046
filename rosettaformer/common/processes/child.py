"""Runs a Python process that replies to messages; a crash or hang is a reply, too."""

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import wire
from .program import Program, limited_threads
from .text import printable

Answer = tuple[str, Any]
GRACE = 1.0  # seconds for an idle process to end by itself


class Child:
    """Runs `python -m MODULE ARGUMENT`, which calls `serve` and replies with pairs (kind, value).

    who: its name in messages, such as "the port". stopped: see `Program`. environment: additional
    variables.
    """

    def __init__(
        self,
        module: str,
        argument: str,
        threads: int,
        who: str,
        stopped: threading.Event | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._who = who
        self._largest = 0  # bytes of the arrays in the largest question
        self._end: Answer | None = None
        variables = limited_threads(threads) | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(environment or {})
        self._program = Program([sys.executable, "-m", module, argument], variables, talks=True, listens=True, stopped=stopped)

    @property
    def running(self) -> bool:
        """Whether the process runs and has sent only valid replies, so that it can be asked."""
        return self._end is None and self._program.running

    @property
    def ended(self) -> bool:
        """Whether the process has ended, as its last reply says."""
        return self._end is not None

    def ask(self, *question: Any, limit: float) -> None:
        """Sends a question, which the process must read within `limit` seconds."""
        parts, size = wire.pack(question)
        self._largest = max(self._largest, size)
        deadline = time.monotonic() + limit
        try:
            for part in parts:
                self._program.write(part, deadline)
        except EOFError:  # the process has ended; the next reply says so
            pass
        except TimeoutError:
            self._close("hang", f"did not read a question within {limit:g} s")

    def answer(self, limit: float) -> Answer:
        """Returns the reply to the oldest open question, or the handshake, within `limit` seconds.

        Returns ("crash" or "hang", how) if the process has ended or had to be ended, and ("error",
        what came) if its reply is invalid.
        """
        if self._end:
            return self._end
        deadline = time.monotonic() + limit
        try:
            most = wire.answer_limit(self._largest)
            message, _ = wire.receive(lambda size: self._program.read(size, deadline), most, printable)
            if type(message) is tuple and len(message) == 2 and type(message[0]) is str:
                return message
            return self.refuse("it is not a pair of a kind and a value")
        except TimeoutError:
            return self._close("hang", f"no answer within {limit:g} s")
        except wire.Malformed as error:
            return self.refuse(str(error))
        except EOFError:
            return self._close("crash", f"{self._who}'s process ended with ")

    def refuse(self, why: str) -> Answer:
        """Ends the process after an invalid reply, and returns the outcome of the question."""
        return self._close("error", f"{self._who}'s process sent an invalid reply: {why}")

    def _close(self, kind: str, how: str) -> Answer:
        """Ends the process, and returns its last reply."""
        left = self._program.close()
        if kind == "crash":
            how += self._program.end + (f"; it left {left} processes running, which were ended" if left else "")
        self._end = kind, how
        return self._end

    def close(self) -> int:
        """Ends the process; returns the number of its descendants that had to be ended too."""
        if self._end:
            return 0
        self._end = "crash", "closed"
        return self._program.close(GRACE)
