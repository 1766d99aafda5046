"""A module on several devices, with parameters split as `reference_numpy.sharding` declares.

Uses torch's tensor parallelism and FSDP2, or DDP if each process holds everything. Every process
runs one device, started as by `torchrun`. The pages need no changes: hooks of torch's parallel
styles give each module its own heads, hidden features and vocabulary.
"""

import functools
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from reference_numpy import TransformerConfig, sharding
from reference_numpy.sharding import Mesh

from .. import loss, mask, precision, weights
from ..dropout import Keep
from ..framework import scaled
from ..inputs import real_tokens
from ..layers import Layer
from ..transformer import Transformer
from ..values import Text
from . import columns
from .parallel import over_model
from .parts import Held, gathered, whole
from .replicas import replicated

__all__ = ["Placed", "Processes", "device_mesh", "training_loss"]


Result = TypeVar("Result")


class Processes(sharding.Group):
    """All processes of a mesh."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self._device = dist.get_rank(), dist.get_world_size(), device

    def any(self, flag: bool) -> bool:
        given = torch.tensor(float(flag), device=self._device)
        dist.all_reduce(given, dist.ReduceOp.MAX)
        return bool(given)

    def barrier(self) -> None:
        dist.barrier()


def device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh:
    """Returns torch's mesh of these devices; initializes the process group if necessary.

    Raises ValueError unless there is one process per device.
    """
    if device.type == "cuda" and device.index is None:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    begun = dist.is_initialized()
    size = dist.get_world_size() if begun else int(os.environ.get("WORLD_SIZE", 1))
    if size != mesh.devices:
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} processes, as torchrun starts them; got {size}"
        )
    if not begun:
        alone: Any = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, **{} if "RANK" in os.environ else alone)
    return _device_mesh(dist.group.WORLD, device.type, mesh.data, mesh.model)


@functools.cache
def _device_mesh(processes: dist.ProcessGroup, kind: str, data: int, model: int) -> DeviceMesh:
    """Returns one shared mesh per set of processes: each mesh would open its own connections, and
    torch confuses those of equal meshes. shard: a single part, if parameters are whole along data.
    """
    return init_device_mesh(kind, (data, 1, model), mesh_dim_names=("data", "shard", "model"))


class Placed(Held):
    """A module on a mesh, and this process's part of it.

    Splits parameters in place; the module may be on the meta device. Gradients are sums over the
    parts of a batch, not means; if every parameter is whole, `summed` adds them. component: the
    prefix of parameter names. whole_logits: False keeps logits split over the vocabulary, as a
    `DTensor`. method: a method called instead of the module, such as `classification_loss`; if it
    calls another method, pass only the outer one. Raises ValueError if the mesh does not divide the
    config, and unless there is one process per device.
    """

    def __init__(
        self,
        module: nn.Module,
        config: TransformerConfig,
        mesh: Mesh,
        device: torch.device,
        component: str = "transformer",
        whole_logits: bool = True,
        method: str = "",
    ) -> None:
        super().__init__(config, mesh, component)
        self.module, self.config = module, config
        self.device, self.devices = device, device_mesh(mesh, device)
        if mesh.model > 1:
            over_model(module, config, self.places, self.devices["model"], whole_logits)
        if mesh.model > 1 or not mesh.replicate:
            self._split_over_data(method)
        module.to_empty(device=device)
        self.group: sharding.Group = Processes(device)
        self.parameters = {
            name: module.get_parameter(place.native) for name, place in self.places.items()
        }
        self._gathering = _fsdp_modules(module)
        self._replicas: DistributedDataParallel | None = None

    def _split_over_data(self, method: str) -> None:
        module = self.module
        axes = {module.get_parameter(x.native): x.data or 0 for x in self.places.values()}
        # parameters of a vocabulary part without tokens
        empty = {x for x in axes if not _local(x).numel()}
        # DDP rejects parts of parameters: if whole along data, each becomes a single shard
        over = self.devices["data", "shard"] if self.mesh.replicate else self.devices["data"]
        layers = [part for part in module.modules() if isinstance(part, Layer)]
        for split in (*layers, *[module] * (module not in layers)):
            fully_shard(
                split,
                mesh=over,
                shard_placement_fn=lambda parameter: Shard(axes[parameter]),
                ignored_params=empty,
            )
        for part in _fsdp_modules(module):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        if method:
            register_fsdp_forward_method(module, method)

    def parts(self) -> dict[str, Tensor]:
        """Returns this process's parts of the parameters by canonical name, as views."""
        self.reshard()
        return {name: _local(parameter) for name, parameter in self.parameters.items()}

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of these parts, zeros where there is none."""
        return {
            name: _local(torch.zeros_like(x) if x.grad is None else x.grad)
            for name, x in self.parameters.items()
        }

    def read(self, name: str, part: Tensor) -> np.ndarray:
        return super().read(name, whole(self.places[name], part, self.mesh, self.devices))

    def rows(self, rows: range) -> slice:
        """Returns which of these rows of a batch the process owns."""
        own = sharding.chunks(len(rows), self.mesh.data)[self.group.rank // self.mesh.model]
        return slice(rows.start + own.start, rows.start + own.stop)

    def computed(self, rows: range) -> tuple[slice, bool]:
        """Returns which rows the process computes, and whether it owns them.

        A process without rows computes the first one, uncounted: `DTensor` has no empty views.
        """
        own = self.rows(rows)
        if own.start < own.stop:
            return own, True
        return slice(rows.start, rows.start + 1), False

    def part(self, tensors: Mapping[str, Tensor]) -> Transformer:
        """Returns a copy of this process's part of every layer, with these parameters, in eval
        mode. Other processes' parameters are held only while they are read. `join` makes the copy
        run, also in a searcher.
        """
        column, dtype = self._column, next(iter(tensors.values())).dtype
        part = columns.empty(self.config, column).to(dtype).to_empty(device=self.device)
        part.eval().requires_grad_(False)
        read = columns.arrays(self.config, column, lambda name: self.read(name, tensors[name]))
        for name, array in read:
            part.get_parameter(name).copy_(weights.from_numpy(array))
        return part

    def join(self, part: Transformer) -> None:
        """Connects a part of the model with the others."""
        columns.joined(part, self._column)

    @property
    def _column(self) -> columns.Column:
        devices = self.devices["model"]
        return columns.Column(devices.get_local_rank(), self.mesh.model, devices.get_group())

    def found(self, search: Callable[[slice], dict[str, Tensor]], rows: int) -> dict[str, Tensor]:
        """Returns the search results of all rows. Each part of the data axis searches its own rows,
        unless rows depend on each other.
        """
        if self.config.rotary_by_length:
            return search(slice(0, rows))
        found, devices = search(self.rows(range(rows))), self.devices["data"]
        return {name: gathered(x.clone(), 0, rows, devices) for name, x in found.items()}

    def summed(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Wraps a function of the module so that gradients are summed over the processes."""
        if self._gathering:
            return function
        self._replicas = replicated(self.module, function, self.devices.get_group("data"))
        return self._replicas

    def collect(self, parts: Mapping[str, Tensor]) -> None:
        """Moves gradients of the parameters to their parts, where an optimizer expects them."""
        for name, gradient in self.gradients().items():
            parts[name].grad = gradient
        self.module.zero_grad()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over the parts of the batch, in place."""
        dist.all_reduce(tensor, group=self.devices.get_group("data"))
        return tensor

    def clipped(self, gradients: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
        """Computes `optimizer.clip_global_norm`, counting replicated parts once."""
        squares = []
        for name, part in gradients.items():
            place = self.places[name]
            copies = self.mesh.model if place.model is None else 1
            copies *= self.mesh.data if place.data is None else 1
            squares.append(part.square().sum() / copies)
        total = torch.stack(squares).sum()
        dist.all_reduce(total)
        factor = (limit / total.sqrt()).clamp(max=1)
        return dict(zip(gradients, scaled(gradients.values(), factor), strict=True))

    def reduces(self, last: bool) -> None:
        """Sets whether the next backward pass sums gradients over the processes."""
        if self._replicas is not None:
            self._replicas.require_backward_grad_sync = last
        for part in self._gathering:
            part.set_requires_gradient_sync(last, recurse=False)
            part.set_is_last_backward(last)

    def unshard(self) -> None:
        """Gathers all parameters, for calls of parts that do not gather their own."""
        for part in self._gathering:
            part.unshard()

    def reshard(self) -> None:
        """Frees parameters left gathered by a forward pass without a backward pass."""
        for part in self._gathering:
            part.reshard()


def _fsdp_modules(module: nn.Module) -> list[FSDPModule]:
    """Returns the modules whose parameters are gathered together."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _local(tensor: Tensor) -> Tensor:
    part = tensor.detach()
    return part.to_local() if isinstance(part, DTensor) else part


def training_loss(
    model: Transformer,
    source: Tensor | None,
    target: Tensor,
    smoothing: float = 0.0,
    total: int | Tensor | None = None,
    keep: Keep | None = None,
) -> Tensor:
    """Computes `Transformer.training_loss` with logits split over the vocabulary: the processes
    exchange three or four numbers per label.
    """
    read, label = loss.shifted(Text.of(target))
    model.check_ids(source, target)
    logits_btv = model(source, read, keep=keep)
    label_bt, mask_bt = label.ids, real_tokens(model.config, label)
    if not isinstance(logits_btv, DTensor):
        return loss.unchecked(logits_btv, label_bt, mask_bt, smoothing, total)
    mask_bt = mask.token_mask(label_bt, None) if mask_bt is None else mask_bt
    loss_bt = _cross_entropy(precision.upcast_half(logits_btv), label_bt, mask_bt, smoothing)
    total = mask_bt.sum().clamp(min=1) if total is None else total
    return (loss_bt.masked_fill(~mask_bt, 0).sum() / total).to(logits_btv.dtype)


def _cross_entropy(x_btv: Any, label_bt: Tensor, mask_bt: Tensor, smoothing: float) -> Tensor:
    devices, whole = x_btv.device_mesh, [Replicate()]

    def summed(x_btv: Any) -> Any:
        return x_btv.sum(-1).redistribute(devices, whole)

    given = partial(DTensor.from_local, device_mesh=devices, placements=whole, run_check=False)
    x_btv = x_btv.masked_fill(given(~mask_bt[..., None]), 0)
    # including processes without a token of the vocabulary
    own_bt1 = F.pad(x_btv.detach().to_local(), (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    highest_bt1 = given(own_bt1, placements=[Partial("max")]).redistribute(devices, whole)
    token_v = given(torch.arange(x_btv.shape[-1], device=label_bt.device))
    token_v = token_v.redistribute(devices, [Shard(0)])
    is_label_btv = token_v == given(label_bt.long()[..., None])
    label_x_bt = summed(torch.where(is_label_btv, x_btv, 0))
    log_sum_bt = summed((x_btv - highest_bt1).exp()).log() + highest_bt1[..., 0]
    loss_bt = log_sum_bt - (1 - smoothing) * label_x_bt
    if smoothing:
        loss_bt = loss_bt - smoothing / x_btv.shape[-1] * summed(x_btv)
    return loss_bt.to_local()
