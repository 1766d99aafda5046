"""The model under tf.distribute: what `keras_on_replicas.py` finds in processes of its own."""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .tf_models import topic

TOPIC = topic("tf.distribute")
SCRIPT = Path(__file__).parent / "keras_on_replicas.py"


@functools.cache
def _outcomes(workers: int) -> dict[str, dict[str, Any]]:
    """Of every action on two replicas of one process (workers=0), or in that many processes."""
    ports = [_free_port() for _ in range(workers)]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    running, outputs = [], []
    with contextlib.ExitStack() as files:
        for index in range(max(workers, 1)):
            config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})} if workers else {}
            outputs.append(files.enter_context(tempfile.TemporaryFile("w+")))  # no pipe, which would fill while nobody reads it
            line = [sys.executable, str(SCRIPT)]
            running.append(subprocess.Popen(line, stdout=outputs[-1], stderr=subprocess.STDOUT, env=os.environ | config))
        try:
            for process in running:
                process.wait(280)
        finally:
            for process in running:
                process.kill()
        outputs[0].seek(0)
        text = outputs[0].read()
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"action"')]
    assert rows, text[-2000:]
    return {row["action"]: row for row in rows}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def _done(name: str, workers: int = 0) -> Any:
    """What the action found. Raises its error."""
    outcome = _outcomes(workers)[name]
    if (error := outcome.get("error", "")).startswith("AssertionError"):
        raise AssertionError(error)
    if error:
        raise RuntimeError(error)
    return outcome["found"]


TOPIC.works("MirroredStrategy, `compile(loss)`, `fit` of a tuple: a step is the reference's", lambda: _done("fit of a tuple"))
TOPIC.works("MirroredStrategy, `fit` of a `tf.data.Dataset` of dicts", lambda: _done("fit of a dict"))
TOPIC.works("MirroredStrategy, `predict`", lambda: _done("predict"))
TOPIC.works(
    "MirroredStrategy, a `train_step` of one's own with `training_loss(..., total=...)`, the labels of all replicas",
    lambda: _done("train_step with total"),
)
TOPIC.refused(
    "MirroredStrategy, a `train_step` of one's own with `training_loss` without `total`",
    "total must be given: the number of labels",
    lambda: _done("train_step without total"),
)
TOPIC.works("MirroredStrategy, a loop of one's own, `total` by `all_reduce`", lambda: _done("loop"))
TOPIC.works("MultiWorkerMirroredStrategy of two processes, a loop of one's own, `total` by `all_reduce`", lambda: _done("loop", 2))


@TOPIC.stock("MultiWorkerMirroredStrategy of two processes, `fit`", "its trainer does not take the values of several workers apart")
def _() -> None:
    errors = []
    for name in ("fit", "stock fit"):
        try:
            _done(name, 2)
        except RuntimeError as error:
            errors.append(str(error))
    assert len(errors) == 2 and all("PerReplica" in error for error in errors), errors
