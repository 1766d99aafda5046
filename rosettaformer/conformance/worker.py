"""The process of one port: takes cases on its standard input, gives outputs on its standard output.

`python -m rosettaformer.conformance.worker PORT`. Messages are pickled and preceded by their length; whatever the port itself prints
goes to standard error, so that it cannot disturb them.
"""

import os
import pickle
import struct
import sys
import traceback
from typing import Any, BinaryIO

import numpy as np

from .case import Case
from .port import MissingBackend, NotCovered, Port, Unsupported
from .truth import named_outputs

__all__ = ["receive", "send"]


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


def _answer(port: Port, case: Case) -> tuple[str, Any]:
    """What the port answers, and what kind of answer it is."""
    try:
        first, second = (_outputs(port, case) for _ in range(2)) if case.twice else (_outputs(port, case), None)
    except NotCovered as error:
        return "not covered", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        return "error", f"{type(error).__name__}: {error} ({os.path.basename(trace.filename)}:{trace.lineno})"
    if second is not None and any(not _same(first[name], second[name]) for name in first):
        return "error", "two evaluations of the same input differ: something random is active in evaluation mode"
    return "outputs", first


def _outputs(port: Port, case: Case) -> dict[str, Any]:
    outputs = named_outputs(port.answer(case))
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in outputs.items()}


def _same(first: Any, second: Any) -> bool:
    return np.asarray(first).tobytes() == np.asarray(second).tobytes()


def _ready(name: str) -> tuple[Port | None, tuple[str, Any]]:
    try:
        port = Port(name)
    except MissingBackend as error:
        return None, ("missing", str(error))
    except Exception as error:
        return None, ("error", f"{type(error).__name__}: {error}")
    return port, ("ready", {"modes": port.modes, **port.describe()})


def main() -> None:
    """Serves one port until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    port, message = _ready(sys.argv[1])
    send(answers, message)
    while port is not None:
        try:
            case = receive(requests)
        except EOFError:
            return
        send(answers, _answer(port, case))


if __name__ == "__main__":
    main()
