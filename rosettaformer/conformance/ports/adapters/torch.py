"""Cases for PyTorch: any `nn.Module` or function of tensors."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from impl_torch import weights
from impl_torch.programs.compiled import compiled
from reference_numpy import parameters

from ...case import Case
from ...reference.statistics import RANDOM
from . import matching
from .base import Base, Named
from .tracing import Call, Force, Recorder, Tensors

__all__ = ["Adapter"]


class Adapter(Base):
    """Runs cases eagerly or compiled by `torch.compile`; without gradients in inference mode."""

    own = weights
    kinds = (torch.nn.Module,)
    no_graph = ("adam", "initialise", "random_dropout")  # what seeds a generator or steps an optimiser
    # "addmm_impl_cpu_" not implemented for 'Half' · Could not run 'aten::mm' with arguments from the 'CUDA' backend
    no_kernel = (RuntimeError,), (r"\"(\w+)\" not implemented for '\w+'", r"Could not run '([\w:.]+)' with arguments from")

    def _dtype(self, name: str) -> torch.dtype:
        return getattr(torch, name)

    def _device(self, name: str) -> torch.device:
        if name not in ("cpu", "cuda", "cuda-tf32"):
            raise ValueError(f"device must be one of cpu, cuda, cuda-tf32; got {name!r}")
        if name != "cpu" and not torch.cuda.is_available():
            raise ValueError(f"device {name} needs a CUDA device; torch sees none")
        return torch.device(name.removesuffix("-tf32"))

    @contextlib.contextmanager
    def _settings(self, case: Case) -> Iterator[None]:
        self._device(case.device)
        previous = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if case.device == "cuda-tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(previous)

    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        matching.refuse_rare(function.forward if isinstance(function, torch.nn.Module) else function, inputs)
        if isinstance(module := matching.owner(function), torch.nn.Module):
            module.to(self._device(case.device), self._dtype(case.dtype)).train(case.component in RANDOM)
            self._load(module, case)

    def _inputs(self, case: Case) -> dict[str, Any]:
        with torch.inference_mode(False):
            return super()._inputs(case)

    def _outputs(self, case: Case) -> Any:
        with torch.inference_mode():
            return super()._outputs(case)

    def prepared(self, case: Case) -> Callable[[], Any]:
        return torch.inference_mode()(super().prepared(case))

    def _stack(self, tensors: list[Any]) -> Any:
        return torch.stack(tensors)

    def _own_names(self, module: Any) -> list[str]:
        return [name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())]

    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Sizes that changed between earlier cases would otherwise make this case's graph a dynamic one.
        torch.compiler.reset()
        return getattr(self.port, "compiled", compiled)(function)

    def _to_numpy(self, outputs: Any) -> Any:
        if isinstance(outputs, Mapping):
            return {name: self._to_numpy(item) for name, item in outputs.items()}
        if isinstance(outputs, (tuple, list)):
            return tuple(self._to_numpy(item) for item in outputs)
        return weights.to_numpy(outputs) if isinstance(outputs, torch.Tensor) else outputs

    def _gradients(self, case: Case) -> Named:
        function, inputs = self._built(case)
        cotangent, flat = inputs.pop("cotangent"), parameters.flatten(inputs)
        floating = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor) and value.is_floating_point()}
        leaves = {name: value.requires_grad_() for name, value in floating.items()}
        if isinstance(module := matching.owner(function), torch.nn.Module):
            module.requires_grad_()
        outputs = matching.leaves(self._in_mode(function, case)(**inputs))
        output = next(leaf for leaf in outputs if isinstance(leaf, torch.Tensor))
        return self._pulled(function, case, output, leaves, cotangent)

    def _pulled(
        self, function: Any, case: Case, output: torch.Tensor, leaves: Mapping[Any, torch.Tensor], cotangent: torch.Tensor
    ) -> Named:
        """The gradients of the sum of cotangent * output, those of inputs by the leaves' keys."""
        variables = self._variables(function, case)
        # A table may name a view of a parameter, and only the parameter itself is part of the graph.
        bases = {name: tensor if tensor._base is None else tensor._base for name, tensor in variables.items()}
        found = _pull(output, [*leaves.values(), *bases.values()], cotangent.to(output.dtype))
        native = {
            name: gradient.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            for (name, tensor), gradient in zip(variables.items(), found[len(leaves) :], strict=True)
        }
        return self._named(dict(zip(leaves, found, strict=False)), native, case)

    @contextlib.contextmanager
    def _tensors(self, function: Any, case: Case, force: Force | None) -> Iterator[Tensors]:
        def gradients(call: Call, output: torch.Tensor, cotangent: np.ndarray) -> Named:
            leaves = {index: leaf for index, leaf in call.leaves.items() if leaf.requires_grad}
            return self._pulled(function, case, output, leaves, weights.from_numpy(cotangent, output.device))

        with torch.set_grad_enabled(force is not None and force.cotangent is not None):
            yield Tensors(
                is_tensor=lambda value: isinstance(value, torch.Tensor),
                to_numpy=weights.to_numpy,
                like=lambda array, tensor: weights.from_numpy(array, tensor.device).to(tensor.dtype),
                leaf=lambda tensor: tensor.requires_grad_(),
                signature=lambda module: inspect.signature(module.forward),
                gradients=gradients,
            )

    @contextlib.contextmanager
    def _watched(self, recorder: Recorder) -> Iterator[None]:
        """Watches the modules through their hooks, which also turn off the fused paths of torch's own layers that skip their submodules."""

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            return recorder.enter(module, args, kwargs) if recorder.awaits(module) else None

        def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if recorder.is_open(module):
                recorder.leave(output)

        handles = []
        for module in recorder.modules:
            handles += [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after, with_kwargs=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @staticmethod
    def describe() -> dict[str, Any]:
        """Version, devices and matmul precision, for `doctor`."""
        cuda = [f"cuda: {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return {
            "version": {"torch": str(torch.__version__)},
            "devices": ["cpu", *cuda],
            "precision": torch.get_float32_matmul_precision(),
        }


def _pull(output: torch.Tensor, sought: list[torch.Tensor], cotangent: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the sum of cotangent * output, contiguous; zeros where the output does not depend on a tensor."""
    active = [tensor for tensor in sought if tensor.requires_grad] if output.requires_grad else []
    found = dict(zip(map(id, active), torch.autograd.grad(output, active, cotangent, allow_unused=True), strict=True)) if active else {}
    gradients = (found.get(id(tensor)) for tensor in sought)
    return [
        torch.zeros_like(tensor, requires_grad=False) if gradient is None else gradient.contiguous()
        for tensor, gradient in zip(sought, gradients, strict=True)
    ]
