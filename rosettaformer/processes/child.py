"""A Python process that answers questions, and whose end is an answer too."""

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import wire
from .program import Program, limited_threads
from .text import printable

__all__ = ["Answer", "Child"]

Answer = tuple[str, Any]
GRACE = 1.0  # seconds in which a process ends that is asked no more


class Child:
    """`python -m MODULE ARGUMENT`, which `serve`s: it takes questions on its standard input and gives pairs (kind, answer) on its output.

    who: what messages call it, such as "the port". stopped: as of `Program`. environment: variables that it has besides.
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
        self._largest = 0  # bytes of the arrays of a question
        self._end: Answer | None = None
        variables = limited_threads(threads) | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(environment or {})
        self._program = Program([sys.executable, "-m", module, argument], variables, talks=True, listens=True, stopped=stopped)

    @property
    def running(self) -> bool:
        """Whether it can be asked: it runs, and everything that it has given was an answer."""
        return self._end is None and self._program.running

    @property
    def ended(self) -> bool:
        """Whether the last answer was that there is none, which ended the process."""
        return self._end is not None

    def ask(self, *question: Any, limit: float) -> None:
        """Puts a question, which it must take within so many seconds; does not wait for the answer."""
        parts, size = wire.pack(question)
        self._largest = max(self._largest, size)
        deadline = time.monotonic() + limit
        try:
            for part in parts:
                self._program.write(part, deadline)
        except EOFError:  # it has ended, which its answer says
            pass
        except TimeoutError:
            self._close("hang", f"did not take a question within {limit:g} s")

    def answer(self, limit: float) -> Answer:
        """The answer to the oldest question, or to the start, that has none yet, within so many seconds.

        ("crash" or "hang", how) where the process ends or must be ended instead, and ("error", what came) where it gives what is no answer.
        """
        if self._end:
            return self._end
        deadline = time.monotonic() + limit
        try:
            return self._received(deadline)
        except TimeoutError:
            return self._close("hang", f"no answer within {limit:g} s")
        except wire.Malformed as error:
            return self.refuse(str(error))
        except EOFError:
            return self._close("crash", f"{self._who}'s process ended with ")

    def _received(self, deadline: float) -> Answer:
        message, _ = wire.receive(lambda size: self._program.read(size, deadline), wire.answer_limit(self._largest), printable)
        if type(message) is tuple and len(message) == 2 and type(message[0]) is str:
            return message
        raise wire.Malformed("it is no pair of a kind and an answer")

    def refuse(self, why: str) -> Answer:
        """Ends the process, whose last answer is none; what becomes of the question."""
        return self._close("error", f"{self._who}'s process gave an answer that is none: {why}")

    def _close(self, kind: str, how: str) -> Answer:
        """Ends the process after its last answer, which this is."""
        left = self._program.close()
        if kind == "crash":
            how += self._program.end + (f"; processes that it left running, which were ended: {left}" if left else "")
        self._end = kind, how
        return self._end

    def close(self) -> int:
        """Ends the process, whatever it does: how many others it has left, which are ended too."""
        if self._end:
            return 0
        self._end = "crash", "closed"
        return self._program.close(GRACE)
