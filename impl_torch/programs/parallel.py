"""Tensor parallelism: applies torch's parallel styles to modules whose parameters `model` splits.

The pages need no changes: hooks give each module its own heads, hidden features and vocabulary.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from reference_numpy import TransformerConfig

from .. import precision
from ..attention import MultiHeadAttention
from ..embedding import Logits
from ..experts import Experts
from ..feed_forward import FeedForward
from ..framework import share, shared
from ..normalization import LayerNorm, Norm
from ..values import Heads
from . import split_experts
from .parts import Place

__all__ = ["over_model"]


Style = ParallelStyle | Callable[[nn.Module, DeviceMesh], None]


def over_model(
    module: nn.Module,
    config: TransformerConfig,
    declared: Mapping[str, Place],
    devices: DeviceMesh,
    whole_logits: bool,
) -> None:
    """Applies a parallel style to every module that holds or reads a part of a parameter."""
    split = {place.native: place.model for place in declared.values()}
    tied = shared(module)
    for first, *others in tied:
        split |= dict.fromkeys(others, split[first])
    for name, part in [*module.named_modules()]:
        owner = name.removesuffix("_norm")  # the projection whose output a norm reads
        axis = split.get(f"{owner}.weight".removeprefix("."))
        style = _style(name.rpartition(".")[2], part, axis, config, whole_logits)
        if isinstance(style, ParallelStyle):
            parallelize_module(part, devices, style, src_data_rank=None)
        elif style is not None:
            style(part, devices)
    share(module, tied)


def _style(
    name: str, part: nn.Module, axis: int | None, config: TransformerConfig, whole_logits: bool
) -> Style | None:
    """Returns the style of a module of this name whose weight is split along this axis."""
    if isinstance(part, MultiHeadAttention | FeedForward):
        return partial(_mark_inputs, {1: config.heads, 2: config.feed_forward_width})
    if isinstance(part, Experts):
        return partial(_split_experts, config.experts)
    if isinstance(part, Logits) and axis == 0:
        layout = Replicate() if whole_logits else Shard(-1)
        return ColwiseParallel(output_layouts=layout, use_local_output=whole_logits)
    if isinstance(part, nn.Linear) and axis is not None:
        return RowwiseParallel() if axis else ColwiseParallel()
    if isinstance(part, nn.Embedding) and axis == 0:
        return _split_table
    kind, own_group = config.query_key_norm, partial(_own, config.key_value_heads)
    of_heads = kind in ("width", "each_head")  # parameters
    if isinstance(part, Norm) and name in ("query_norm", "key_norm"):
        if not of_heads:  # heads are rows, and each process has some
            return SequenceParallel(sequence_dim=1, use_local_output=True)
        if axis is None:
            return _replicated(own_group)
        return _split_norm if kind == "width" else _split_heads
    if isinstance(part, nn.Linear) and name in ("key", "value"):  # fewer groups than processes
        return _replicated(None if name == "key" and of_heads else own_group)
    return None


def _mark_inputs(sizes: Mapping[int, int], module: nn.Module, devices: DeviceMesh) -> None:
    """Marks the inputs of attention and feed-forward as replicated, so that each gradient is summed
    once, and selects the process's heads and features of masks and biases. sizes: of these axes.
    """
    names = [*inspect.signature(module.forward).parameters]

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        whole: dict[int, Tensor] = {}
        for name, x in given.items():
            if name in ("query_btd", "memory_bsd", "x_btd"):
                given[name] = whole.setdefault(id(x), _whole(x, devices))
            elif name.endswith(("_bhts", "_btf")) and x is not None:
                axis = 1 if name.endswith("_bhts") else 2
                given[name] = _part(x, axis, sizes[axis], devices)
        return (), given

    module.register_forward_pre_hook(before, with_kwargs=True)
    if isinstance(module, MultiHeadAttention):
        _gather_weights(sizes[1], module, devices)
        if module.sink is not None:
            _split_sink(module, devices)


def _gather_weights(heads: int, module: Any, devices: DeviceMesh) -> None:
    """Makes an attention return the weights of all heads."""
    own_weights = module.weights

    def weights(own: Heads, mask_bhts: Tensor | None = None, *others: Any) -> tuple[Tensor, Tensor]:
        part = None if mask_bhts is None else _part(mask_bhts, 1, heads, devices)
        own_bhts, mean_bthe = own_weights(own, part, *others)
        whole = DTensor.from_local(own_bhts, devices, [Shard(1)], run_check=False)
        return whole.full_tensor(), mean_bthe

    module.weights = weights


def _split_sink(module: Any, devices: DeviceMesh) -> None:
    """Splits the sinks of an attention over its heads."""
    sink = distribute_tensor(module.sink, devices, [Shard(0)], src_data_rank=None)
    module.sink, project = nn.Parameter(sink), module.project

    def own(*given: Any) -> Heads:
        query_bthk, key_bsgk, value_bsge, sink_h = project(*given)
        return Heads(query_bthk, key_bsgk, value_bsge, sink_h.to_local())

    module.project = own


def _split_experts(count: int, module: nn.Module, devices: DeviceMesh) -> None:
    """Splits experts: each process multiplies its own by their weights, and the sums are added."""

    def before(module: nn.Module, args: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x_btd, weight_btx = args
        own_btd = _whole(x_btd, devices).to_local(grad_placements=[Partial()])
        return own_btd, _part(weight_btx, 2, count, devices)

    def behind(module: nn.Module, args: Any, y_btd: Tensor) -> Tensor:
        sums = DTensor.from_local(y_btd, devices, [Partial()], run_check=False)
        return sums.redistribute(devices, [Replicate()]).to_local()

    split_experts.split(module, devices.get_local_rank(), devices.size())
    module.register_forward_pre_hook(before)
    module.register_forward_hook(behind)


def _split_table(module: Any, devices: DeviceMesh) -> None:
    """Splits an embedding over the vocabulary: rows are summed before they are scaled."""
    scaled, look_up = module.scaled, module.look_up
    module.scaled = lambda x_btd: scaled(x_btd.redistribute(devices, [Replicate()]))
    style = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(module, devices, style, src_data_rank=None)

    def nothing(token: Tensor) -> Tensor:
        if token.is_floating_point():
            return look_up(token)
        own = module.weight.to_local()
        zero_btd = own.new_zeros((*token.shape, own.shape[1])) + own.sum()
        return module.scaled(DTensor.from_local(zero_btd, devices, [Partial()]))

    if not len(module.weight.to_local()):  # torch's kernel cannot index an empty table
        module.look_up = nothing


def _replicated(after: Callable[[DTensor, DeviceMesh], Tensor] | None) -> Style:
    """Style of a module that every process computes whole; after: changes its `DTensor` output."""

    def before(module: nn.Module, inputs: Any, devices: DeviceMesh) -> Any:
        return (_whole(inputs[0], devices),)

    def behind(module: nn.Module, output: Any, devices: DeviceMesh) -> Any:
        return output if after is None else after(output, devices)

    def apply(module: nn.Module, devices: DeviceMesh) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(_whole(parameter, devices)))
        distribute_module(module, devices, None, before, behind)

    return apply


def _own(groups: int, output: DTensor, devices: DeviceMesh) -> Tensor:
    """Selects the group of keys or values that the process's heads share. There are fewer groups
    than processes, so each process's gradient is partial.
    """
    group = devices.get_local_rank() * groups // devices.size()
    return output.to_local(grad_placements=[Partial()]).chunk(groups, -1)[group]


def _split_norm(module: nn.Module, devices: DeviceMesh) -> None:
    """Splits a norm over its width; the processes only exchange sums."""
    _split_parameters(module, devices)
    module.forward = partial(_norm_of_parts, module, devices)


def _split_heads(module: Any, devices: DeviceMesh) -> None:
    """Gives each process the scales of its heads."""
    _split_parameters(module, devices)
    whole = module.scale_and_offset

    def of_part(wide: bool) -> tuple[Tensor | None, ...]:
        return tuple(None if part is None else part.to_local() for part in whole(wide))

    module.scale_and_offset = of_part


def _split_parameters(module: nn.Module, devices: DeviceMesh) -> None:
    for name, parameter in module.named_parameters():
        part = distribute_tensor(parameter, devices, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(part))


def _norm_of_parts(norm: Any, devices: DeviceMesh, own_btd: Tensor) -> Tensor:
    """`LayerNorm` and `RMSNorm` in elementary steps, exchanging only sums."""

    def mean(x_btd: Tensor) -> Any:
        share_bt1 = x_btd.sum(-1, keepdim=True)
        sums = DTensor.from_local(share_bt1, devices, [Partial()], run_check=False)
        return sums.full_tensor(grad_placements=[Partial()]) / (x_btd.shape[-1] * devices.size())

    x_btd = precision.upcast_half(own_btd)
    if isinstance(norm, LayerNorm):
        x_btd = x_btd - mean(x_btd)
    x_btd = x_btd * (mean(x_btd.square()) + norm.eps).rsqrt()
    if norm.cast_before_scale:
        x_btd = x_btd.to(own_btd.dtype)
    if norm.weight is not None:
        scale = norm.weight.to_local()
        x_btd = x_btd * (1 + scale if norm.one_plus_scale else scale)
    x_btd = x_btd if norm.bias is None else x_btd + norm.bias.to_local()
    return x_btd.to(own_btd.dtype)


def _whole(x: Tensor, devices: DeviceMesh) -> DTensor:
    """Marks a replicated tensor, whose gradient is summed over the processes."""
    if isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, devices, [Replicate()], run_check=False)


def _part(x: Tensor, axis: int, size: int, devices: DeviceMesh) -> Tensor:
    """Selects the process's part of an axis of this size; an axis of size 1 is kept."""
    whole = _whole(x, devices)
    if x.shape[axis] != size:
        return whole.to_local(grad_placements=[Partial()])
    return whole.redistribute(devices, [Shard(axis)]).to_local()
