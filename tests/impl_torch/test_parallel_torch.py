"""Users' own parallelism with the PyTorch port in two processes: DTensor, FSDP2 and DDP."""

import functools
import json
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_use_torch import IDS, close, loaded, right, trained
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from user_models import CONFIG, UNTIED

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.loss import cross_entropy, teacher_forcing
from impl_torch.transformer import Transformer

OTHER = IDS[1].flip(0).clone()  # the second process' target, with another number of labels
OTHER[:2, 2:] = 0


def layers(model: Any) -> list[Any]:
    return [*model.encoder.layers, *model.decoder.layers]


def sharded(model: Any, **options: Any) -> Any:
    for layer in layers(model):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def tensor_parallel(model: Any) -> Any:
    mesh, columns, rows = init_device_mesh("cpu", (2,)), ColwiseParallel, RowwiseParallel
    for layer in layers(model):
        for name in ("self_attention", "cross_attention"):
            if hasattr(layer, name):
                plan = {part: columns() for part in ("query", "key", "value")} | {"output": rows()}
                parallelize_module(getattr(layer, name), mesh, plan)
        parallelize_module(layer.feed_forward, mesh, {"hidden": columns(), "output": rows()})
    return model


def both_batches() -> Any:
    """Returns a model trained on the batches of both processes as one."""
    model = loaded()
    rows = torch.cat([IDS[0], IDS[0]]), torch.cat([IDS[1], OTHER])
    return trained(model, loss=lambda: model.training_loss(*rows, 0.1))(*IDS)


def own_target() -> tuple[Any, Any]:
    """Returns this process' target, and the total for DDP and FSDP2, which average gradients."""
    target = OTHER if dist.get_rank() else IDS[1]
    total = (target[:, 1:] != 0).sum().double()
    dist.all_reduce(total)
    return target, total / 2


def columns_and_rows() -> None:
    model = tensor_parallel(loaded())
    right(model)
    right(trained(model))
    close(model(*IDS), trained(loaded())(*IDS))


def tables() -> None:
    plan: dict[str, Any] = {"source_embedding": RowwiseParallel(input_layouts=Replicate())}
    plan |= {name: ColwiseParallel(output_layouts=Replicate()) for name in ("target_embedding", "logits")}
    mesh = init_device_mesh("cpu", (2,))
    right(parallelize_module(loaded(UNTIED), mesh, plan))
    one_side = parallelize_module(loaded(), mesh, {"target_embedding": plan["source_embedding"]})
    with pytest.raises(ValueError, match=r"target_embedding\.weight"):
        weights.export(one_side, CONFIG)


def fsdp_training() -> None:
    model = sharded(loaded())
    target, total = own_target()
    trained(model, loss=lambda: model.training_loss(IDS[0], target, 0.1, total=total))
    close(model(*IDS), both_batches())
    right(model)


def fsdp_loading() -> None:
    model, other = sharded(loaded(seed=1)), loaded()
    model(*IDS)
    weights.load(model, weights.export(other, CONFIG), CONFIG)
    close(trained(model)(*IDS), trained(other)(*IDS))
    with torch.device("meta"):
        model = sharded(Transformer(CONFIG).double())
    model.to_empty(device="cpu").eval()
    weights.load(model, weights.export(loaded(), CONFIG), CONFIG)
    assert model.logits.weight is model.source_embedding.weight
    right(trained(model))


def fsdp_state_dicts() -> None:
    options = states.StateDictOptions(full_state_dict=True)
    model, other, third = sharded(loaded(seed=1)), loaded(), loaded(seed=1)
    states.set_model_state_dict(model, other.state_dict(), options=options)
    close(model(*IDS), other(*IDS))
    third.load_state_dict(states.get_model_state_dict(model, options=options))
    close(third(*IDS), other(*IDS))


def fsdp_tie_in_one_group() -> None:
    model = loaded()
    fully_shard([model.source_embedding, model.target_embedding, model.logits])
    right(trained(fully_shard(model)))


def fsdp_methods() -> None:
    model = sharded(loaded())
    with pytest.raises(RuntimeError, match="DTensor"):
        model.encode(IDS[0])
    with pytest.raises(ValueError, match="whole parameters"):
        Searcher(model)
    register_fsdp_forward_method(model, "encode")
    close(model.encode(IDS[0]), loaded().encode(IDS[0]))


def fsdp_precision() -> None:
    model, halves = loaded(dtype="float32"), {"param_dtype": torch.bfloat16}
    expected = model.training_loss(*IDS)
    for layer in layers(model):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(**halves))
    policy = MixedPrecisionPolicy(**halves, output_dtype=torch.float32)
    found = fully_shard(model, mp_policy=policy).training_loss(*IDS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)


def ddp() -> None:
    model = DistributedDataParallel(loaded())
    target, total = own_target()

    def objective() -> Any:
        input_bt, label_bt = teacher_forcing(target)
        return cross_entropy(model(IDS[0], input_bt), label_bt, label_bt != 0, 0.1, total)

    trained(model, loss=objective)
    close(model.module(*IDS), both_batches())


CHECKS: dict[str, Callable[[], None]] = {
    run.__name__: run
    for run in (columns_and_rows, tables, fsdp_training, fsdp_loading, fsdp_state_dicts,
                fsdp_tie_in_one_group, fsdp_methods, fsdp_precision, ddp)
}  # fmt: skip


def work(rank: int, folder: str) -> None:
    """Runs every check in one of two processes; records the errors."""
    torch.set_num_threads(1)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=wait)
    found = dict.fromkeys(CHECKS, "")
    for name, run in CHECKS.items():
        try:
            run()
        except BaseException:
            found[name] = traceback.format_exc()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@functools.cache
def errors() -> list[dict[str, str]]:
    """Returns the errors of each check in each process."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder,), nprocs=2)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.conformance
@pytest.mark.xdist_group("users' processes")
@pytest.mark.parametrize("name", CHECKS)
def test_two_processes_compute_as_one(name: str) -> None:
    for rank, found in enumerate(errors()):
        assert not found[name], f"process {rank}: {found[name]}"
