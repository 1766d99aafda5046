"""The replying side: a process that another one started."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from . import wire
from .text import words

ALONE = 3.0  # seconds after which a process is ended when the asking process is gone

Reply = Callable[..., tuple[str, Any]]


def serve(start: Callable[[], tuple[tuple[str, Any], Reply | None]]) -> None:
    """Sends the handshake, then replies to messages until standard input ends.

    start: returns the handshake and the function that replies, or None. Other output of the process
    goes to standard error, and its standard input is empty. A forked child ends after its reply.
    """
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):  # if memory runs out, Linux kills this process rather than the asking one
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_alone, args=(questions.fileno(),), daemon=True).start()
    owner, largest = os.getpid(), 0
    greeting, reply = start()
    _send(answers, greeting, largest, owner)
    while reply is not None:
        try:
            question, size = wire.receive(lambda count: _read(questions, count))
        except EOFError:
            return
        largest = max(largest, size)
        _send(answers, reply(*question), largest, owner)


def serve_methods(make: Callable[[], Any], reply: Callable[[Callable[[], Any]], tuple[str, Any]]) -> None:
    """Serves an object's methods; a message is a name and arguments. reply: runs the call."""
    made: list[Any] = []

    def start() -> tuple[tuple[str, Any], Reply]:
        greeting = reply(lambda: made.append(make()))
        return greeting, lambda method, *arguments: reply(lambda: getattr(made[0], method)(*arguments))

    serve(start)


def _read(stream: BinaryIO, count: int) -> bytearray:
    data = bytearray(count)
    if stream.readinto(data) < count:  # type: ignore[attr-defined]
        raise EOFError
    return data


def _send(stream: BinaryIO, answer: tuple[str, Any], largest: int, owner: int) -> None:
    """Sends the reply, or else an error."""
    try:
        parts, _ = wire.pack(answer, wire.answer_limit(largest))
    except Exception as error:
        parts, _ = wire.pack(("error", f"the reply cannot be sent: {words(error)}"))
    if os.getpid() != owner:
        os._exit(0)
    for part in parts:
        stream.write(part)
    stream.flush()


def _end_alone(questions: int) -> None:
    """Ends the process and its group some time after the asking process is gone."""
    poller = select.poll()
    poller.register(questions, 0)  # always reports that the other end is closed
    poller.poll()
    time.sleep(ALONE)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
