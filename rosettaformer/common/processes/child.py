"""A Python process that answers questions; its crash or hang is an answer too."""

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
GRACE = 1.0  # seconds an idle process has to end by itself


class Child:
    """Runs `python -m MODULE ARGUMENT`, which calls `serve`: it reads questions from standard input and writes pairs (kind, answer) to its
    output.

    who: the name used in messages, such as "the port". stopped: see `Program`. environment: additional variables.
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
        self._largest = 0  # total size in bytes of a question's arrays
        self._end: Answer | None = None
        variables = limited_threads(threads) | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(environment or {})
        self._program = Program([sys.executable, "-m", module, argument], variables, talks=True, listens=True, stopped=stopped)

    @property
    def running(self) -> bool:
        """Whether the process can take a question: it runs, and all its answers so far were well-formed."""
        return self._end is None and self._program.running

    @property
    def ended(self) -> bool:
        """Whether the process has ended and its last answer says so."""
        return self._end is not None

    def ask(self, *question: Any, limit: float) -> None:
        """Sends a question, which the process must read within `limit` seconds; does not wait for the answer."""
        parts, size = wire.pack(question)
        self._largest = max(self._largest, size)
        deadline = time.monotonic() + limit
        try:
            for part in parts:
                self._program.write(part, deadline)
        except EOFError:  # the process has ended; its next answer says so
            pass
        except TimeoutError:
            self._close("hang", f"did not take a question within {limit:g} s")

    def answer(self, limit: float) -> Answer:
        """Returns the answer to the oldest unanswered question, or the handshake, waiting at most `limit` seconds.

        Returns ("crash" or "hang", how) if the process ends or must be ended, and ("error", what came) if it sends something malformed.
        """
        if self._end:
            return self._end
        deadline = time.monotonic() + limit
        try:
            most = wire.answer_limit(self._largest)
            message, _ = wire.receive(lambda size: self._program.read(size, deadline), most, printable)
            if type(message) is tuple and len(message) == 2 and type(message[0]) is str:
                return message
            return self.refuse("it is no pair of a kind and an answer")
        except TimeoutError:
            return self._close("hang", f"no answer within {limit:g} s")
        except wire.Malformed as error:
            return self.refuse(str(error))
        except EOFError:
            return self._close("crash", f"{self._who}'s process ended with ")

    def refuse(self, why: str) -> Answer:
        """Ends the process, whose last answer was malformed, and returns what becomes of the question."""
        return self._close("error", f"{self._who}'s process gave an answer that is none: {why}")

    def _close(self, kind: str, how: str) -> Answer:
        """Ends the process and returns its last answer."""
        left = self._program.close()
        if kind == "crash":
            how += self._program.end + (f"; processes that it left running, which were ended: {left}" if left else "")
        self._end = kind, how
        return self._end

    def close(self) -> int:
        """Ends the process, whatever it does; returns the number of its descendants that had to be ended too."""
        if self._end:
            return 0
        self._end = "crash", "closed"
        return self._program.close(GRACE)
