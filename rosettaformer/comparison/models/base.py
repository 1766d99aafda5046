"""What a side can be asked, whatever its framework."""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout

from ...conformance.ports.adapters.matching import leaves

__all__ = ["DTYPES", "EVALUATION", "FLAGS", "Arrays", "Called", "Layer", "Model", "Rounding", "Variable", "bound", "is_floating", "rounded"]

DTYPES = ("float32", "float64")
# an argument that says whether a call trains -> its value where it does
FLAGS = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}
EVALUATION = {name: not value for name, value in FLAGS.items()}
# Exact in float32: frameworks round such constants in more than one place, in float64 too.
LEARNING_RATE, DECAY, BETAS, EPSILON = 2.0**-7, 2.0**-7, (0.875, 1 - 2.0**-10), 2.0**-27
Arrays = dict[str, np.ndarray]
Translation = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass
class Layer:
    """A layer by its path. settings: its hyperparameters, as `kinds.settings` names them. parent: the path of the layer around it."""

    path: str
    kind: str
    type: str
    settings: dict[str, Any]


@dataclasses.dataclass
class Variable:
    """A parameter, or a buffer that is part of the model's state.

    name: the own name; a part of a tensor that holds several says which: `in_proj_weight[query]`. role: what it is to its layer, such as
    kernel; empty where the layer is of no known kind. axes: of the native tensor, by named letters. sizes: of letters that the shape does
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
class Called:
    """A call of a layer: the arrays that it was given and gave, and their tags (`axes.Tag`) where the side follows its axes."""

    path: str
    index: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    input_axes: list[Any]
    output_axes: list[Any]


class Model(abc.ABC):
    """One side's model. Arrays go in and come out in the side's own axes, floats in the dtype of the question.

    framework: torch, keras, flax or numpy. convention: where the channels of its spatial layers stand, "first" or "last"; empty where it
    has none. defaults: inputs that fit it, declared or as arrays. translation: what makes its own arguments of the reference's inputs.
    """

    framework: str
    convention = ""
    notes: tuple[str, ...] = ()
    defaults: Sequence[str] | Mapping[str, np.ndarray] = ()
    translation: Translation | None = None

    def own(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs, which may be native tensors, by the names of the model's own arguments."""
        return self.translation(inputs) if self.translation else inputs

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        """Sets the variables in float32 from canonical ones, as the table of a port says."""
        raise NotImplementedError

    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """The class, the framework's versions and the arguments of a call: (name, whether it has no default)."""

    @abc.abstractmethod
    def build(self, inputs: Arrays) -> None:
        """Finishes the model in float32, which may learn its shapes from inputs."""

    @abc.abstractmethod
    def widen(self, inputs: Arrays) -> None:
        """Makes what runs in float64 of what `build` has finished. Raises what the model raises where it cannot be made."""

    @abc.abstractmethod
    def layers(self) -> list[Layer]:
        """Every layer, in the order of declaration."""

    @abc.abstractmethod
    def variables(self) -> list[Variable]:
        """Every variable that floats."""

    @abc.abstractmethod
    def values(self) -> Arrays:
        """The values of the variables, in float32."""

    @abc.abstractmethod
    def load(self, values: Arrays) -> None:
        """Sets variables, in both dtypes."""

    @abc.abstractmethod
    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        """Every call of a layer in one evaluation, in the order in which they end; the last is the whole model, of the path ""."""

    @abc.abstractmethod
    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        """What layers give for other arrays: by path and number of the call; a text where a layer cannot be called so."""

    @abc.abstractmethod
    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        """Of the sum of cotangent * output in evaluation: of the inputs by `input NAME`, and of the variables."""

    @abc.abstractmethod
    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        """The variables after one step of training on that sum, and what is random in it: nothing where it can be compared."""

    @abc.abstractmethod
    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        """What is to be timed, in float32: `forward` or `step`."""


class Rounding:
    """Whether a model that is asked in float64 computes so."""

    @staticmethod
    def problem(calls: Sequence[Called]) -> str:
        outputs = [array for array in calls[-1].outputs if array.dtype.kind == "f"]
        if all(array.dtype == np.float64 for array in outputs):
            return ""
        return "it has layers whose dtype is fixed, and gives " + ", ".join(sorted({str(array.dtype) for array in outputs}))


def is_floating(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Floats in the dtype; others as they are."""
    return array.astype(dtype) if array.dtype.kind == "f" else array


def bound(function: Callable[..., Any], inputs: Mapping[str, Any], training: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: inputs by the names that it has, the others in their order in the places that are left.

    What says whether the call trains is given too. Raises ValueError where an input has no place, or an argument no input.
    """
    names = _parameters(function)
    flags = {name: FLAGS[name] == training for name in names if name in FLAGS}
    free = [name for name in names if name not in FLAGS and name not in inputs]
    placed = {name: value for name, value in inputs.items() if name in names}
    for name, value in inputs.items():
        if name in names:
            continue
        if not free:
            own = ", ".join(name for name in names if name not in FLAGS) or "none"
            raise ValueError(f"the model has no argument for the input {name}; its arguments are {own}")
        placed[free.pop(0)] = value
    optional = {name: None for name in free if names[name] and "None" in str(inspect.signature(function).parameters[name].annotation)}
    placed |= optional
    required = [name for name in free if names[name] and name not in optional]
    if required:
        raise ValueError(f"the model needs the arguments {', '.join(required)}; the inputs are {', '.join(inputs)}")
    return [], placed | flags


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The arguments by name, and whether each has no default."""
    signature = inspect.signature(function)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each.default is each.empty for name, each in signature.parameters.items() if each.kind in kinds and name != "self"}


def arguments(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    return [(name, required) for name, required in _parameters(function).items() if name not in FLAGS]


def exchanged(template: Any, arrays: Sequence[np.ndarray], is_tensor: Callable[[Any], bool], like: Callable[[Any, Any], Any]) -> Any:
    """The nest with other arrays for its tensors, in order. like: an array as a tensor like the other. Raises ValueError."""
    tensors = [leaf for leaf in leaves(template) if is_tensor(leaf)]
    if len(tensors) != len(arrays):
        raise ValueError(f"takes {len(tensors)} arrays; the other side's {len(arrays)}")
    waiting = iter(arrays)

    def fill(value: Any) -> Any:
        if not is_tensor(value):
            return value
        array = next(waiting)
        # Integers only: a mask of another shape often has another meaning, too.
        if array.dtype.kind in "iu" and [size for size in array.shape if size != 1] == [size for size in value.shape if size != 1]:
            array = array.reshape(tuple(value.shape))
        if tuple(array.shape) != tuple(value.shape):
            raise ValueError(f"takes {tuple(value.shape)}; the other side's input is {tuple(array.shape)}")
        return like(array, value)

    return rebuilt(template, fill)


def rebuilt(value: Any, function: Callable[[Any], Any]) -> Any:
    """The nest with every leaf mapped."""
    if isinstance(value, dict):
        return {name: rebuilt(item, function) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(rebuilt(item, function) for item in value)
    return function(value)


def tensors(value: Any, is_tensor: Callable[[Any], bool]) -> Iterator[Any]:
    """The tensors of a nest, in order; those of a dataclass by its fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Mapping)) and not is_tensor(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    yield from (leaf for leaf in leaves(value) if is_tensor(leaf))


def guarded(function: Callable[[], Any]) -> Any:
    """What the function gives, or why it fails as a text."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


partial = functools.partial
__all__ += ["BETAS", "DECAY", "EPSILON", "LEARNING_RATE", "arguments", "exchanged", "guarded", "partial", "rebuilt", "tensors"]
