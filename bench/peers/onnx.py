"""Our ONNX export of the PyTorch port, in ONNX Runtime."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession, OrtValue, SessionOptions

from rosettaformer.common.backends import transformer
from rosettaformer.comparison.timing.rows import Call, Row, named
from rosettaformer.files.artefacts.export import beside
from rosettaformer.files.artefacts.export import torch as export

from ..problem import Problem
from ..workloads import END, PADDING

NAME = "impl_torch's export, ONNX Runtime"
CACHE = ("keys_lbsgk", "values_lbsge")
_LOGITS = "logits_btv"


def describe(device: str) -> str:
    """Returns no description in addition to torch's."""
    return ""


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for a forward pass and a greedy search on a CPU."""
    start = {"forward": _pass, "greedy": _search}.get(problem.task.kind)
    if device != "cpu" or start is None:
        return []
    return [Row("onnx", NAME, start=functools.partial(start, problem), read=named)]


def _sessions(problem: Problem) -> dict[str, InferenceSession]:
    """Exports the model and returns a session per function."""
    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        made = export.write(transformer("torch", problem.config, problem.tensors), problem.config, "onnx", path, "float32")
        return {name: InferenceSession(beside(path, name), options, providers=["CPUExecutionProvider"]) for name in made.entries}


def _pass(problem: Problem) -> Call:
    session = _sessions(problem)["forward"]
    given = {"target": problem.target, "target_mask_bt": problem.target != PADDING}
    if problem.encoded is not None:
        given |= {"source": problem.source, "source_mask_bs": problem.source != PADDING}
    return lambda: session.run([_LOGITS], given)[0]


def _search(problem: Problem) -> Call:
    """Runs a user's loop: the encoder, then one step per token, with the runtime's arrays."""
    sessions, count = _sessions(problem), problem.task.new_tokens
    step, outputs = sessions["step"], [_LOGITS, *(f"new_{name}" for name in CACHE)]

    def call() -> Mapping[str, np.ndarray]:
        token_bt, state = problem.begin, _start(problem, sessions.get("encode"))
        mask_bs, found = token_bt != PADDING, []
        for left in reversed(range(count)):
            given = {"target": _value(token_bt), "target_mask_bs": _value(mask_bs)} | state
            logits, *cache = step.run_with_ort_values(outputs, given)
            state |= zip(CACHE, cache, strict=True)
            logits_bv = logits.numpy()[:, -1]
            if left:
                logits_bv[:, END] = -np.inf
            token_bt = logits_bv.argmax(-1)[:, None]
            mask_bs = np.concatenate([mask_bs, np.ones_like(token_bt, bool)], axis=1)
            found.append(token_bt)
        return {"token_bn": np.concatenate(found, axis=1)}

    return call


def _start(problem: Problem, encode: InferenceSession | None) -> dict[str, OrtValue]:
    """Returns the empty cache and the encoder's output for every step."""
    config, rows = problem.config, len(problem.source)
    sizes = zip(CACHE, (config.key_size, config.value_size), strict=True)
    shape = config.decoder_layers, rows, 0, config.key_value_heads
    state = {name: _value(np.zeros((*shape, size), np.float32)) for name, size in sizes}
    if encode is not None:
        mask = _value(problem.source != PADDING)
        names = [f"cross_{name}" for name in CACHE]
        found = encode.run_with_ort_values(names, {"source": _value(problem.source), "source_mask_bs": mask})
        state |= {"source_mask_bs": mask} | dict(zip(names, found, strict=True))
    return state


def _value(array: Any) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
