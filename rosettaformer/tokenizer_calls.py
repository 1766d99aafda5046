"""Calls of the package tokenizers, whose files come from others: it panics on some regular expressions, and does not end on others."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

LIMIT, RATE = 8.0, 20_000  # seconds for a call, and letters for which there is a second more
T = TypeVar("T")


def within_time(call: Callable[[], T], letters: int = 0) -> T:
    """Returns what the call returns, which must release the interpreter's lock. letters: how many it reads.

    Raises ValueError if it fails, panics or takes too long.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            errors.append(error)

    limit = LIMIT + letters / RATE
    worker = threading.Thread(target=run, daemon=True)
    with _without_panics():
        worker.start()
        worker.join(limit)
    if worker.is_alive():
        raise ValueError(f"it did not end within {limit:.0f} s: a regular expression of the tokenizer may take forever")
    if errors:
        raise ValueError(said(errors[0])) from None
    return found[0]


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Raises ValueError for whatever the package raises in the block, a panic too."""
    try:
        with _without_panics():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises Exception itself; its panics derive from BaseException
        raise ValueError(said(error)) from None


def said(error: BaseException) -> str:
    """Returns the message of an error of the package."""
    return f"{' '.join(str(error).split()):.300}" or type(error).__name__


@contextlib.contextmanager
def _without_panics() -> Iterator[None]:
    """Keeps from standard error what Rust writes there of a panic, with places in its source."""
    try:
        before = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nothing: Any = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
