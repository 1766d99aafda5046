"""What a side can be asked, in any framework."""

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
# Exact in float32: frameworks round such constants in more than one place, in float64 too.
LEARNING_RATE, DECAY, BETAS, EPSILON = 2.0**-7, 2.0**-7, (0.875, 1 - 2.0**-10), 2.0**-27
Arrays = dict[str, np.ndarray]
Translation = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass
class Layer:
    """A layer by its path. hyperparameters: its own, as `kinds.hyperparameters` names them. scalars: every number and text among its
    attributes.
    """

    path: str
    kind: str
    type: str
    hyperparameters: dict[str, Any]
    scalars: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Variable:
    """A parameter, or a buffer that is part of the model's state.

    name: the own name; a part of a tensor that holds several says which: `in_proj_weight[query]`. role: what it is to its layer, such as
    kernel; empty if the layer is of no known kind. axes: of the native tensor, by named letters. sizes: of letters that the shape does
    not show. required: whether the other side must have it. canonical: its name in a checkpoint of ours.
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
    """A call of a layer: the arrays that it was given and gave, and their tags (`axes.Tag`) if the side follows its axes."""

    path: str
    index: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    input_axes: list[Any]
    output_axes: list[Any]


class Model(abc.ABC):
    """One side's model. Arrays go in and come out in the side's own axes, floats in the dtype of the question.

    framework: torch, keras, flax or numpy. convention: where the channels of its spatial layers stand, "first" or "last"; empty if it
    has none. defaults: inputs that fit it, declared or as arrays. known: the arguments, and whether each is required, if they are not
    those of its call. translation: what makes its own arguments of the reference's inputs. canonical: what gives its variables canonical
    names.
    """

    framework: str
    convention = ""
    notes: tuple[str, ...] = ()
    defaults: Sequence[str] | Mapping[str, np.ndarray] = ()
    known: Mapping[str, bool] | None = None
    translation: Translation | None = None
    canonical: Callable[[list[Variable]], list[Variable]] | None = None
    whole_attention = True  # or attention is the layers that it is made of

    def own(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the inputs, which may be native tensors, by the names of the model's own arguments."""
        return self.translation(inputs) if self.translation else inputs

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        """Sets the variables in float32 from canonical ones, as the table of a port says."""
        raise NotImplementedError

    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """Returns the class, the framework's versions and the arguments of a call: (name, whether it has no default)."""

    def build(self, inputs: Arrays) -> None:  # noqa: B027
        """Finishes the model in float32, which may learn its shapes from inputs."""

    def widen(self, inputs: Arrays) -> None:  # noqa: B027
        """Makes the float64 model of the one that `build` has finished. Raises what the model raises if it cannot be made."""

    @abc.abstractmethod
    def layers(self) -> list[Layer]:
        """Returns every layer, in the order of declaration."""

    @abc.abstractmethod
    def variables(self) -> list[Variable]:
        """Returns every floating variable."""

    def tied(self) -> list[list[str]]:
        """Returns the names of each variable that has several."""
        return []

    @abc.abstractmethod
    def values(self) -> Arrays:
        """Returns the values of the variables, in float32."""

    @abc.abstractmethod
    def load(self, values: Arrays) -> None:
        """Sets variables, in both dtypes."""

    @abc.abstractmethod
    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        """Returns every call of a layer in one evaluation, in the order in which they end; the last is the whole model, at the path ""."""

    @abc.abstractmethod
    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        """Returns what layers give for other arrays, by path and number of the call; a text if a layer cannot be called so."""

    def activate(self, path: str, arrays: list[np.ndarray], dtype: str) -> list[np.ndarray] | None:
        """Returns what the activation within a layer makes of other arrays; None if it has none that can be called alone."""
        return None

    @abc.abstractmethod
    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        """Returns the gradients of the sum of cotangent * output in evaluation: of the inputs, by `input NAME`, and of the variables."""

    @abc.abstractmethod
    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        """Returns the variables after one step of training on that sum, and what is random in it; empty if it can be compared."""

    @abc.abstractmethod
    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        """Returns what is to be timed, in float32: `forward` or `step`."""


def narrow(calls: Sequence[LayerCall]) -> str:
    """Returns why calls in float64 do not compute so; empty if they do."""
    outputs = [array for array in calls[-1].outputs if array.dtype.kind == "f"]
    if all(array.dtype == np.float64 for array in outputs):
        return ""
    return "it has layers whose dtype is fixed, and gives " + ", ".join(sorted({str(array.dtype) for array in outputs}))


def is_floating(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns floats in the dtype, others unchanged."""
    return array.astype(dtype) if array.dtype.kind == "f" else array


def guarded(function: Callable[[], Any]) -> Any:
    """Returns what the function gives, or a text that says why it fails."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def wrapped(built: Any, make: Callable[[], Any], text: str, call: str = "") -> Model:
    """Returns the model that was built as one of its framework: a module, a method of one, or a partial function of one. call: the method
    that is called, empty for the model itself.

    Raises ValueError if it is of no framework.
    """
    if isinstance(built, functools.partial) and built.args and (framework_of(built.args[0]) or inspect.ismethod(built.args[0])):
        return wrapped(built.args[0], lambda: make().args[0], text, call)
    if inspect.ismethod(built):
        return wrapped(built.__self__, lambda: make().__self__, text, built.__name__)
    framework = framework_of(built)
    if not framework:
        required = "a torch.nn.Module, a Keras layer or model, an nnx.Module or a linen Module"
        raise ValueError(f"{text} must build {required}; it built {type(built).__module__}.{type(built).__name__}")
    module = imported(BACKENDS[framework], f"{__package__}.{framework}_model")
    kind = getattr(module, f"{framework.capitalize()}Model")
    model: Model = kind(make, built, call) if framework in ("torch", "keras") else kind(built, call or "__call__")
    return model
