"""A side in PyTorch."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

from impl_torch import weights
from impl_torch.weights import from_numpy, to_numpy
from reference_numpy import TransformerConfig, layout

from ...common.modules import arguments
from ...common.modules import torch as face
from ...common.modules.recording import ModuleCall
from ...common.modules.words import IN_PROJECTION
from .. import kinds
from .base import BETAS, DECAY, EPSILON, LEARNING_RATE, Arrays, Layer, LayerCall, Model, Variable, rounded
from .layer_calls import Record, described, layers, tensors
from .torch_axes import Followed

DRAWS = 8  # losses compared to find out whether random numbers matter in training


class TorchModel(Model):
    """A `torch.nn.Module`. axes: the declared axes of each input on this side.

    It is built again for every dtype and step: in a deep copy, closures would still use the layers
    of the original.
    """

    framework = "torch"

    def __init__(self, make: Callable[[], torch.nn.Module], first: torch.nn.Module, call: str = "") -> None:
        self._modules = {"float32": first.to(torch.float32).eval()}
        self._make, self._call = make, call
        self._records: dict[str, Record] = {}
        self.axes: Mapping[str, Sequence[str]] = {}
        spatial = [layer for layer in self.layers() if layer.kind in kinds.SPATIAL]
        self.convention = "first" if spatial else ""

    def about(self) -> dict[str, Any]:
        module = self._modules["float32"]
        found = [*arguments.names(self._function(module)).items()]
        return {"class": type(module).__name__, "versions": {"torch": str(torch.__version__)}, "arguments": found}

    def build(self, inputs: Arrays) -> None:
        if any(isinstance(value, torch.nn.parameter.UninitializedParameter) for value in self._modules["float32"].parameters()):
            with torch.no_grad():
                self._apply("float32", inputs)

    def widen(self, inputs: Arrays) -> None:
        self._modules["float64"] = self._again("float32", inputs).to(torch.float64)

    @torch.no_grad()
    def _again(self, dtype: str, inputs: Arrays) -> torch.nn.Module:
        """Returns another module with the values of the one in that dtype."""
        before, module = self._modules[dtype], self._make()
        if module is before:
            return copy.deepcopy(before)
        module = module.to(getattr(torch, dtype)).eval()
        if any(isinstance(value, torch.nn.parameter.UninitializedParameter) for value in module.parameters()):
            self._applied(module, self._inputs(inputs, dtype))
        values = dict(face.variables(before))
        for name, tensor in face.variables(module):
            tensor.copy_(values[name])
        return module

    def _function(self, module: torch.nn.Module) -> Callable[..., Any]:
        return getattr(module, self._call) if self._call else module.forward

    def _paths(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
        yield from layers("torch", face.paths(module))

    def layers(self) -> list[Layer]:
        return described("torch", self._paths(self._modules["float32"]))

    def variables(self) -> list[Variable]:
        found = []
        for path, part, kind in self._paths(self._modules["float32"]):
            weight: Any = getattr(part, "weight", None)
            rows = kinds.roles("torch", kind, part, weight.ndim if face.is_tensor(weight) else 0)
            for name, tensor, trainable in _owned(part, recurse=kind == "attention"):
                sizes: dict[str, Any] = (
                    {"h": part.num_heads} if kind == "attention" else {"i": part.groups} if "convolution" in kind else {}
                )
                full = f"{path}.{name}".lstrip(".")
                for own, view in _views(full, name, tensor):
                    role, axes = rows.get(own.removeprefix(f"{path}.") if path else own, ("", ""))
                    axes = axes if len(axes.split()) >= view.ndim or "(" in axes else ""
                    required, trained = trainable or bool(role), trainable and tensor.requires_grad
                    found.append(Variable(own, path, role, axes, tuple(view.shape), trained, sizes, required))
        return found

    def _tensors(self, dtype: str) -> dict[str, torch.Tensor]:
        """Returns the native tensors by name; parts of a tensor are views."""
        module = self._modules[dtype]
        found: dict[str, torch.Tensor] = {}
        for path, part, kind in self._paths(module):
            for name, tensor, _ in _owned(part, recurse=kind == "attention"):
                full = f"{path}.{name}".lstrip(".")
                found |= dict(_views(full, name, tensor))
        return found

    def tied(self) -> list[list[str]]:
        names: dict[tuple[Any, ...], list[str]] = {}
        for name, tensor in self._tensors("float32").items():
            if tensor.numel():
                names.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), []).append(name)
        return [several for several in names.values() if len(several) > 1]

    def values(self) -> Arrays:
        return {name: to_numpy(tensor.detach()) for name, tensor in self._tensors("float32").items()}

    @torch.no_grad()
    def load(self, values: Arrays) -> None:
        for dtype in self._modules:
            native = self._tensors(dtype)
            for name, array in values.items():
                native[name].copy_(from_numpy(np.asarray(array, order="C")).to(native[name].dtype))

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        weights.load(self._modules["float32"], values, config, component, table)

    def _inputs(self, inputs: Arrays, dtype: str) -> dict[str, torch.Tensor]:
        return {name: from_numpy(np.asarray(rounded(array, dtype), order="C")) for name, array in inputs.items()}

    def _apply(self, dtype: str, inputs: Arrays) -> Any:
        return self._applied(self._modules[dtype], self._inputs(inputs, dtype))

    def _applied(self, module: torch.nn.Module, given: Mapping[str, torch.Tensor], training: bool = False) -> Any:
        given = arguments.bound(self._function(module), self.own(given), training)
        return (getattr(module, self._call) if self._call else module)(**given)

    @torch.no_grad()
    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        module, given = self._modules[dtype], self._inputs(inputs, dtype)
        followed = Followed([(tensor, self.axes.get(name, ())) for name, tensor in given.items()])
        record = self._records[dtype] = Record(face, followed.of)
        rows = [*self._paths(module)]
        spatial = {path: "convolution" in kind for path, _, kind in rows if kind in (*kinds.SPATIAL, "batch_norm", "group_norm")}

        def enter(call: ModuleCall) -> None:
            if call.path in spatial:
                followed.assume(tensors(face, (call.args, call.kwargs))[0], spatial[call.path])
            record.enter(call)

        with face.calls([(path, part) for path, part, _ in rows], enter, record.leave), followed:
            output = self._applied(module, given)
        record.whole(given, output)
        return record.calls

    @torch.no_grad()
    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        return [self._records[dtype].forced(*item) for item in wanted]

    def _floating(self, module: torch.nn.Module, given: Any, training: bool) -> list[torch.Tensor]:
        """Returns the floating-point outputs."""
        return [tensor for tensor in tensors(face, self._applied(module, given, training)) if tensor.is_floating_point()]

    def _loss(self, module: torch.nn.Module, given: Any, cotangents: Sequence[torch.Tensor], training: bool) -> torch.Tensor:
        outputs = self._floating(module, given, training)
        return sum(((cotangent * output).sum() for cotangent, output in zip(cotangents, outputs, strict=True)), torch.zeros(()))

    def _losses_again(self, given: Any, cotangents: Sequence[torch.Tensor], dtype: str, inputs: Arrays) -> list[torch.Tensor]:
        """Returns the loss of a copy in training mode; of several, if it draws random numbers, which may not matter each time."""
        state, losses = torch.get_rng_state(), list[torch.Tensor]()
        while not losses or (len(losses) < DRAWS and not torch.equal(state, torch.get_rng_state())):
            losses.append(self._loss(_without_dropout(self._again(dtype, inputs)).train(), given, cotangents, True).detach())
        return losses

    def _cotangents(self, cotangents: list[np.ndarray], dtype: str) -> list[torch.Tensor]:
        return [from_numpy(np.array(array)).to(getattr(torch, dtype)) for array in cotangents]

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        given = self._inputs(inputs, dtype)
        floating = {f"input {name}": tensor.requires_grad_() for name, tensor in given.items() if tensor.is_floating_point()}
        outputs = self._floating(self._modules[dtype], given, False)
        parameters = self._modules[dtype].named_parameters(remove_duplicate=False)
        sought = floating | {name: tensor for name, tensor in parameters if tensor.requires_grad}
        found = face.gradients(outputs, self._cotangents(cotangents, dtype), [*sought.values()])
        arrays: Arrays = {}
        for name, gradient in zip(sought, found, strict=True):
            arrays |= {own: to_numpy(view) for own, view in _views(name, name.rpartition(".")[2], gradient)}
        return arrays

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        given, own = self._inputs(inputs, dtype), self._cotangents(cotangents, dtype)
        before = self._modules[dtype]
        module = self._modules[dtype] = _without_dropout(self._again(dtype, inputs)).train()
        try:
            stepping = _optimizer(optimizer, module)
            with _no_dropout():  # without gradients, attention may use another kernel
                again = self._losses_again(given, own, dtype, inputs)
                loss = self._loss(module, given, own, True)
            random = "" if all(torch.equal(loss, other) for other in again) else "it is random in training mode"
            loss.backward()
            stepping.step()
            return {name: to_numpy(tensor.detach()) for name, tensor in self._tensors(dtype).items()}, random
        finally:
            self._modules[dtype] = before

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        given, own = self._inputs(inputs, "float32"), self._cotangents(cotangents, "float32")
        module = self._again("float32", inputs)
        own_arguments = arguments.bound(self._function(module), self.own(given), what == "step")
        function = getattr(module, self._call) if self._call else module
        function = torch.compile(function) if compiled else function
        if what == "forward":
            return lambda: torch.no_grad()(function)(**own_arguments)
        stepping = _optimizer("sgd", _without_dropout(module).train())

        def step() -> None:
            outputs = [tensor for tensor in tensors(face, function(**own_arguments)) if tensor.is_floating_point()]
            stepping.zero_grad()
            sum((one * output).sum() for one, output in zip(own, outputs, strict=True)).backward()  # type: ignore[union-attr]
            stepping.step()

        return step


def _owned(part: torch.nn.Module, recurse: bool) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yields floating-point variables: name, tensor, whether it is a parameter.

    Non-persistent buffers are constants.
    """
    yield from ((name, tensor, True) for name, tensor in part.named_parameters(recurse=recurse))
    buffers = {name: tensor for name, tensor in part.named_buffers(recurse=recurse) if tensor.is_floating_point()}
    kept = part.state_dict() if buffers else {}
    yield from ((name, tensor, False) for name, tensor in buffers.items() if name in kept)


def _views(full: str, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if name in ("in_proj_weight", "in_proj_bias"):
        yield from ((f"{full}[{part}]", view) for part, view in zip(IN_PROJECTION, tensor.chunk(3), strict=True))
    else:
        yield full, tensor


def _without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    part: Any
    for part in module.modules():
        if kinds.kind_of("torch", part) == "dropout":
            part.p = 0.0
        if kinds.kind_of("torch", part) == "attention":
            part.dropout = 0.0
    return module


@contextlib.contextmanager
def _no_dropout() -> Iterator[None]:
    """Disables dropout in torch.nn.functional."""
    attend = torch.nn.functional.scaled_dot_product_attention

    def attended(*args: Any, **kwargs: Any) -> Any:
        return attend(*args[:4], *(0.0, *args[5:]) * (len(args) > 4), **kwargs | dict.fromkeys({"dropout_p"} & {*kwargs}, 0.0))

    with mock.patch.multiple(torch.nn.functional, dropout=lambda input, *args, **kwargs: input, scaled_dot_product_attention=attended):
        yield


def _optimizer(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE)
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
