"""Two processes with gloo: data, tensor and sharded parallelism."""

import copy
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from impl_torch import loss, weights
from impl_torch.decoding import Searcher
from impl_torch.transformer import Transformer

from .. import Run
from .common import ACTIONS, BERT, CONFIG, SOURCE, TARGET, UNTIED, Tied, classes, expected, model_of, right, same, topic, trained

PROOFS: list[Run] = []
OTHER = TARGET.flip(0)  # of the second process, with another number of labels that count
OTHER[:2, 2:] = 0


def work(rank: int, index: int, store: str) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        ACTIONS.call(PROOFS[index])
    finally:
        dist.destroy_process_group()


def in_two(proof: Run) -> Run:
    """Runs it in two processes of its own."""
    PROOFS.append(proof)
    index = len(PROOFS) - 1

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (index, f"{folder}/store"), nprocs=2)

    return run


TOPIC = topic("Two processes", in_two)


def layers(model: Any) -> list[Any]:
    return [layer for stack in ("encoder", "decoder") if hasattr(model, stack) for layer in getattr(model, stack).layers]


def tensor_parallel(model: Any) -> Any:
    """torch's recipe: the inputs of every projection whole, its heads apart."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in layers(model):
        for name in ("self_attention", "cross_attention"):
            if hasattr(layer, name):
                split = dict.fromkeys(("query", "key", "value"), ColwiseParallel())
                parallelize_module(getattr(layer, name), mesh, split | {"output": RowwiseParallel()})
        parallelize_module(layer.feed_forward, mesh, {"hidden": ColwiseParallel(), "output": RowwiseParallel()})
    return model


def sharded(model: Any, **options: Any) -> Any:
    for layer in layers(model):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def both_batches() -> Any:
    """A model that has trained on the batches of both processes as one."""
    model = model_of()
    rows = torch.cat([SOURCE, SOURCE]), torch.cat([TARGET, OTHER])
    return trained(model, loss=lambda: model.training_loss(*rows, 0.1))


def own_target() -> Any:
    return OTHER if dist.get_rank() else TARGET


def mean_count(target: Any) -> Any:
    """What DDP and FSDP2, which average gradients, need as the total."""
    total = (target[:, 1:] != 0).sum().double()
    dist.all_reduce(total)
    return total / 2


@TOPIC.works("tensor parallel: `parallelize_module` of attention and feed-forward, `heads` not touched, and their training")
def _() -> None:
    model = tensor_parallel(model_of())
    same(model(SOURCE, TARGET), expected(model_of()))
    right(trained(model))
    same(model(SOURCE, TARGET), expected(trained(model_of())))


@TOPIC.works("tensor parallel of embedding (rows), embedding (columns) and logits, untied")
def _() -> None:
    plan = {"source_embedding": RowwiseParallel(input_layouts=Replicate()), "logits": ColwiseParallel(output_layouts=Replicate())}
    plan["target_embedding"] = ColwiseParallel(output_layouts=Replicate())
    right(parallelize_module(model_of(UNTIED), init_device_mesh("cpu", (2,)), plan), UNTIED)


@TOPIC.refused("tensor parallel of one side of a tie, exported", "no array would hold the module's target_embedding.weight")
def _(model) -> None:
    mesh = init_device_mesh("cpu", (2,))
    weights.export(parallelize_module(model, mesh, {"target_embedding": RowwiseParallel(input_layouts=Replicate())}), CONFIG)


@TOPIC.refused("`SequenceParallel` on a norm alone", "got mixed torch.Tensor and DTensor")
def _(model) -> None:
    parallelize_module(model.encoder.layers[0], init_device_mesh("cpu", (2,)), {"feed_forward_norm": SequenceParallel()})
    model(SOURCE, TARGET)


@TOPIC.works("FSDP2: `fully_shard` of layers and model, training, `weights.export`")
def _() -> None:
    model = sharded(model_of())
    same(model(SOURCE, TARGET), expected(model))
    target = own_target()
    trained(model, loss=lambda: model.training_loss(SOURCE, target, 0.1, total=mean_count(target)))
    same(model(SOURCE, TARGET), expected(both_batches()))
    right(model)


@TOPIC.works("FSDP2: `weights.load` after a forward pass, then training")
def _(other) -> None:
    model = sharded(model_of())
    model(SOURCE, TARGET)
    weights.load(model, weights.export(other, CONFIG), CONFIG)
    same(trained(model)(SOURCE, TARGET), expected(trained(other)))


@TOPIC.works("FSDP2: made on the meta device, `to_empty`, `weights.load`")
def _() -> None:
    with torch.device("meta"):
        model = sharded(Transformer(CONFIG).double())
    model.to_empty(device="cpu").eval()
    weights.load(model, weights.export(model_of(), CONFIG), CONFIG)
    assert model.logits.weight is model.source_embedding.weight
    right(trained(model))


@TOPIC.works("FSDP2: `set_model_state_dict(full_state_dict=True)`, `get_model_state_dict`")
def _() -> None:
    model, other, options = sharded(model_of(seed=1)), model_of(), StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, other.state_dict(), options=options)
    same(model(SOURCE, TARGET), expected(other))
    third = model_of(seed=1)
    third.load_state_dict(get_model_state_dict(model, options=options))
    same(third(SOURCE, TARGET), expected(other))


@TOPIC.works("FSDP2: the modules of a tie in one group, `fully_shard([source_embedding, target_embedding, logits])`")
def _(model) -> None:
    fully_shard([model.source_embedding, model.target_embedding, model.logits])
    right(trained(fully_shard(model)))


@TOPIC.stock("FSDP2: the modules of a tie in groups of their own", "it needs one group, and says so")
def _() -> None:
    for model, name in ((model_of(), "source_embedding"), (Tied(), "embedding")):
        fully_shard(getattr(model, name))
        with pytest.raises(ValueError, match="is shared with a parameter already managed by another FSDP group"):
            fully_shard(model)(SOURCE, TARGET)


@TOPIC.works('FSDP2: `model.encode` after `register_fsdp_forward_method(model, "encode")`')
def _() -> None:
    model = sharded(model_of())
    register_fsdp_forward_method(model, "encode")
    same(model.encode(SOURCE), model_of().encode(SOURCE))


TOPIC.refused("FSDP2: `model.encode` without it", "got mixed torch.Tensor and DTensor", lambda: sharded(model_of()).encode(SOURCE))
TOPIC.refused("FSDP2: `Searcher(model)`", "a search needs whole parameters; got sharded ones", lambda: Searcher(sharded(model_of())))


@TOPIC.works("FSDP2: bfloat16 in layers, `MixedPrecisionPolicy(output_dtype=torch.float32)` on the root: the loss is float32")
def _(single) -> None:
    for layer in layers(single):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    found = fully_shard(single, mp_policy=policy).training_loss(SOURCE, TARGET)
    assert found.dtype == torch.float32
    same(found, model_of(dtype=torch.float32).training_loss(SOURCE, TARGET), 0.05)


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.logits = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, source: Any, target: Any) -> Any:
        return self.logits(self.first(nn.functional.one_hot(target, 20).float()))


@TOPIC.stock("FSDP2: `MixedPrecisionPolicy(output_dtype=torch.float32)` in a layer, too", "the next product meets two dtypes")
def _() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    for model, first in ((model_of(dtype=torch.float32), layers), (Halves(), lambda model: [model.first])):
        for layer in first(model):
            fully_shard(layer, mp_policy=policy)
        with pytest.raises(RuntimeError, match="must have the same dtype"):
            fully_shard(model, mp_policy=policy)(SOURCE, TARGET)


def distributed_loss(model: Any, target: Any, total: Any) -> Any:
    input_bt, label_bt = loss.teacher_forcing(target)
    return loss.cross_entropy(model(SOURCE, input_bt), label_bt, label_bt != 0, 0.1, total)


@TOPIC.works("`DistributedDataParallel`: the loss of what it returns, with `total=`")
def _() -> None:
    model, target = DistributedDataParallel(model_of()), own_target()
    trained(model, loss=lambda: distributed_loss(model, target, mean_count(target)))
    same(model.module(SOURCE, TARGET), expected(both_batches()))


@TOPIC.stock("`DistributedDataParallel` without `total=`", "a mean of means, as with `F.cross_entropy`")
def _() -> None:
    target = own_target()
    model, other = DistributedDataParallel(model_of()), DistributedDataParallel(model_of())

    def stock() -> Any:
        input_bt, label_bt = loss.teacher_forcing(target)
        logits = other(SOURCE, input_bt).flatten(0, 1)
        return nn.functional.cross_entropy(logits, label_bt.flatten(), ignore_index=0, label_smoothing=0.1)

    trained(model, loss=lambda: distributed_loss(model, target, None))
    trained(other, loss=stock)
    same(model.module(SOURCE, TARGET), other.module(SOURCE, TARGET))
    assert (model.module(SOURCE, TARGET) - expected(both_batches())).abs().max() > 1e-3


@TOPIC.stock("`ddp.module.training_loss`", "what a wrapper's module computes averages no gradients")
def _() -> None:
    target = own_target()
    model = DistributedDataParallel(model_of())
    model.module.training_loss(SOURCE, target).backward()
    other = model_of()
    other.training_loss(SOURCE, target).backward()
    same(model.module.logits.bias.grad, other.logits.bias.grad)
    linear = DistributedDataParallel(nn.Linear(20, 1))
    linear.module(nn.functional.one_hot(target[0], 20).float()).sum().backward()
    same(linear.module.weight.grad[0], nn.functional.one_hot(target[0], 20).float().sum(0))


@TOPIC.works("`DistributedDataParallel` of an encoder-only model, `ddp(source)`")
def _() -> None:
    model = DistributedDataParallel(model_of(BERT))
    trained(model, loss=lambda: nn.functional.cross_entropy(model(SOURCE), torch.tensor([0, 2, 1])))
    same(model(SOURCE), classes(model.module))
    assert copy.deepcopy(model.module).config == BERT
