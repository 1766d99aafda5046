"""The TensorFlow port on several devices: results of `on_replicas.py` in its own processes, and tests that need none."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from messages import mentions
from test_training import CONFIG

from impl_tf.programs.compiled import compiled
from impl_tf.programs.sharding import Replicas, draw, logical_devices
from reference_numpy.sharding import Mesh

pytestmark = pytest.mark.product

HOUSE = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("on_replicas.py")
CLOSE = 1e-9
ONE = "steps decoder-only count=3"


def found(*actions: str, workers: int = 0) -> dict[str, Any]:
    """Returns the first process's results by action: one process on logical CPUs (workers=0), or several as workers."""
    ports = [_free_port() for _ in range(workers)]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    running: list[subprocess.Popen[str]] = []
    with ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(max(workers, 1))]
        for index, output in enumerate(outputs):
            env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HOUSE), *sys.path]), "TF_CPP_MIN_LOG_LEVEL": "2"}
            if workers:
                env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            line = [sys.executable, str(SCRIPT), *actions]
            running.append(subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=HOUSE, text=True))
        try:
            running[0].wait(280)
        finally:
            for process in running:
                process.kill()
        outputs[0].seek(0)
        text = outputs[0].read()
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"action"')]
    result = {row["action"]: row["found"] for row in rows}
    assert [*result] == [*actions], text[-3000:]
    return result


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@pytest.mark.conformance
def test_steps_on_two_devices_are_those_of_the_reference_and_what_is_missing_is_said() -> None:
    """Five ragged rows, as three and two; loss, every gradient and every parameter; and the errors of a process that has four."""
    outcome = found("refused", ONE)
    assert outcome[ONE] < CLOSE
    refused = ["ValueError … data=9,model=1 … 9 devices … 4", "ValueError … got model=2", "NotImplementedError … got model=2"]
    assert len(outcome["refused"]) == 3 and all(map(mentions, outcome["refused"], refused))


LONGEST = "frequencies of the longest row, which the second replica has"
MODELS = ("tied", "no-dropout", "classes", "decoder-only", "llama", "gpt-oss", "glm")
# actions on logical CPUs, one process each
CHECKS = {
    **{f"ten steps of {name}": [f"steps {name}"] for name in MODELS},
    "ten steps in microbatches": ["steps parts rows=6"],
    LONGEST: ["steps dynamic rows=6", "steps longrope", "followed dynamic", "followed longrope"],
    f"{LONGEST}, compiled": ["steps dynamic rows=6 compiled=1 count=3", "followed longrope mode=compiled"],
    "replicas without rows add nothing": ["steps tied 2 rows=1 count=3", "steps llama 4 count=3"],
    "random keep masks of every mesh": ["drawn tied 1 2 4"],
    "a state goes on on another mesh": ["continued no-dropout"],
    "layers that compute again": ["recomputed tied 0", "recomputed tied 2"],
    "steps, compiled": ["steps tied compiled=1", "steps gpt-oss compiled=1 count=3"],
    "random keep masks, compiled": ["drawn tied 1 2 compiled=1"],
    "layers that compute again, compiled": ["recomputed tied 0 compiled=1", "recomputed tied 2 compiled=1"],
    "some components that the judge asks": ["judged 2 30", "judged 3 40 first=7"],
    **{f"every fourth component, from {first}": [f"judged 2 4 first={first}"] for first in range(4)},
}
# actions of two workers
TOGETHER = {
    "workers without rows": ["steps llama rows=1 count=3", "steps longrope count=3", "judged 2 60"],
    "workers, compiled": ["steps decoder-only compiled=1"],
}


@pytest.mark.conformance
@pytest.mark.parametrize("name", CHECKS | TOGETHER)
def test_a_mesh_gives_the_numbers_of_the_reference(name: str) -> None:
    for action, error in found(*(CHECKS | TOGETHER)[name], workers=2 * (name in TOGETHER)).items():
        assert error < CLOSE, (action, error)


@pytest.mark.conformance
@pytest.mark.parametrize("workers", [0, 2])
def test_float32_is_within_its_derived_tolerance(workers: int) -> None:
    """Losses and parameters over ten steps of the paper's model, and gradients of Llama's and the paper's loss."""
    steps = [f"single training_steps/sharded_{name}" for name in ("paper_keep", "microbatches")]
    steps += ["single training_steps/sharded_recompute dtype=float64"]
    gradients = [f"single training_loss_vjp/sharded_{name}" for name in ("paper_keep", "llama")]
    for action, excess in found(*steps, *gradients, workers=workers).items():
        assert 0 < excess <= 1, (action, excess)


@pytest.mark.conformance
def test_two_workers_give_the_reference_s_steps_and_each_knows_its_place() -> None:
    outcome = found("group", "steps parts rows=6", workers=2)
    assert outcome["group"] == [0, 2, True, False]
    assert outcome["steps parts rows=6"] < CLOSE


@pytest.mark.conformance
def test_a_worker_that_is_killed_is_one_clear_error_within_thirty_seconds() -> None:
    message, seconds = found("killed", workers=2)["killed"]
    assert "TF_CONFIG" in message
    assert seconds < 30


def masks(rows: int, first: int = 0, step: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    drawn = draw(CONFIG, seed, tf.constant([first, step], tf.int64), rows, 7, 5)
    return {site: mask.numpy() for site, mask in drawn.items()}


def test_masks_of_some_rows_are_rows_of_the_whole_masks() -> None:
    whole = masks(5)
    for site, mask in whole.items():
        np.testing.assert_array_equal(mask, np.concatenate([masks(3)[site], masks(2, first=3)[site]]), site)
        for other in (masks(5, step=5), masks(5, seed=1), masks(5, first=5)):
            assert (mask != other[site]).any(), site
    site = "encoder.layers.0.feed_forward.hidden_dropout"
    assert abs(masks(200)[site].mean() - 0.8) < 0.01  # the rate is 0.2
    assert len({mask.tobytes()[:60] for mask in whole.values()}) == len(whole)


@pytest.mark.conformance
def test_masks_are_the_same_as_xla_compiles_them() -> None:
    run = compiled(lambda place: draw(CONFIG, 0, place, 3, 7, 5))
    for site, mask in run(tf.constant([2, 4], tf.int64)).items():
        np.testing.assert_array_equal(mask, masks(3, first=2)[site], site)


def test_devices_that_are_missing_are_said() -> None:
    tf.config.list_logical_devices()
    with pytest.raises(ValueError, match="the mesh data=64,model=1 needs 64 devices; TensorFlow sees "):
        logical_devices(Mesh(data=64))
    with pytest.raises(ValueError, match=r"splits.*model=2"):
        Replicas(Mesh(model=2))
