"""PyTorch adapter, for any `nn.Module` or function of tensors."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from impl_torch import weights
from impl_torch.programs.compiled import compiled
from reference_numpy import parameters

from ....common.modules import torch as face
from ....common.modules.nests import leaves
from ....common.modules.recording import ModuleCall
from ...case import Case
from ...expectation.statistics import RANDOM
from . import submodules
from .base import Base, Named
from .recorder import Force, Pull


class Adapter(Base):
    """Runs cases eagerly or with `torch.compile`; in inference mode unless gradients are needed."""

    own, face = weights, face
    kinds = (torch.nn.Module,)
    no_graph = ("adam", "initialise", "random_dropout")  # components that seed a generator or run an optimizer step
    # "addmm_impl_cpu_" not implemented for 'Half' · Could not run 'aten::mm' with arguments from the 'CUDA' backend
    no_kernel = (RuntimeError,), (r"\"(\w+)\" not implemented for '\w+'", r"Could not run '([\w:.]+)' with arguments from")

    def _dtype(self, name: str) -> torch.dtype:
        return getattr(torch, name)

    @contextlib.contextmanager
    def _context(self, case: Case) -> Iterator[None]:
        face.device(case.device)
        previous = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if case.device == "cuda-tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(previous)

    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        submodules.refuse_rare(function.forward if isinstance(function, torch.nn.Module) else function, inputs)
        if isinstance(module := submodules.owner(function), torch.nn.Module):
            module.to(face.device(case.device), self._dtype(case.dtype)).train(case.component in RANDOM)
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

    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Otherwise, sizes that changed between earlier cases would make this graph dynamic.
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
        sought = {name: value.requires_grad_() for name, value in floating.items()}
        if isinstance(module := submodules.owner(function), torch.nn.Module):
            module.requires_grad_()
        outputs = leaves(self._in_mode(function, case)(**inputs))
        output = next(leaf for leaf in outputs if isinstance(leaf, torch.Tensor))
        return self._pulled(function, case, output, sought, cotangent)

    def _pulled(
        self, function: Any, case: Case, output: torch.Tensor, inputs: Mapping[Any, torch.Tensor], cotangent: torch.Tensor
    ) -> Named:
        """Returns gradients of sum(cotangent * output): inputs by key, parameters by name."""
        variables = self._variables(function, case)
        # A table may name a view of a parameter, but only the parameter itself is in the graph.
        bases = {name: tensor if tensor._base is None else tensor._base for name, tensor in variables.items()}
        found = face.gradients([output], [cotangent], [*inputs.values(), *bases.values()])
        native = {
            name: gradient.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            for (name, tensor), gradient in zip(variables.items(), found[len(inputs) :], strict=True)
        }
        return self._named(dict(zip(inputs, found, strict=False)), native, case)

    @contextlib.contextmanager
    def _pull(self, function: Any, case: Case, force: Force | None) -> Iterator[Pull]:
        def gradients(call: ModuleCall, forced: dict[int, Any], output: torch.Tensor, cotangent: np.ndarray) -> Named:
            inputs = {index: tensor for index, tensor in forced.items() if tensor.requires_grad}
            return self._pulled(function, case, output, inputs, weights.from_numpy(cotangent, output.device))

        with torch.set_grad_enabled(force is not None and force.cotangent is not None):
            yield Pull(lambda tensor: tensor.requires_grad_(), gradients)

    @staticmethod
    def describe() -> dict[str, Any]:
        """Returns version, devices and matmul precision."""
        cuda = [f"cuda: {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return {
            "version": {"torch": str(torch.__version__)},
            "devices": ["cpu", *cuda],
            "precision": torch.get_float32_matmul_precision(),
        }
