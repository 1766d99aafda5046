"""The record of a port's run: arguments stay what they were, and a failure of the record is none of the port."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process import InProcess

from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.diagnosis.divergence import divergence
from rosettaformer.conformance.ports.adapters.recorder import Recorder
from rosettaformer.conformance.ports.messages import Force

FACE: Any = SimpleNamespace(
    is_tensor=lambda value: isinstance(value, np.ndarray), to_numpy=np.asarray, like=lambda array, tensor: array.astype(tensor.dtype)
)
X, MEMORY, MASK = np.ones((2, 3, 4)), np.ones((2, 5, 4)), np.ones((2, 5), bool)


class Attention:
    """A part whose only arguments by place may be its first."""

    def __init__(self) -> None:
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, query: Any, *args: Any, key: Any = None, mask: Any = None, training: bool = False) -> Any:
        self.given.append(((query, *args), {"key": key, "mask": mask, "training": training}))
        return query + (0 if key is None else key.sum())

    def call(self, query: Any, key: Any = None, mask: Any = None, training: bool = False) -> Any:
        return self(query, key=key, mask=mask, training=training)


def run(force: Force | None, face: Any = FACE) -> tuple[dict[str, Any], Attention]:
    """What is recorded of a whole that calls its part by name, and the part."""
    from rosettaformer.modules.recording import patched

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
    assert [array.shape for array in found["attention"]["inputs"]] == [X.shape, MEMORY.shape]  # in the reference's order
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


# An encoder layer in Keras whose parts are called by name, with a mistake in its last norm.
PORT = """
import os
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import keras

class Part(keras.layers.Layer):
    def __init__(self, c, dtype):
        super().__init__(dtype=dtype)
        self.inner = keras.layers.MultiHeadAttention(c.heads, c.key_size, c.value_size, use_bias=c.attention_bias, dtype=dtype)

    def call(self, x, padding=None, training=False):
        return self.inner(query=x, value=x, key=x, attention_mask=None if padding is None else padding[:, 0], training=training)

class Net(keras.layers.Layer):
    def __init__(self, c, dtype):
        super().__init__(dtype=dtype)
        self.attention, kw = Part(c, dtype), {"dtype": dtype}
        self.up, self.down = keras.layers.Dense(c.feed_forward_width, activation="relu", **kw), keras.layers.Dense(c.model_width, **kw)
        self.norm1, self.norm2 = (keras.layers.LayerNormalization(epsilon=epsilon, **kw) for epsilon in (c.epsilon, 1e-2))

    def call(self, x, padding=None, training=False):
        x = self.norm1(x + self.attention(x=x, padding=padding, training=training))
        return self.norm2(x + self.down(self.up(x)))

framework, dtypes = "tf", ("float32",)
components = {"encoder_layer": lambda c, dtype: Net(c, dtype.name)}
config = {"activation": "relu", "norm_placement": "post", "attention_bias": True, "heads": 3, "key_value_heads": 3, "norm": "layer"}
call = {"encoder_layer": {"x": "x_btd", "padding": "mask_bhts"}, "multi_head_attention": {"x": "query_btd", "padding": "mask_bhts"}}
weights = {
    "multi_head_attention": tuple(
        (f"{name}.{end}", f"inner.{name}_dense.{end}", axes)
        for name, kernel in (("query", "d h k"), ("key", "d g k"), ("value", "d g e"), ("output", "h e d"))
        for end, axes in (("kernel", kernel), ("bias", kernel[2:] if name != "output" else "d"))
    ),
    "feed_forward": (("hidden.kernel", "up.kernel", "d f"), ("hidden.bias", "up.bias", "f"),
                     ("output.kernel", "down.kernel", "f d"), ("output.bias", "down.bias", "d")),
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "encoder_layer": (("self_attention", "attention"), ("feed_forward", ""),
                      ("self_attention_norm", "norm1"), ("feed_forward_norm", "norm2")),
}
"""


@pytest.mark.conformance
def test_keras_layers_that_are_called_by_name_are_traced_and_the_mistake_is_found(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    (tmp_path / "named_keras.py").write_text(PORT)
    with contextlib.closing(InProcess(str(tmp_path / "named_keras.py"), threads=1)) as worker:
        cases = all_cases(worker.greeting[1]["config"])
        case = next(case for case in cases if case.component == "encoder_layer" and case.inputs.get("mask_bhts") is not None)
        found = divergence(worker, case, "float32")
    assert found.first is not None and found.first.path == "feed_forward_norm", found
    assert not any(row.message for row in found.rows if not row.fails), found
    assert next(row for row in found.rows if row.path == "self_attention").forced is not None
