"""The interface of a side's model, in any framework."""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout

from ...common.backends import imported
from ...common.modules import BACKENDS, framework_of

DTYPES = ("float32", "float64")
# Exact in float32, since frameworks round these constants in several places, even in float64.
LEARNING_RATE, DECAY, BETAS, EPSILON = 2.0**-7, 2.0**-7, (0.875, 1 - 2.0**-10), 2.0**-27
Arrays = dict[str, np.ndarray]
Translation = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass
class Layer:
    """A layer.

    hyperparameters: see `kinds.hyperparameters`. scalars: numbers and strings in its attributes.
    """

    path: str
    kind: str
    type: str
    hyperparameters: dict[str, Any]
    scalars: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Variable:
    """A parameter, or a buffer in the model's state.

    name: native name; parts of a fused tensor have an index: `in_proj_weight[query]`. role: role in
    its layer, such as kernel; empty in a layer of unknown kind. axes: letters of the native axes.
    sizes: sizes of letters that the shape does not determine. required: whether the other side must
    have it. canonical: name in a canonical checkpoint.
    """

    name: str
    layer: str
    role: str
    axes: str
    shape: tuple[int, ...]
    trainable: bool
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    required: bool = True
    canonical: str = ""


@dataclasses.dataclass
class LayerCall:
    """A call of a layer: inputs, outputs, and their tags (`axes.Tag`) if the side traces axes."""

    path: str
    index: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    input_axes: list[Any]
    output_axes: list[Any]


class Model(abc.ABC):
    """The model of one side. Arrays have the side's own axis order, and floats the requested dtype.

    framework: torch, keras, flax, onnx or numpy. convention: "first" or "last", the channels of
    spatial layers; empty without spatial layers. defaults: default inputs, declared or as arrays.
    known: the arguments and whether each is required, if not those of the call. translation:
    converts the reference's inputs to the model's arguments. canonical: gives variables canonical
    names.
    """

    framework: str
    convention = ""
    notes: tuple[str, ...] = ()
    defaults: Sequence[str] | Mapping[str, np.ndarray] = ()
    known: Mapping[str, bool] | None = None
    translation: Translation | None = None
    canonical: Callable[[list[Variable]], list[Variable]] | None = None
    whole_attention = True  # False: attention counts as the layers inside it

    def own(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the inputs by the model's own argument names."""
        return self.translation(inputs) if self.translation else inputs

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        """Loads canonical parameters in float32, using a port's table of weights."""
        raise NotImplementedError

    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """Returns the class, the versions, and the arguments as (name, whether it is required)."""

    def build(self, inputs: Arrays) -> None:  # noqa: B027
        """Builds the float32 model, whose shapes may depend on the inputs."""

    def widen(self, inputs: Arrays) -> None:  # noqa: B027
        """Makes a float64 copy of the model that `build` finished. Raises any error of the model."""

    @abc.abstractmethod
    def layers(self) -> list[Layer]:
        """Returns every layer, in declaration order."""

    @abc.abstractmethod
    def variables(self) -> list[Variable]:
        """Returns every floating-point variable."""

    def tied(self) -> list[list[str]]:
        """Returns the names of each tied variable."""
        return []

    @abc.abstractmethod
    def values(self) -> Arrays:
        """Returns the values of the variables, in float32."""

    @abc.abstractmethod
    def load(self, values: Arrays) -> None:
        """Sets variables, in both dtypes."""

    @abc.abstractmethod
    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        """Runs the model and returns the calls of all layers in the order in which they end; the
        model itself, "", is last.
        """

    @abc.abstractmethod
    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        """Runs layers on other inputs, by path and call number; an error becomes a string."""

    def activate(self, path: str, arrays: list[np.ndarray], dtype: str) -> list[np.ndarray] | None:
        """Applies the activation of a layer to arrays; None if it cannot be called separately."""
        return None

    @abc.abstractmethod
    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        """Returns the gradients of sum(cotangent * output): `input NAME`, and variables."""

    @abc.abstractmethod
    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        """Returns the variables after one training step, and a message if it is random."""

    @abc.abstractmethod
    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        """Returns the call to time, in float32. what: `forward` or `step`."""


def narrow(calls: Sequence[LayerCall]) -> str:
    """Returns the reason why outputs are not float64; empty if they are."""
    outputs = [array for array in calls[-1].outputs if array.dtype.kind == "f"]
    if all(array.dtype == np.float64 for array in outputs):
        return ""
    return "some layers have a fixed dtype; the outputs are " + ", ".join(sorted({str(array.dtype) for array in outputs}))


def is_floating(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns floats in the dtype, other arrays unchanged."""
    return array.astype(dtype) if array.dtype.kind == "f" else array


def guarded(function: Callable[[], Any]) -> Any:
    """Returns the result of the function, or its error as a string."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def wrapped(built: Any, make: Callable[[], Any], text: str, call: str = "") -> Model:
    """Wraps a module, a method of a module, or a partial of either.

    call: the method to call; empty for the module.

    Raises ValueError on any other object.
    """
    if isinstance(built, functools.partial) and built.args and (framework_of(built.args[0]) or inspect.ismethod(built.args[0])):
        return wrapped(built.args[0], lambda: make().args[0], text, call)
    if inspect.ismethod(built):
        return wrapped(built.__self__, lambda: make().__self__, text, built.__name__)
    framework = framework_of(built)
    if not framework:
        required = "a torch.nn.Module, a Keras layer or model, an nnx.Module or a linen Module"
        raise ValueError(f"{text} must build {required}; got {type(built).__module__}.{type(built).__name__}")
    module = imported(BACKENDS[framework], f"{__package__}.{framework}_model")
    kind = getattr(module, f"{framework.capitalize()}Model")
    model: Model = kind(make, built, call) if framework in ("torch", "keras") else kind(built, call or "__call__")
    return model
