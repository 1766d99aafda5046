"""The answering side: a process that is asked by the one that started it."""

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

__all__ = ["serve", "serve_methods"]

ALONE = 3.0  # seconds, after which a process ends whose asker is gone, whatever it does

Reply = Callable[..., tuple[str, Any]]


def serve(start: Callable[[], tuple[tuple[str, Any], Reply | None]]) -> None:
    """Greets, and answers until standard input ends. start: gives the greeting, and what answers questions; None where nothing does.

    Whatever else the process prints goes to standard error, and it reads nothing; a process that is forked off it ends with the answer.
    """
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):  # where memory ends, the system ends this process and not the one that asks (Linux)
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
    """Serves an object: a question is the name of a method and its arguments. reply: makes an answer of an action, which may raise."""
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
    """Writes the answer, or why it is none that can be sent."""
    try:
        parts, _ = wire.pack(answer, wire.answer_limit(largest))
    except Exception as error:
        parts, _ = wire.pack(("error", f"the answer cannot be sent: {words(error)}"))
    if os.getpid() != owner:
        os._exit(0)
    for part in parts:
        stream.write(part)
    stream.flush()


def _end_alone(questions: int) -> None:
    """Ends the process, and its group where it leads one, some time after the asker is gone."""
    poller = select.poll()
    poller.register(questions, 0)  # the other end's closing is always reported
    poller.poll()
    time.sleep(ALONE)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
