"""Each private torch name that impl_torch uses still works as expected."""

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from canaries import overridden, resolved, sing
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import impl_torch
from impl_torch import framework
from impl_torch.kernels.int8 import Int8Projection, in_one_instruction

# Multiples of 1/4 and 1/8: float32 holds each sum of their products exactly, in every order.
X = (torch.arange(6) / 4 - 1).reshape(1, 2, 3)
LINEAR = nn.Linear(3, 4)
with torch.no_grad():
    LINEAR.weight.copy_((torch.arange(12) * 5 % 11 - 5).reshape(4, 3) / 8)
    LINEAR.bias.copy_(torch.arange(4) / 8 - 0.375)


def _fake() -> None:
    assert framework.has_values(X)
    with FakeTensorMode():
        assert not framework.has_values(torch.ones(2))


def _proxy() -> None:
    seen = []
    make_fx(lambda x: seen.append(framework.exporting()) or x + 1)(X)
    assert seen == [True] and not framework.exporting()


def _symbols() -> None:
    seen = []

    def traced(x: Tensor) -> Tensor:
        size = x.shape[0]
        seen.append((framework.fits(size, 5), framework.same_size(size, 5), framework.same_size(size, size)))
        return x + 1

    make_fx(traced, tracing_mode="symbolic")(torch.ones(5))
    assert seen == [(False, False, True)] and framework.fits(5, 5)


def _duck_shapes() -> None:
    sizes = []

    def compiler(graph: Any, inputs: list[Any]) -> Any:
        sizes.append({str(x) for x in inputs if isinstance(x, torch.SymInt)})
        return graph.forward

    with framework.of_unequal_sizes():
        torch.compile(torch.outer, backend=compiler, dynamic=True)(torch.ones(5), torch.ones(5))
    assert len(sizes[0]) == 2


def _dispatch() -> None:
    seen = []

    class Mode(framework.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.add(X, X)
    assert seen == ["aten::add.Tensor"]


def _group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert framework.group_size(dist.group.WORLD.group_name) == 1
    finally:
        dist.destroy_process_group()


def _hooks(register: str) -> None:
    module = nn.Linear(3, 4)
    assert not framework.is_changed(module)
    getattr(module, register)(lambda *_: None)
    assert framework.is_changed(module)


def _holders() -> None:
    parameters, buffers, _ = framework.holders(module := nn.BatchNorm1d(3))
    parameters["weight"], buffers["running_mean"] = X[0, 0], X[0, 1]
    assert module.weight is parameters["weight"] and module.running_mean is buffers["running_mean"]


def _moving() -> None:
    seen = []

    class Module(framework.Moving):
        @contextmanager
        def _moving(self, fn: Callable[[Tensor], Tensor]) -> Any:
            seen.append(fn(X).dtype)
            yield

    nn.Sequential(Module()).to(torch.float64)
    Module().half()
    assert seen == [torch.float64, torch.float16]


def _scaled() -> None:
    assert torch.equal(framework.scaled([X], torch.tensor(3.0))[0], 3 * X)


def _untraceable() -> None:
    def refuse(x: Tensor) -> Tensor:
        raise ValueError(f"{x.shape}")

    with pytest.raises(framework.untraceable()):
        torch.compile(refuse, fullgraph=True, backend="eager")(X)


def _dynamic() -> None:
    graphs = []

    def compiler(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    run = torch.compile(lambda x: x + 1, backend=compiler)
    for size in (3, 5):
        framework.mark_dynamic(x := torch.ones(size), 0, 8)
        run(x)
    assert len(graphs) == 1


def _folder() -> None:
    assert isinstance(framework.programs(), Path)


def _takes(name: str, *parameters: str) -> None:
    assert {*parameters} <= inspect.signature(resolved(name)).parameters.keys()


def _loads() -> None:
    _takes("torch._inductor.aoti_load_package", "path")
    assert hasattr(resolved("torch._C._aoti.AOTIModelPackageLoader"), "boxed_run")


def _box() -> None:
    _takes("torch._inductor.ir.TensorBox.create", "data")


def _int8_rule() -> None:
    first = ["qx", "x_scale", "x_zero_point", "qw", "w_scale", "w_zero_point", "bias"]
    others = ["output_scale", "output_zero_point", "output_dtype", "post_op_name", "post_op_args", "post_op_algorithm"]
    assert [*inspect.signature(resolved("torch._inductor.mkldnn_ir.QLinearPointwisePT2E.create")).parameters] == first + others


def _graph() -> None:
    assert "graph" in dir(type(resolved("torch._inductor.virtualized.V")))
    _takes("torch._inductor.graph.GraphLowering.add_tensor_constant", "data")


def _lowerings() -> None:
    assert torch.ops.aten.add.Tensor in resolved("torch._inductor.lowering.lowerings")


def _fallback() -> None:
    _takes("torch._inductor.lowering.fallback_handler", "kernel", "add_to_fallback_set")
    assert len(framework.kernel_rules()) == torch.backends.mkl.is_available()


def _mkl() -> None:
    if torch.backends.mkl.is_available():
        kernel = framework.packed(LINEAR.weight.detach(), 2, "mkl")
        assert torch.equal(framework.mkl_linear(X, kernel, LINEAR.weight, LINEAR.bias, 2), LINEAR(X))


def _one_dnn() -> None:
    if torch.backends.mkldnn.is_available():
        plain, wanted = LINEAR.weight.detach(), F.linear(X, LINEAR.weight, LINEAR.bias)
        for weight in (plain, framework.packed(plain, 2, "onednn")):
            assert torch.equal(framework.one_dnn_linear(X, weight, LINEAR.bias.detach()), wanted)


def _bfloat16() -> None:
    if torch.backends.mkldnn.is_available():
        assert isinstance(framework.has_bfloat16(), bool)


def _int8() -> None:
    if torch.backends.mkldnn.is_available() and in_one_instruction():
        bound = 1.01 * 3 * float(LINEAR.weight.abs().max()) / 127  # rounding of 3 products: half a step of 1 / 127 in each factor
        assert torch.allclose(Int8Projection(LINEAR)(X), LINEAR(X), rtol=0, atol=bound)


CANARIES: dict[str, Callable[[], None]] = {
    "torch._subclasses.fake_tensor.is_fake": _fake,
    "torch.fx.experimental.proxy_tensor.get_proxy_mode": _proxy,
    "torch.fx.experimental.symbolic_shapes.statically_known_true": _symbols,
    "torch.fx.experimental._config": _duck_shapes,
    "torch.utils._python_dispatch.TorchDispatchMode": _dispatch,
    "torch.distributed.distributed_c10d._resolve_process_group": _group,
    "torch.nn.Module._forward_hooks": lambda: _hooks("register_forward_hook"),
    "torch.nn.Module._forward_pre_hooks": lambda: _hooks("register_forward_pre_hook"),
    "torch.nn.Module._parameters": _holders,
    "torch.nn.Module._buffers": _holders,
    "torch.nn.Module._apply": _moving,
    "torch._foreach_mul": _scaled,
    "torch._dynamo.exc.Unsupported": _untraceable,
    "torch._dynamo.mark_dynamic": _dynamic,
    "torch._inductor.runtime.cache_dir_utils.cache_dir": _folder,
    "torch._inductor.aoti_compile_and_package": lambda: _takes("torch._inductor.aoti_compile_and_package", "package_path"),
    "torch._inductor.aoti_load_package": _loads,
    "torch._inductor.ir.TensorBox": _box,
    "torch._inductor.mkldnn_ir.QLinearPointwisePT2E": _int8_rule,
    "torch._inductor.virtualized.V": _graph,
    "torch._inductor.lowering.lowerings": _lowerings,
    "torch._inductor.lowering.fallback_handler": _fallback,
    "torch.ops.mkl._mkl_linear": _mkl,
    "torch.ops.mkl._mkl_reorder_linear_weight": _mkl,
    "torch.ops.mkldnn._linear_pointwise": _one_dnn,
    "torch.ops.mkldnn._reorder_linear_weight": _one_dnn,
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": _bfloat16,
    "torch.ops.onednn.qlinear_prepack": _int8,
    "torch.ops.onednn.qlinear_pointwise": _int8,
}


@pytest.mark.parametrize("name", framework.PRIVATE)
def test_a_private_name_of_torch_does_what_it_is_used_for(name: str) -> None:
    sing(name, framework.PRIVATE, CANARIES[name])


def test_only_the_framework_file_overrides_private_names_of_torch() -> None:
    assert {*overridden(impl_torch)} == {("impl_torch.framework", "Moving._apply")}
