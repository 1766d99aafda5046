"""Helpers for traced code, hooks and shared parameters, and all private torch names in use.

No other file of the package uses private names of torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental import _config
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "PRIVATE",
    "Moving",
    "Sharing",
    "TorchDispatchMode",
    "bounds",
    "compile_to",
    "compiled_int8",
    "exporting",
    "fits",
    "group_size",
    "has_bfloat16",
    "has_values",
    "holders",
    "is_changed",
    "is_sharded",
    "kernel_rules",
    "mark_dynamic",
    "mkl_linear",
    "of_unequal_sizes",
    "one_dnn_linear",
    "packed",
    "packed_int8",
    "product_int8",
    "program",
    "programs",
    "same_size",
    "scaled",
    "share",
    "shared",
    "untraceable",
]

# Private and unstable names of torch, and the consequence of losing each.
PRIVATE = {
    "torch._subclasses.fake_tensor.is_fake": "tracing would read values that a fake tensor lacks",
    "torch.fx.experimental.proxy_tensor.get_proxy_mode": "make_fx would trace value checks",
    "torch.fx.experimental.symbolic_shapes.statically_known_true": "graphs would fix the length",
    "torch.fx.experimental._config": "lengths equal by chance would be merged",
    "torch.utils._python_dispatch.TorchDispatchMode": "`traffic` could not see collectives",
    "torch.distributed.distributed_c10d._resolve_process_group": "`traffic` could not size groups",
    "torch.nn.Module._forward_hooks": "fused programs would skip a user's hooks",
    "torch.nn.Module._forward_pre_hooks": "fused programs would skip a user's hooks",
    "torch.nn.Module._parameters": "a step's program would keep its initial weights",
    "torch.nn.Module._buffers": "a step's program would keep its initial buffers",
    "torch.nn.Module._apply": "`to` would separate tied tables and leave packed kernels behind",
    "torch._foreach_mul": "clipping would launch a kernel for every parameter",
    "torch._dynamo.exc.Unsupported": "bad input would raise the tracer's error for the module's",
    "torch._dynamo.mark_dynamic": "every number of tokens would be compiled again",
    "torch._inductor.runtime.cache_dir_utils.cache_dir": "programs would miss torch's folder",
    "torch._inductor.aoti_compile_and_package": "a step of decoding would run with guards",
    "torch._inductor.aoti_load_package": "calling a step would take a third longer",
    "torch._inductor.ir.TensorBox": "int8 products would be called from Python",
    "torch._inductor.mkldnn_ir.QLinearPointwisePT2E": "int8 products would be called from Python",
    "torch._inductor.virtualized.V": "int8 products would be called from Python",
    "torch._inductor.lowering.lowerings": "packed kernels would have to be constants",
    "torch._inductor.lowering.fallback_handler": "MKL's kernels would have to be constants",
    "torch.ops.mkl._mkl_linear": "float32 products of few rows would take twice the time on Intel",
    "torch.ops.mkl._mkl_reorder_linear_weight": "MKL would pack the kernel for every product",
    "torch.ops.mkldnn._linear_pointwise": "bfloat16 products of few rows would take twice the time",
    "torch.ops.mkldnn._reorder_linear_weight": "oneDNN would pack the kernel for every product",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "oneDNN would emulate bfloat16 on old processors",
    "torch.ops.onednn.qlinear_prepack": "int8 products would be computed in float32",
    "torch.ops.onednn.qlinear_pointwise": "int8 products would be computed in float32",
}

Rules = Mapping[Any, Callable[..., Any]]  # the metadata of a module in a state dict
Metadata = Mapping[str, bool | int]  # of a module in a state dict
OLDER = (
    ("embedding.table", "embedding.weight"),
    ("norm.scale", "norm.weight"),
    ("norm.offset", "norm.bias"),
)


def has_values(token: Tensor) -> bool:
    """Whether the host may read the values: not while tracing, nor if the tensor is fake, on the
    meta device, wrapped by `torch.func`, or a `DTensor` that is spread over processes.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode() is not None:
        return False
    wrapped = torch.func.debug_unwrap(token) is not token
    return not (token.is_meta or is_fake(token) or wrapped or is_sharded(token))


def is_sharded(tensor: Tensor) -> TypeGuard["DTensor"]:
    """Whether the tensor is a `DTensor`, without the slow import of that class."""
    return hasattr(tensor, "full_tensor")


def bounds(x: Tensor) -> list[Any]:
    """Returns the lowest and highest value, in one transfer; empty if there are no values."""
    if not has_values(x) or not x.numel():
        return []
    return torch.stack((x if x.is_floating_point() else x.long()).aminmax()).tolist()


def exporting() -> bool:
    """Whether the traced graph may run outside torch: `export`, ONNX, `make_fx`, `jit.trace`."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch.jit.is_tracing() or get_proxy_mode() is not None


def same_size(one: int, other: int) -> bool:
    """Whether two sizes are equal in every run of the graph, not just in this one."""
    return _always(one == other)


def fits(size: int, most: int) -> bool:
    """Whether a size is at most this in every run of the graph."""
    return _always(size <= most)


def _always(holds: bool | torch.SymBool | Tensor) -> bool:
    if isinstance(holds, Tensor):  # `jit.trace` represents sizes as tensors
        return bool(holds)
    if torch.compiler.is_compiling() or isinstance(holds, torch.SymBool):
        # sympy is slow to import
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(holds)
    return holds


def is_changed(module: nn.Module) -> bool:
    """Whether a call does more than the class's `forward`: hooks, or a replaced `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def scaled(tensors: Iterable[Tensor], factor: Tensor) -> tuple[Tensor, ...]:
    """Multiplies all tensors at once; on a GPU, launching one kernel each would dominate."""
    return torch._foreach_mul(list(tensors), factor)


def holders(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Returns the dicts that store a module's tensors: parameters, buffers and attributes."""
    return module._parameters, module._buffers, vars(module)


def of_unequal_sizes() -> AbstractContextManager[None]:
    """Context in which compiled graphs treat sizes that are equal by chance as independent."""
    shapes: Any = _config
    return shapes.patch(use_duck_shape=False)


def mark_dynamic(x: Tensor, axis: int, hint: int) -> None:
    """Marks the axis so that one graph serves every size; hint: a typical size."""
    torch._dynamo.mark_dynamic(x, axis, hint_override=hint)


def untraceable() -> type[Exception]:
    """The error of a tracer that cannot continue, including when the traced code raises."""
    return torch._dynamo.exc.Unsupported


def group_size(name: Any) -> int:
    """Returns the number of processes of a group that a functional collective names."""
    return int(torch.distributed.distributed_c10d._resolve_process_group(name).size())


def programs() -> Path:
    """Returns the folder of compiled programs; the import takes a second, as compilers do."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def program(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Loads a compiled program that takes lists, which is a third faster than nested structures."""
    return torch._inductor.aoti_load_package(str(path)).loader.boxed_run


def compile_to(exported: torch.export.ExportedProgram, path: Path, rules: Rules) -> None:
    """Compiles an exported program ahead of time. rules: how to compile operators."""
    from torch._inductor.lowering import lowerings

    with patch.dict(lowerings, rules):
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def compiled_int8(of_x: Sequence[Tensor], x_nd: Any, kernel: Any, scale: Any, zero: Any) -> Any:
    """`compile_to` rule for oneDNN's int8 product; of_x: scale and zero of the uint8 input."""
    from torch._inductor import ir, mkldnn_ir
    from torch._inductor.virtualized import V

    constants = [V.graph.add_tensor_constant(x) for x in of_x]
    given = x_nd, *constants, kernel, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    return ir.TensorBox.create(mkldnn_ir.QLinearPointwisePT2E.create(*given))


def kernel_rules() -> Rules:
    """Rules for MKL products with packed kernels as inputs; Inductor only takes constants."""
    from torch._inductor.lowering import fallback_handler

    if not torch.backends.mkl.is_available():
        return {}
    product = torch.ops.mkl._mkl_linear.default
    return {product: fallback_handler(product, add_to_fallback_set=False)}


def packed(weight: Tensor, rows: int, library: str) -> Tensor:
    """Packs a kernel for products of this number of rows by MKL or oneDNN."""
    if library == "mkl":
        return torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def mkl_linear(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """Computes `x W + b` by MKL, with a packed kernel."""
    return torch.ops.mkl._mkl_linear(x, kernel, weight, bias, rows)


def one_dnn_linear(x_btd: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes `x W + b` by oneDNN, with a plain or packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x_btd, weight, bias, "none", [], "")


def has_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 products on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_int8(kernel: Tensor) -> Tensor:
    """Packs an int8 kernel for oneDNN."""
    return torch.ops.onednn.qlinear_prepack(kernel, None)


def product_int8(*given: Tensor | float | None) -> Tensor:
    """Multiplies uint8 by packed int8 with oneDNN; takes the arguments before the dtype."""
    return torch.ops.onednn.qlinear_pointwise(*given, torch.float32, "none", [], "")


class Moving(nn.Module):
    """A module that updates more than its parameters when moved: `to`, `to_empty`, `double`."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        with self._moving(fn):
            return super()._apply(fn, recurse)

    @contextmanager
    def _moving(self, fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Context around a move. fn: moves a tensor."""
        yield


class Sharing(Moving):
    """A module with a parameter shared by several modules, such as a shared or tied table.

    It stays one parameter on every device and through every way of loading. State dicts contain it
    once, under its first name, as `safetensors.torch.save_file` requires; loaded state dicts may
    use any of its names, or several with equal values. The names `table`, `scale` and `offset` are
    accepted for `weight` and `bias`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_once)
        self.register_load_state_dict_pre_hook(_everywhere)

    @contextmanager
    def _moving(self, fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Restores sharing, since leaving the meta device gives each module its own parameter."""
        tied = shared(self)
        yield
        share(self, tied)


def shared(module: nn.Module) -> list[list[str]]:
    """Returns the names of every parameter that has several, in the order of the modules."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def share(module: nn.Module, groups: Iterable[list[str]]) -> None:
    """Assigns the first parameter of each group of names to all of its names."""
    for first, *others in groups:
        for owner, _, own in (name.rpartition(".") for name in others):
            setattr(module.get_submodule(owner), own, module.get_parameter(first))


def _once(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, local_metadata: Metadata
) -> None:
    for _first, *others in shared(module):
        for name in others:
            state_dict.pop(prefix + name, None)


def _everywhere(
    module: nn.Module,
    state_dict: dict[str, Tensor],
    prefix: str,
    local_metadata: Metadata,
    strict: bool,
    *problems: list[str],
) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        for older, newer in OLDER:
            if name.endswith(older):
                state_dict[name.removesuffix(older) + newer] = state_dict.pop(name)
    for group in shared(module):
        held, names = module.get_parameter(group[0]), [prefix + name for name in group]
        given = {name: state_dict[name] for name in names if name in state_dict}
        # For names missing from a full state dict, `torch.distributed.checkpoint` passes the
        # module's own parameter, which carries no information.
        given = {name: tensor for name, tensor in given.items() if tensor is not held} or given
        if not given:
            continue
        (first, tensor), *others = given.items()
        problems[-1].extend(
            f"{name} must equal {first}, since they are one parameter of this model"
            for name, other in others
            if not _equal(tensor, other)
        )
        assigns = local_metadata.get("assign_to_params_buffers")
        if assigns and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=held.requires_grad)
        state_dict.update(dict.fromkeys(names, tensor))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether all values are equal, if both tensors have values."""
    if (one.shape, one.dtype, one.is_meta) != (other.shape, other.dtype, other.is_meta):
        return False
    if one is other or one.is_meta:
        return True
    # for a `DTensor`, the shards of this process
    one, other = (x.to_local() if is_sharded(x) else x for x in (one, other))
    return torch.allclose(one, other.to(one.device), rtol=0, atol=0, equal_nan=True)
