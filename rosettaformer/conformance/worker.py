"""The process of one port: takes questions on its standard input, gives answers on its standard output.

`python -m rosettaformer.conformance.worker PORT`. Messages are pickled and preceded by their length; whatever the port itself prints
goes to standard error, so that it cannot disturb them. A question is a tuple (method of `Port`, *arguments); an answer is a pair of its
kind (outputs, differs, error, not covered, unsupported) and what belongs to it.
"""

import os
import pickle
import struct
import sys
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from . import statistics
from .case import Case
from .port import MissingBackend, NotCovered, Port, Unsupported
from .signature import hint
from .truth import named_outputs
from .watch import Watch

__all__ = ["UNEQUAL", "Answer", "equal", "receive", "send"]

Answer = tuple[str, Any]
UNEQUAL = "two evaluations of the same input differ: something random is active in evaluation mode"


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message, protocol=5)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; raises EOFError where the stream ends."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    size = struct.unpack("<Q", header)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class _Malformed(Exception):
    """The port returned no arrays; the message says what is required and what came."""


def _reply(port: Port, watch: Watch, method: str, *arguments: Any) -> Answer:
    """The port's answer, or why there is none."""
    try:
        return _answer(port, watch, *arguments) if method == "answer" else ("outputs", getattr(port, method)(*arguments))
    except NotCovered as error:
        return "not covered", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except _Malformed as error:
        return "differs", str(error)
    except Exception as error:
        return "error", _in_words(error, getattr(port.module, "__file__", None) or "") + hint(error, port.module, *arguments[:1])


def _answer(port: Port, watch: Watch, case: Case) -> Answer:
    """The outputs for a case, evaluated twice where the case says so; or what the port did meanwhile that it must not do."""
    with watch.over(case) as problems:
        first = _evaluate(port, watch, case)
        second = _evaluate(port, watch, case) if case.twice else first
    if problems:
        return "error", "; ".join(problems)
    return ("outputs", first) if equal(first, second) else ("error", UNEQUAL)


def equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Equality of two answers, bit for bit."""
    return first.keys() == second.keys() and all(first[name].tobytes() == second[name].tobytes() for name in first)


def _evaluate(port: Port, watch: Watch, case: Case) -> dict[str, np.ndarray]:
    """Copies of the arrays that the port returns, or their statistics; raises _Malformed where it returns something else."""
    result = port.answer(case)
    if isinstance(result, tuple) and len(result) != 2:
        raise _Malformed(f"must return an array, a mapping of arrays, or the pair output and weights; got a tuple of {len(result)}")
    outputs = named_outputs(result)
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            came = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise _Malformed(f"{name}: must be a NumPy array of numbers; got {came}")
    watch.returned(case, outputs)
    return statistics.measured(case.component, case.inputs, {name: np.array(value) for name, value in outputs.items()})


def _in_words(error: Exception, file: str) -> str:
    """The error, and the last line in the folder of the port's file that led to it."""
    folder = os.path.join(os.path.dirname(os.path.realpath(file)), "")
    own = [line for line in traceback.extract_tb(error.__traceback__) if file and os.path.realpath(line.filename).startswith(folder)]
    return f"{type(error).__name__}: {error}" + (f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else "")


def _ready(name: str) -> tuple[Port | None, Answer]:
    try:
        port = Port(name)
        return port, ("ready", port.describe())
    except MissingBackend as error:
        return None, ("missing", str(error))
    except Exception as error:
        return None, ("error", _in_words(error, name if name.endswith(".py") else ""))


def main() -> None:
    """Serves one port until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    port, message = _ready(sys.argv[1])
    send(answers, message)
    watch = Watch()
    while port is not None:
        try:
            method, *arguments = receive(requests)
        except EOFError:
            return
        send(answers, _reply(port, watch, method, *arguments))


if __name__ == "__main__":
    main()
