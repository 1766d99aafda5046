"""Helpers for code that may be traced, for hooks, and for parameters that several modules share;
torch has no public names for them.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = [
    "Sharing",
    "bounds",
    "exporting",
    "fits",
    "has_values",
    "is_changed",
    "same_size",
    "scaled",
]

OLDER = (
    ("embedding.table", "embedding.weight"),
    ("norm.scale", "norm.weight"),
    ("norm.offset", "norm.bias"),
)


def has_values(token: Tensor) -> bool:
    """Whether the host may look at the values: not in a trace, and not if the tensor is fake, on
    the meta device, wrapped by `torch.func` or a `DTensor`, of which each process has a part.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode() is not None:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(token)
    return not (token.is_meta or is_fake(token) or wrapped or hasattr(token, "device_mesh"))


def bounds(x: Tensor) -> list[Any]:
    """Returns the lowest and the highest value, in one transfer from the device; nothing if there
    are no values to look at.
    """
    if not has_values(x) or not x.numel():
        return []
    return torch.stack((x if x.is_floating_point() else x.long()).aminmax()).tolist()


def exporting() -> bool:
    """Whether the graph that is traced may run elsewhere than in torch: `torch.export`, ONNX,
    `make_fx` and `jit.trace`.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch.jit.is_tracing() or get_proxy_mode() is not None


def same_size(one: int, other: int) -> bool:
    """Whether two sizes are equal in every run of the graph; symbols that may be equal by chance
    are not.
    """
    same = one == other
    return (
        bool(same) if isinstance(same, Tensor) else statically_known_true(same)
    )  # sizes are tensors in `jit.trace`


def fits(size: int, most: int) -> bool:
    """Whether a size is at most this in every run of the graph; a symbol that may be larger does
    not fit.
    """
    small = size <= most
    return bool(small) if isinstance(small, Tensor) else statically_known_true(small)


def is_changed(module: nn.Module) -> bool:
    """Whether a call of the module does more than the `forward` of its class: it has hooks, or a
    `forward` of its own.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def scaled(tensors: Iterable[Tensor], factor: Tensor) -> tuple[Tensor, ...]:
    """Multiplies every tensor by the factor. On a GPU, launching a kernel for each of a model's
    parameters would take longer than to run it.
    """
    return torch._foreach_mul(list(tensors), factor)


class Sharing(nn.Module):
    """A module in which several modules have one parameter in common, such as a shared or tied
    table.

    It stays one parameter on every device and in every way of loading. A state dict has it once,
    under its first name, as `safetensors.torch.save_file` needs it; a state dict that is loaded may
    have it under any of its names, and under several if they are equal. The names `table`, `scale`
    and `offset` are taken for `weight` and `bias`, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_once)
        self.register_load_state_dict_pre_hook(_everywhere)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Serves `to` and `to_empty`, which give each module a parameter of its own when they leave
        the meta device.
        """
        shared = _shared(self)
        super()._apply(fn, recurse)
        for first, *others in shared:
            for owner, _, own in (name.rpartition(".") for name in others):
                setattr(self.get_submodule(owner), own, self.get_parameter(first))
        return self


def _shared(module: nn.Module) -> list[list[str]]:
    """Returns the names of every parameter that has several, in the order of the modules."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _once(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for _first, *others in _shared(module):
        for name in others:
            state_dict.pop(prefix + name, None)


def _everywhere(
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    *others: Any,
) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        for older, newer in OLDER:
            if name.endswith(older):
                state_dict[name.removesuffix(older) + newer] = state_dict.pop(name)
    for names in _shared(module):
        held = module.get_parameter(names[0])
        given = {
            prefix + name: state_dict[prefix + name]
            for name in names
            if prefix + name in state_dict
        }
        # `torch.distributed.checkpoint` gives a name that a full state dict leaves out the module's
        # own parameter, which says nothing.
        given = {name: tensor for name, tensor in given.items() if tensor is not held} or given
        for first, tensor in [*given.items()][:1]:
            unequal = [name for name, other in given.items() if not _equal(tensor, other)]
            others[-1].extend(
                f"{name} must equal {first}, since both are one parameter of this model"
                for name in unequal
            )
            if local_metadata.get("assign_to_params_buffers") and not isinstance(
                tensor, nn.Parameter
            ):
                tensor = nn.Parameter(tensor, requires_grad=held.requires_grad)
            state_dict.update(dict.fromkeys((prefix + name for name in names), tensor))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether all values are equal, if both have values."""
    if (one.shape, one.dtype, one.is_meta) != (other.shape, other.dtype, other.is_meta):
        return False
    if one is other or one.is_meta:
        return True
    shards: list[Any] = [
        x.to_local() if hasattr(x, "to_local") else x for x in (one, other)
    ]  # of a `DTensor`, those of this process
    return torch.allclose(shards[0], shards[1].to(shards[0].device), rtol=0, atol=0, equal_nan=True)
