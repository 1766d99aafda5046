"""`torch.onnx.export`, and what ONNX Runtime computes of it."""

import tempfile
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from .common import BERT, CONFIG, SOURCE, TARGET, classes, expected, model_of, same, topic

TOPIC = topic("ONNX")
DYNAMIC = {"source": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "target": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
LENGTHS = ((3, 5, 4), (2, 7, 3), (4, 3, 6))


def session(model: Any, *ids: Any, **options: Any) -> Any:
    """The call of the exported model in ONNX Runtime."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, ids, f"{folder}/a.onnx", verbose=False, **options)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 4
        held = onnxruntime.InferenceSession(f"{folder}/a.onnx", quiet)

    def run(*given: Any) -> Any:
        named = {each.name: x.numpy() for each, x in zip(held.get_inputs(), given, strict=True)}
        return torch.from_numpy(held.run(None, named)[0])

    return run


@TOPIC.works("`torch.onnx.export` with dynamic batch and lengths, empty rows too, in ONNX Runtime")
def _(single) -> None:
    run = session(single, SOURCE, TARGET, dynamic_shapes=DYNAMIC)
    for batch, source, target in LENGTHS:
        given = torch.arange(batch * source).reshape(batch, -1) % 20, torch.arange(batch * target).reshape(batch, -1) % 20
        same(run(*given), expected(single, CONFIG, *given))
    same(run(SOURCE, TARGET), expected(single))


@TOPIC.works("`torch.onnx.export` in float16")
def _() -> None:
    model = model_of(dtype=torch.float16)
    same(session(model, SOURCE, TARGET)(SOURCE, TARGET), expected(model), 0.02)


class Scaled(nn.Embedding):
    def forward(self, index: Any) -> Any:
        return super().forward(index) * 32**0.5


@TOPIC.stock("`torch.onnx.export` in float64", "it rounds numbers of Python to float32")
def _(model) -> None:
    stock = Scaled(20, 32).double()
    for found, wanted in (
        (session(model, SOURCE, TARGET)(SOURCE, TARGET), expected(model)),
        (session(stock, SOURCE)(SOURCE), stock(SOURCE)),
    ):
        same(found, wanted, 1e-6)
        assert (found - wanted).abs().max() > 1e-9


@TOPIC.works("`torch.onnx.export` of an encoder-only model, `(source,)`")
def _() -> None:
    model = model_of(BERT, torch.float32)
    same(session(model, SOURCE)(SOURCE), classes(model))


for bad in (-1, 20):
    call = partial(lambda bad, single: session(single, SOURCE, TARGET)(SOURCE.masked_fill(SOURCE == 7, bad), TARGET), bad)
    TOPIC.refused(f"an exported graph, a token id of {bad}", "indices element out of data bounds, idx=20", call)


@TOPIC.works("`torch.onnx.export(dynamo=False)`, the older exporter, of fixed lengths")
def _(single) -> None:
    same(session(single, SOURCE, TARGET, dynamo=False)(SOURCE, TARGET), expected(single))


@TOPIC.refused("`torch.onnx.export(dynamo=False, dynamic_axes=...)`, another length", "Attempting to broadcast an axis")
def _() -> None:
    axes = {"input_names": ["source", "target"], "dynamic_axes": {"source": [0, 1], "target": [0, 1]}}
    session(model_of(dtype=torch.float32), SOURCE, TARGET, dynamo=False, **axes)(SOURCE[:2, :4], TARGET[:2, :3])
