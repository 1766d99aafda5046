"""Optimisers, precision, accumulation, and what torch does around a training step."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from impl_torch import loss, training, weights
from impl_torch.layers import EncoderLayer
from impl_torch.programs.unpadding import unpadded
from impl_torch.transformer import Transformer
from reference_numpy import training as reference
from reference_numpy.recipe import PAPER

from .common import BERT, CONFIG, GPT2, SOURCE, TARGET, classes, expected, model_of, right, same, topic, trained

TOPIC = topic("Training")
OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "AdamW, fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "Adam, foreach": partial(torch.optim.Adam, lr=1e-2, foreach=True),
    "NAdam": partial(torch.optim.NAdam, lr=1e-2),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3),
    "Adafactor": partial(torch.optim.Adafactor, lr=1e-2),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}


def of_optimiser(model: Any, make: Callable[[Any], Any] = torch.optim.SGD) -> None:
    before = model.training_loss(SOURCE, TARGET)
    right(trained(model, optimizer=make(model.parameters())))
    assert model.training_loss(SOURCE, TARGET) < before


for name, make in OPTIMISERS.items():
    TOPIC.works(f"`torch.optim` {name}", partial(of_optimiser, make=make), sample=name == "SGD")


@TOPIC.works("steps of `impl_torch.training.Trainer` are those of `reference_numpy`", sample=True)
def _() -> None:
    parameters = weights.export(model_of(), CONFIG)
    runs = [kind(CONFIG, PAPER, parameters) for kind in (partial(training.Trainer, compiled=False), reference.Trainer)]
    for run in runs:
        for _ in range(2):
            run.train_step(SOURCE.numpy(), TARGET.numpy())
    for key, array in runs[1].state().items():
        same(torch.from_numpy(runs[0].state()[key]), torch.from_numpy(array), 1e-8)


@TOPIC.works("the state of an optimiser is saved and training goes on")
def _() -> None:
    optimizer_of = lambda model: torch.optim.AdamW(model.parameters(), 1e-2)  # noqa: E731
    model = model_of()
    first = optimizer_of(model)
    other = copy.deepcopy(trained(model, optimizer=first))
    second = optimizer_of(other)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    trained(model, optimizer=first)
    same(trained(other, optimizer=second)(SOURCE, TARGET), model(SOURCE, TARGET))


@TOPIC.works("`AveragedModel` (EMA) of a tied model")
def _(model) -> None:
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(2):
        averaged.update_parameters(trained(model, steps=1))
    right(averaged.module)
    assert averaged.module.logits.weight is averaged.module.source_embedding.weight


@TOPIC.works("`clip_grad_norm_`, gradients accumulated over two batches with `total=`")
def _(model) -> None:
    other = model_of()
    model.training_loss(SOURCE, TARGET).backward()
    total = int((TARGET[:, 1:] != 0).sum())
    for rows in (slice(0, 1), slice(1, 3)):
        other.training_loss(SOURCE[rows], TARGET[rows], total=total).backward()
    for each in (model, other):
        torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        same(two.grad, one.grad)


@TOPIC.works("`register_post_accumulate_grad_hook`: an optimiser for each parameter, which steps in backward")
def _(model) -> None:
    optimisers = {parameter: torch.optim.SGD([parameter], 1e-2) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimisers[parameter].step())
    other = model_of()
    trained(other, 1, torch.optim.SGD(other.parameters(), 1e-2))
    model.training_loss(SOURCE, TARGET, 0.1).backward()
    same(model(SOURCE, TARGET), other(SOURCE, TARGET))


@TOPIC.works("`checkpoint(model, source, target, use_reentrant=False)`")
def _(model) -> None:
    other = model_of()
    checkpoint(model, SOURCE, TARGET, use_reentrant=False).square().sum().backward()
    other(SOURCE, TARGET).square().sum().backward()
    same(model.source_embedding.weight.grad, other.source_embedding.weight.grad)


@TOPIC.works("`apply_activation_checkpointing` of the layers, in a padded batch")
def _(model) -> None:
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, EncoderLayer))
    same(unpadded(model, 0)(SOURCE, TARGET), expected(model_of()))
    unpadded(model.training_loss, 0)(SOURCE, TARGET).backward()


@TOPIC.works("`torch.autocast(bfloat16)`: the loss is float32", sample=True)
def _(single) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = single.training_loss(SOURCE, TARGET)
    assert found.dtype == torch.float32
    same(found, single.training_loss(SOURCE, TARGET), 0.05)


@TOPIC.works("`torch.amp.GradScaler`, float16", sample=True)
def _(single) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(single.parameters(), 1e-2)
    with torch.autocast("cpu", torch.float16):
        found = single.training_loss(SOURCE, TARGET)
    scaler.scale(found).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**16
    right(single)


def of_dtype(dtype: torch.dtype, tolerance: float, single: Any) -> None:
    model = single.to(dtype)
    assert model(SOURCE, TARGET).dtype == model.training_loss(SOURCE, TARGET).dtype == dtype
    right(model, tolerance=tolerance)


for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 0.02)):
    TOPIC.works(f"`model.to({dtype})`", partial(of_dtype, dtype, tolerance))


@TOPIC.works("`torch.set_default_dtype(torch.float64)`")
def _() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = Transformer(CONFIG).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    assert model(SOURCE, TARGET).dtype == torch.float64
    right(model)


@TOPIC.works("a decoder-only model, `model(None, target)`, trained")
def _() -> None:
    model = model_of(GPT2)
    trained(model, loss=lambda: model.training_loss(None, TARGET))
    same(model(None, TARGET), expected(model, GPT2, None))


@TOPIC.works("an encoder-only model, `model(source)`, trained by `F.cross_entropy`", sample=True)
def _() -> None:
    model = model_of(BERT)
    label = torch.tensor([0, 2, 1])
    trained(model, loss=lambda: torch.nn.functional.cross_entropy(model(SOURCE), label))
    same(model(SOURCE), classes(model))


TOPIC.refused("`model(source)` of a model with a decoder", "a decoder needs a target; got None", lambda: model_of()(SOURCE))


@TOPIC.stock("a `Trainer` steps beside another thread", "`use_deterministic_algorithms` is of all threads of a process")
def _() -> None:
    with ThreadPoolExecutor(1) as pool:
        with training._deterministic():
            assert pool.submit(torch.are_deterministic_algorithms_enabled).result()
        torch.use_deterministic_algorithms(True)
        found = pool.submit(torch.are_deterministic_algorithms_enabled).result()
        torch.use_deterministic_algorithms(False)
    assert found


@TOPIC.works("the loss of `impl_torch.loss.cross_entropy` is `F.cross_entropy`'s with label smoothing and `ignore_index`")
def _() -> None:
    input_bt, label_bt = loss.teacher_forcing(TARGET)
    model = model_of()
    logits = model(SOURCE, input_bt)
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), label_bt.flatten(), label_smoothing=0.1, ignore_index=0)
    same(model.training_loss(SOURCE, TARGET, 0.1), wanted)


@TOPIC.refused("jagged nested tensors", "ids must be a dense tensor, whose shorter rows are padded; got a nested one", sample=True)
def _() -> None:
    rows = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4])], layout=torch.jagged)
    model_of()(rows, TARGET)
