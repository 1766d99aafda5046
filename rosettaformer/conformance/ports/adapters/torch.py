"""Cases for PyTorch: any `nn.Module` or function of tensors."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from impl_torch import weights
from impl_torch.fast.compiled import compiled
from reference_numpy import layout, parameters

from ...case import Case
from ...reference.components import forward_of
from ...reference.statistics import RANDOM
from ..port import Unsupported
from . import matching
from .tracing import Call, Force, Recorder, Tensors, canonical_gradients, native_variables

__all__ = ["Adapter"]

# "addmm_impl_cpu_" not implemented for 'Half' · Could not run 'aten::mm' with arguments from the 'CUDA' backend
_NO_KERNEL = re.compile(r"\"(\w+)\" not implemented for '\w+'|Could not run '([\w:.]+)' with arguments from")

# What seeds a generator or steps an optimiser is no graph: it runs as it is.
_NO_GRAPH = ("adam", "initialise", "random_dropout")


class Adapter:
    """Puts cases to a port: a module or namespace with `components`, and where they differ from ours `weights`, `compiled`, `modes`."""

    def __init__(self, port: Any) -> None:
        self.port, self._table = port, getattr(port, "weights", weights.TABLE)

    def run(self, case: Case) -> Any:
        """The outputs for the case, as NumPy in the dtype that the port returned; of a gradient those of autograd.

        Raises ValueError where the device is missing or the parameters do not fit, Unsupported where torch has no kernel, NotCovered where
        a keep mask is given to what takes none.
        """
        device = _device(case.device)
        inputs = {name: _to_device(value, device) for name, value in case.inputs.items()}
        with _matmul_precision(case.device), _unsupported():
            if forward := forward_of(case.component):
                return self._vjp(dataclasses.replace(case, component=forward), device, inputs)
            with torch.inference_mode():
                return _to_numpy(self._call(case, self._built(case, device), inputs))

    def trace(self, case: Case, forces: Sequence[Force | None] = (None,)) -> list[dict[str, dict[str, Any]]]:
        """What every submodule that has a canonical path was given and gave, by path: one eager run for each force, on one model.

        forces: None is a free run; otherwise the one component that is given other inputs, and these. Errors as `run`.
        """
        device = _device(case.device)
        inputs = {name: _to_device(value, device) for name, value in case.inputs.items()}
        with _matmul_precision(case.device), _unsupported():
            built = self._built(case, device)
            modules = matching.submodules(built, case, matching.own_paths(self.port), torch.nn.Module)
            results = []
            for force in forces:
                recorder = Recorder(modules, self._tensors(built, case), force)
                with _hooked(recorder), torch.set_grad_enabled(force is not None and force.cotangent is not None):
                    results.append(recorder.run(built, _unsupported()(built.__call__), inputs))
            return results

    def _tensors(self, built: Any, case: Case) -> Tensors:
        def gradients(call: Call, output: torch.Tensor, cotangent: np.ndarray) -> dict[str, dict[Any, np.ndarray]]:
            leaves = {index: leaf for index, leaf in call.leaves.items() if leaf.requires_grad}
            variables = native_variables(built, case, self._table)
            return _named_gradients(output, leaves, variables, weights.from_numpy(cotangent, output.device), case, self._table)

        return Tensors(
            is_tensor=lambda value: isinstance(value, torch.Tensor),
            to_numpy=weights.to_numpy,
            like=lambda array, tensor: weights.from_numpy(array, tensor.device).to(tensor.dtype),
            leaf=lambda tensor: tensor.requires_grad_(),
            gradients=gradients,
        )

    def _vjp(self, case: Case, device: torch.device, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """The gradients of the sum of cotangent * output: of the floating inputs, and of the parameters by canonical name."""
        cotangent = inputs.pop("cotangent")
        leaves = {name: value.requires_grad_() for name, value in inputs.items() if _is_floating(value)}
        built = self._built(case, device)
        if isinstance(module := matching.owner(built), torch.nn.Module):
            module.requires_grad_()
        output = next(leaf for leaf in matching.leaves(self._call(case, built, inputs)) if isinstance(leaf, torch.Tensor))
        variables = native_variables(module, matching.whole(case), self._table)
        found = _named_gradients(output, leaves, variables, cotangent, matching.whole(case), self._table)
        return found["inputs"] | {f"parameters.{name}": array for name, array in found["parameters"].items()}

    def _call(self, case: Case, built: Any, inputs: Mapping[str, Any]) -> Any:
        arguments = parameters.nest(inputs)
        matching.refuse_keep(built.forward if isinstance(built, torch.nn.Module) else built, arguments)
        mode = case.mode or getattr(self.port, "modes", ("eager",))[0]
        if matching.compiles_itself(built):
            arguments["compiled"] = mode == "compiled"
        elif mode == "compiled" and case.component not in _NO_GRAPH:
            # Sizes that changed between earlier cases would otherwise make this case's graph a dynamic one.
            torch.compiler.reset()
            built = getattr(self.port, "compiled", compiled)(built)
        return built(**arguments)

    def _built(self, case: Case, device: torch.device) -> Any:
        dtype = getattr(torch, case.dtype)
        built = self.port.components[case.component](case.config, dtype)
        if isinstance(module := matching.owner(built), torch.nn.Module):
            module.to(device, dtype).train(case.component in RANDOM)
            if case.parameters:
                weights.load(module, case.parameters, case.config, matching.whole(case).component, self._table)
        return built

    @staticmethod
    def describe() -> dict[str, Any]:
        """Version, devices and matmul precision, for `doctor`."""
        cuda = [f"cuda: {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return {
            "version": {"torch": str(torch.__version__)},
            "devices": ["cpu", *cuda],
            "precision": torch.get_float32_matmul_precision(),
        }


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda", "cuda-tf32"):
        raise ValueError(f"device must be one of cpu, cuda, cuda-tf32; got {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device {name} needs a CUDA device; torch sees none")
    return torch.device(name.removesuffix("-tf32"))


def _to_device(value: Any, device: torch.device) -> Any:
    return weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_numpy(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_to_numpy(item) for item in value)
    return weights.to_numpy(value) if isinstance(value, torch.Tensor) else value


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextlib.contextmanager
def _matmul_precision(device: str) -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device == "cuda-tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextlib.contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if missing := _NO_KERNEL.search(str(error)):
            raise Unsupported(missing[1] or missing[2]) from error
        raise


def _named_gradients(
    output: torch.Tensor,
    leaves: Mapping[Any, torch.Tensor],
    variables: Mapping[str, torch.Tensor],
    cotangent: torch.Tensor,
    case: Case,
    table: layout.Table,
) -> dict[str, dict[Any, np.ndarray]]:
    """The gradients of the sum of cotangent * output: `inputs` by the leaves' keys, `parameters` by canonical name."""
    # A table may name a view of a parameter, and only the parameter itself is part of the graph.
    bases = {name: tensor if tensor._base is None else tensor._base for name, tensor in variables.items()}
    found = _gradients(output, [*leaves.values(), *bases.values()], cotangent.to(output.dtype))
    native = {
        name: weights.to_numpy(gradient.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
        for (name, tensor), gradient in zip(variables.items(), found[len(leaves) :], strict=True)
    }
    inputs = dict(zip(leaves, map(weights.to_numpy, found), strict=False))
    return {"inputs": inputs, "parameters": canonical_gradients(native, case, table)}


def _gradients(output: torch.Tensor, sought: list[torch.Tensor], cotangent: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the sum of cotangent * output, contiguous; zeros where the output does not depend on a tensor."""
    active = [tensor for tensor in sought if tensor.requires_grad] if output.requires_grad else []
    found = dict(zip(map(id, active), torch.autograd.grad(output, active, cotangent, allow_unused=True), strict=True)) if active else {}
    gradients = (found.get(id(tensor)) for tensor in sought)
    return [
        torch.zeros_like(tensor, requires_grad=False) if gradient is None else gradient.contiguous()
        for tensor, gradient in zip(sought, gradients, strict=True)
    ]


@contextlib.contextmanager
def _hooked(recorder: Recorder) -> Iterator[None]:
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
