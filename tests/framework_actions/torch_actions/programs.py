"""`torch.compile`, `torch.export` and tracing."""

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from impl_torch import decoding
from impl_torch.cache import decode_step, start_cache

from .common import BERT, CONFIG, GPT2, SEARCH, SOURCE, TARGET, classes, expected, model_of, same, topic, trained

TOPIC = topic("Compiled and exported")
LENGTHS = ((3, 5, 4), (2, 7, 3), (4, 3, 6), (5, 6, 6))


def ids(batch: int, length: int) -> Any:
    return torch.arange(batch * length).reshape(batch, length) % 20


def on_all_lengths(call: Callable[..., Any], model: Any, config: Any = CONFIG) -> None:
    for batch, source, target in LENGTHS:
        given = ids(batch, source), ids(batch, target)
        same(call(*given), expected(model, config, *given))


def exported(model: Any) -> Any:
    """Of any batch and lengths."""
    batch, source, target = (Dim(name, min=2) for name in ("batch", "source", "target"))
    shapes = {"source": {0: batch, 1: source}, "target": {0: batch, 1: target}}
    return export(model, (ids(3, 5), ids(3, 4)), dynamic_shapes=shapes)


@TOPIC.works("`torch.compile(model)`, Inductor")
def _() -> None:
    torch.compiler.reset()
    model = model_of()
    on_all_lengths(torch.compile(model), model)


def of_backend(model: Any, backend: str = "", dynamic: bool | None = None) -> None:
    torch.compiler.reset()
    on_all_lengths(torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic), model)


for backend, dynamic in (("eager", None), ("aot_eager", True)):
    name = f'`torch.compile(model, backend="{backend}", fullgraph=True, dynamic={dynamic})`'
    TOPIC.works(name, partial(of_backend, backend=backend, dynamic=dynamic))


@TOPIC.works("`layer.compile()` of each layer, then training")
def _() -> None:
    torch.compiler.reset()
    model = model_of()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(backend="aot_eager")
    same(trained(model)(SOURCE, TARGET), expected(model))


@TOPIC.works("`torch.compile` of a model without a target, an encoder-only model")
def _() -> None:
    torch.compiler.reset()
    model = model_of(BERT)
    same(torch.compile(model, backend="aot_eager", fullgraph=True)(SOURCE), classes(model))


def of_export(model: Any, strict: bool = False) -> None:
    same(export(model, (SOURCE, TARGET), strict=strict).module()(SOURCE, TARGET), expected(model))


for strict in (False, True):
    name = f"`torch.export.export(model, (source, target), strict={strict})`"
    TOPIC.works(name, partial(of_export, strict=strict), sample=not strict)


@TOPIC.works("`torch.export` with dynamic batch and lengths, saved and loaded", sample=True)
def _(model) -> None:
    torch.export.save(exported(model), file := io.BytesIO())
    file.seek(0)
    on_all_lengths(torch.export.load(file).module(), model)


@TOPIC.works("`torch.export` without a padding id")
def _() -> None:
    config = CONFIG.replace(padding_id=None)
    model = model_of(config)
    on_all_lengths(exported(model).module(), model, config)


@TOPIC.works("`torch.export` of a decoder-only model")
def _() -> None:
    model = model_of(GPT2)
    same(export(model, (None, TARGET)).module()(None, TARGET), expected(model, GPT2, None))


@TOPIC.works("`torch.export` of an encoder-only model, `(source,)`")
def _() -> None:
    model = model_of(BERT)
    same(export(model, (SOURCE,)).module()(SOURCE), classes(model))


@TOPIC.works("`torch.export` of masks as arguments")
def _(model) -> None:
    masks = {"source_mask_bs": SOURCE != 0, "target_mask_bt": TARGET != 0}
    same(export(model, (SOURCE, TARGET), masks).module()(SOURCE, TARGET, **masks), expected(model))


@TOPIC.works("`torch.jit.trace`, called with other lengths")
def _(model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, (SOURCE, TARGET))
    on_all_lengths(traced, model)


@TOPIC.works("`make_fx`")
def _(model) -> None:
    with torch.no_grad():
        same(make_fx(model)(SOURCE, TARGET)(SOURCE, TARGET), expected(model))


@TOPIC.stock('`make_fx(model, tracing_mode="fake")`', "it takes no module whose parameters are not fake themselves")
def _() -> None:
    for module, given in ((model_of(), (SOURCE, TARGET)), (torch.nn.Embedding(20, 2), (SOURCE,))):
        with pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors first"):
            make_fx(module, tracing_mode="fake")(*given)


TOPIC.refused(
    "`torch.fx.symbolic_trace(model)`",
    "not supported in symbolic tracing",
    lambda: torch.fx.symbolic_trace(model_of()),
)


@TOPIC.works("AOTInductor: `torch._inductor.aoti_compile_and_package`, called with other ids")
def _(single, folder) -> None:
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(export(single, (SOURCE, TARGET)), package_path=f"{folder}/a.pt2")
        run = torch._inductor.aoti_load_package(path)
        same(run(SOURCE.flip(0), TARGET.flip(0)), expected(single).flip(0), 1e-4)


@TOPIC.works("`Searcher(model, compiled=True)`")
def _(single) -> None:
    searches = [decoding.Searcher(single, compiled=each).greedy_search(SOURCE, SEARCH)["token_bn"] for each in (False, True)]
    assert torch.equal(*searches)


class Step(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_b1: Any, cache: Any) -> Any:
        return decode_step(self.model, token_b1, cache)


@TOPIC.works('`torch.export` of a cached decoding step: one graph after the first position, `Dim.DYNAMIC` for `cache["read"]`')
@torch.no_grad()
def _(model) -> None:
    file = io.BytesIO()
    first, cache = decode_step(model, TARGET[:, :1], start_cache(model, model.encode(SOURCE), SOURCE != 0, length=6))
    shapes = tree_map(lambda _: None, cache) | {"read": Dim.DYNAMIC}
    torch.export.save(export(Step(model), (TARGET[:, :1], cache | {"read": 3}), dynamic_shapes=(None, shapes)), file)
    file.seek(0)
    step, logits = torch.export.load(file).module(), [first]
    for token_b1 in TARGET[:, 1:].split(1, dim=1):
        logits_b1v, cache = step(token_b1, cache)
        logits.append(logits_b1v)
    same(torch.cat(logits, dim=1), expected(model))
