"""The record of a port's run: arguments keep their values, and a failure of the recorder is not a failure of the port."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process import InProcess

from rosettaformer.common.modules.recording import patched
from rosettaformer.judge.diagnosis.divergence import divergence
from rosettaformer.judge.ports.adapters.recorder import Recorder
from rosettaformer.judge.ports.messages import Force
from rosettaformer.judge.suite import all_cases

FACE: Any = SimpleNamespace(
    is_tensor=lambda value: isinstance(value, np.ndarray), to_numpy=np.asarray, like=lambda array, tensor: array.astype(tensor.dtype)
)
X, MEMORY, MASK = np.ones((2, 3, 4)), np.ones((2, 5, 4)), np.ones((2, 5), bool)


class Attention:
    """A part that may take only its first arguments by position."""

    def __init__(self) -> None:
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, query: Any, *args: Any, key: Any = None, mask: Any = None, training: bool = False) -> Any:
        self.given.append(((query, *args), {"key": key, "mask": mask, "training": training}))
        return query + (0 if key is None else key.sum())

    def call(self, query: Any, key: Any = None, mask: Any = None, training: bool = False) -> Any:
        return self(query, key=key, mask=mask, training=training)


def run(force: Force | None, face: Any = FACE) -> tuple[dict[str, Any], Attention]:
    """Returns the record of a whole that calls its part by name, and the part."""
    part = Attention()
    recorder = Recorder({"attention": part}, face, SimpleNamespace(), force, {}, {"attention": ["query", "key"]})  # type: ignore[arg-type]
    with patched(recorder.rows, recorder.enter, recorder.leave, lambda module: module.call):
        return recorder.run(None, lambda x: part(key=MEMORY, query=x, mask=MASK, training=False), {"x": X}), part


@pytest.mark.parametrize("force", [None, Force("attention", [X + 1, MEMORY + 1])], ids=["free", "forced"])
def test_what_is_given_by_name_is_given_by_the_same_name(force: Force | None) -> None:
    found, part = run(force)
    ((args, kwargs),) = part.given
    assert len(args) == 1 and kwargs["mask"] is MASK and kwargs["training"] is False
    added = 0 if force is None else 1
    np.testing.assert_array_equal(args[0], X + added)
    np.testing.assert_array_equal(kwargs["key"], MEMORY + added)
    assert [array.shape for array in found["attention"]["inputs"]] == [X.shape, MEMORY.shape]  # ordered as in the reference
    assert "output" in found["attention"] and "error" not in found[""]


@pytest.mark.parametrize("force", [None, Force("attention", [X, MEMORY])], ids=["free", "forced"])
def test_a_failure_of_the_record_is_refused_and_the_port_runs_on(force: Force | None) -> None:
    def broken(value: Any) -> Any:
        if value is MEMORY:
            raise ValueError("no array")
        return np.asarray(value)

    found, _ = run(force, SimpleNamespace(**{**vars(FACE), "to_numpy": broken}))
    assert "no array" in found["attention"]["refused"] and "error" not in found["attention"]
    assert ("output" in found[""]) == (force is None)


KERAS = Path(__file__).parents[1] / "ports" / "wild" / "keras_translation.py"  # its parts are called by name
NORM = "        self.layer_norm = keras.layers.LayerNormalization(epsilon=epsilon)"


@pytest.mark.conformance
def test_keras_layers_that_are_called_by_name_are_traced_and_the_mistake_is_found(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    text = KERAS.read_text()
    assert text.count(NORM) == 1
    (tmp_path / "named_keras.py").write_text(text.replace(NORM, NORM.replace("=epsilon", "=1e-2")))
    with contextlib.closing(InProcess(str(tmp_path / "named_keras.py"), threads=1)) as worker:
        cases = all_cases(worker.greeting[1]["config"])
        case = next(case for case in cases if case.component == "encoder_layer" and case.inputs.get("mask_bhts") is not None)
        found = divergence(worker, case, "float32")
    assert found.first is not None and found.first.path == "feed_forward_norm", found
    assert not any(row.message for row in found.rows if not row.fails), found
    assert next(row for row in found.rows if row.path == "self_attention").forced is not None
