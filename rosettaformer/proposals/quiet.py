"""Hides what frameworks log and what the user's code prints while a proposal is built and tried."""

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

# of absl, and of TensorFlow before it
_LOGGED = re.compile(rb"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:\d\d:\d+\.\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops Python's warnings, standard output and the log lines of a framework's libraries while the block runs."""
    with _without_logs(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Holds back what bypasses Python on the descriptor of standard error, and writes what is not a log line when the block has ended."""
    python, descriptor = sys.stderr, 2
    with tempfile.TemporaryFile() as held, open(os.dup(descriptor), "w", buffering=1, encoding="utf-8") as real:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            python.flush()
            sys.stderr = real if python.fileno() == descriptor else python
        os.dup2(held.fileno(), descriptor)
        try:
            yield
        finally:
            os.dup2(real.fileno(), descriptor)
            sys.stderr = python
            held.seek(0)
            for line in held:
                if not _LOGGED.match(line):
                    os.write(descriptor, line)
