"""Runs a component of the port on a mesh for the judge.

Whole inputs go in, whole outputs and gradients come out, the same in every process.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig
from reference_numpy.parameters import flatten, nest
from reference_numpy.sharding import Mesh

from .. import weights
from ..mask import token_mask
from ..transformer import Transformer
from ..values import Text
from .lengths import at_length, follow, longest
from .parts import gathered
from .sharding import Placed, training_loss

__all__ = ["answer"]

LOSSES = ("training_loss", "classification_loss")
# methods of a whole model
METHODS = ("pool", "classify", "classification_loss", "masked_language_logits", "states")
# Whole models that decode on one device, like `decoding.Searcher`.
ELSEWHERE = ("decode_in_steps", "greedy_search", "sample", "beam_search")
VJP = "_vjp"
Build = Callable[..., Callable[..., Any]]
Inputs = Mapping[str, Any]  # arrays or tensors, numbers, flags and names


class Case(Protocol):
    """The fields of a judge's case that are used here."""

    component: str
    config: TransformerConfig
    inputs: Inputs
    parameters: Mapping[str, np.ndarray]
    dtype: str
    device: str
    mesh: Mesh


def answer(case: Case, build: Build | None) -> dict[str, np.ndarray]:
    """Returns the outputs of a component with parameters; for `_vjp`, the gradients of every
    floating input and every parameter.

    build: makes the component from a config and a dtype; None if the port has no such component.
    Raises ValueError as `sharding.Placed` does, and NotImplementedError for components that the
    port lacks, that have no parameters, or that decode.
    """
    component = case.component.removesuffix(VJP)
    if build is None or component in ELSEWHERE or not case.parameters:
        raise NotImplementedError(f"on_mesh does not support {case.component}")
    asked = _Asked(case, component, build)
    return asked.outputs() if component == case.component else asked.gradients()


class _Asked:
    """A component on its mesh, and this process's rows of its inputs."""

    def __init__(self, case: Case, component: str, build: Build) -> None:
        dtype, whole_model = getattr(torch, case.dtype), component in (*LOSSES, *METHODS)
        device = torch.device(case.device)
        given = {
            name: weights.from_numpy(x, device) if isinstance(x, np.ndarray) else x
            for name, x in flatten(case.inputs).items()
        }
        with torch.device("meta"):
            function = build(_of_all_rows(case.config, given), dtype)
        module = _owner(function).to(dtype).eval()
        name = "transformer" if whole_model else component
        method = component if component in METHODS else ""
        whole = component not in LOSSES
        self.placed = Placed(module, case.config, case.mesh, device, name, whole, method)
        for name, part in self.placed.parts().items():
            self.placed.write(name, part, case.parameters[name])
        self.component = component
        self.function = self.placed.summed(_function(component, function, module))
        if isinstance(module, Transformer):
            source, target = _read(component, given)
            follow(module, source, target)
        axes = {name: _axis(name, x) for name, x in given.items() if isinstance(x, Tensor)}
        sizes = {name: given[name].shape[axis] for name, axis in axes.items() if axis is not None}
        self.number = max(sizes.values())
        # Where other inputs have more rows, an axis of size 1 is shared by all rows.
        self.axes = {name: axes[name] or 0 for name, size in sizes.items() if size == self.number}
        if component in LOSSES and given.get("total") is None:
            given["total"] = _count(case.config.padding_id, given)
        self.rows, self.counts = self.placed.computed(range(self.number))
        self.inputs = {name: self._own(name, x) for name, x in given.items()}

    def outputs(self) -> dict[str, np.ndarray]:
        """Returns the component's outputs."""
        if self.component == "states":  # calls parts of layers, which then gather nothing
            self.placed.unshard()
        with torch.no_grad():
            found = _named(self.function(**nest(self.inputs)))
        if self.component in LOSSES:
            return {name: weights.to_numpy(self._sum(x)) for name, x in found.items()}
        return {name: self._gathered(_axis(name, x), x) for name, x in found.items()}

    def gradients(self) -> dict[str, np.ndarray]:
        """Returns the gradients of the sum of cotangent * output."""
        cotangent = self.inputs.pop("cotangent")
        tensors = {name: x for name, x in self.inputs.items() if isinstance(x, Tensor)}
        sought = {name: x.requires_grad_() for name, x in tensors.items() if x.is_floating_point()}
        output, *_ = _named(self.function(**nest(self.inputs))).values()
        output.backward(cotangent if self.counts else torch.zeros_like(cotangent))
        found = {}
        for name, x in sought.items():
            gradient = torch.zeros_like(x) if x.grad is None else x.grad
            if name in self.axes:
                found[name] = self._gathered(self.axes[name], gradient)
            else:
                found[name] = weights.to_numpy(self._sum(gradient))
        own = self.placed.gradients().items()
        return found | {f"parameters.{name}": self.placed.read(name, part) for name, part in own}

    def _own(self, name: str, value: Any) -> Any:
        """Returns this process's rows of an input; inputs shared by all rows stay whole."""
        if name not in self.axes:
            return value
        axis = self.axes[name]
        if not self.number:  # `DTensor` has no empty views: every process computes a row
            value = value.new_zeros((*value.shape[:axis], 1, *value.shape[axis + 1 :]))
        return value[(slice(None),) * axis + (self.rows,)]

    def _sum(self, own: Tensor) -> Tensor:
        """Sums the contributions of every process's rows."""
        return self.placed.sum(own if self.counts else torch.zeros_like(own))

    def _gathered(self, axis: int | None, own: Tensor) -> np.ndarray:
        """Gathers an array of all rows."""
        devices, axis = self.placed.devices["data"], axis or 0
        own = own.detach() if self.counts else own.detach().narrow(axis, 0, 0)
        return weights.to_numpy(gathered(own, axis, self.number, devices))


def _axis(name: str, value: Tensor) -> int | None:
    """Returns the row axis of an array: names end in their axes; unnamed arrays start with it."""
    letters = name.rpartition("_")[2]
    if len(letters) == value.ndim:
        return letters.index("b") if "b" in letters else None
    return 0 if value.ndim else None


def _named(result: Any) -> dict[str, Tensor]:
    """Returns the outputs of a component by name."""
    if isinstance(result, Mapping):
        return flatten(result)
    results = result if isinstance(result, tuple) else (result,)
    return dict(zip(("output", "weights"), results, strict=False))


def _owner(function: Any) -> nn.Module:
    """Returns the module behind a component: itself, a method's owner, or a first argument."""
    while not isinstance(function, nn.Module):
        function = function.args[0] if isinstance(function, partial) else function.__self__
    return function


def _function(component: str, function: Any, module: Any) -> Callable[..., Any]:
    """Returns the function of a component; methods are looked up on the current module."""
    if component == "training_loss":
        return partial(training_loss, module)
    if component in METHODS:
        return partial(function.func, getattr(module, component), *function.args[1:])
    return partial(_in_order, module) if function is module else function


def _of_all_rows(config: TransformerConfig, given: Inputs) -> TransformerConfig:
    """Returns the config with frequencies for the longest row, if positions are an input."""
    position = next((x for name, x in given.items() if name.startswith("position_b")), None)
    return config if position is None else at_length(config, longest(position))


def _read(component: str, given: Inputs) -> Iterator[Text | None]:
    """Yields the source and target texts that a Transformer reads."""
    for side, mask in (("source", "source_mask_bs"), ("target", "target_mask_bt")):
        ids = given.get(side)
        if side == "target" and component == "training_loss":
            ids = given["target"][:, :-1]
        yield None if ids is None else Text(ids, given.get(mask))


def _in_order(module: nn.Module, **inputs: Any) -> Any:
    """Calls a module with its first argument positional, as torch's parallel styles require."""
    first = next(iter(inspect.signature(module.forward).parameters))
    return module(inputs.pop(first), **inputs)


def _count(padding_id: int | None, given: Inputs) -> int:
    """Returns the number of counted labels of the whole batch, at least 1."""
    if "label_b" in given:
        return max(len(given["label_b"]), 1)
    return max(int(token_mask(given["target"][:, 1:], padding_id).sum()), 1)
