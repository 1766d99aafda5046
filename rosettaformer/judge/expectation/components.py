"""Runs cases on the reference: the function and the arguments of each component."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, arithmetic, parameters

from ..case import Case, numpy_dtype
from ..components import DECLARED, Component
from ..stored import nested
from . import calls, statistics
from .patching import module_of, signature

Rows = dict[str, Component]

DROPOUT_RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate")  # of the config
VJP = "_vjp"  # the suffix that names the gradient of a component


def _of(*kinds: str) -> dict[str, Component]:
    """Returns the components of these kinds."""
    return {name: one for name, one in DECLARED.items() if one.kind in kinds}


FORWARD: Rows = _of("part", "layout")
DECODING: Rows = _of("decoding", "search")
TRAINING: Rows = _of("training")
MESHES: Rows = _of("mesh")
FILES: Rows = _of("file")
LAYOUTS = tuple(_of("layout"))
SEARCHES = tuple(_of("search"))
DIFFERENTIABLE = tuple(name for name, one in DECLARED.items() if one.differentiable)
# every component in the order of the report's rows, each gradient after its forward component
ASKED: Rows = {
    name: one for component, one in DECLARED.items() for name in (component, component + VJP) if name == component or one.differentiable
}
COMPONENTS: Rows = {name: one for name, one in ASKED.items() if name not in (*MESHES, *FILES)}
# the components that the four packages define
OWN: Rows = {name: one for name, one in ASKED.items() if one.own}
# the components, other than the model itself, that run a whole model
WHOLE = tuple(name for name, one in DECLARED.items() if one.model == "transformer" and name in COMPONENTS)


def forward_of(component: str) -> str:
    """Returns the component that this one is the gradient of; empty if it is not a gradient."""
    return component.removesuffix(VJP) if component.endswith(VJP) else ""


def model_of(component: str) -> str:
    """Returns the component whose parameters this one takes, such as the whole model."""
    return (component in DECLARED and DECLARED[component].model) or component


def whole_model(config: TransformerConfig) -> str:
    """Returns the component for a model of this config: the outermost that its heads allow."""
    if config.decoder_layers:
        return "transformer"
    if config.classes:
        return "classify"
    return "masked_language_logits" if config.masked_language_head else "pool" if config.pooler else "encode"


def is_layout(component: str) -> bool:
    """Whether the component is a layout or of files, asked only of ports that have it."""
    return (forward_of(component) or component) in (*LAYOUTS, *FILES)


def without_other_layouts(cases: Sequence[Case], covered: Collection[str]) -> list[Case]:
    """Returns the cases without uncovered layouts, or all cases if nothing else would remain."""
    left = [case for case in cases if case.component in covered or not is_layout(case.component)]
    return left or list(cases)


def config_arguments(component: str, config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """Returns the arguments of the component's function from a case's config and dtype."""
    fields = ASKED[component].arguments.items()
    return {argument: numpy_dtype(dtype) if field == "dtype" else getattr(config, field) for argument, field in fields}


def takes_config(component: str) -> bool:
    """Whether the component's function takes the whole config, as those with layers do."""
    return "config" in signature_of(component).parameters


def signature_of(component: str) -> inspect.Signature:
    """Returns the signature of the component's function."""
    return signature(function_of(component))


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns the reference's outputs for the case, in its dtype, or statistics for a random
    component.

    around: a context manager to enter while the reference computes.
    """
    function = function_of(case.component)
    arguments = parameters.nest(case.inputs) | config_arguments(case.component, case.config, case.dtype)
    accepted = signature(function).parameters
    if "parameters" in accepted:
        arguments.setdefault("parameters", nested(case.parameters))
    if "config" in accepted:
        arguments["config"] = case.config
    with around or contextlib.nullcontext():
        result = function(**arguments)
    outputs = named_outputs(result)
    for name in (f"parameters.{kernel}" for kernel in case.shared):
        if name in outputs:
            outputs[name] = _of_shared(outputs[name])
    return case.part(statistics.measured(case.component, case.inputs, outputs))


def _of_shared(gradient: np.ndarray) -> np.ndarray:
    """Returns the gradient `i k` of a kernel shared by all heads, from that of all, `d h k`."""
    slices = gradient.reshape(gradient.shape[1], -1, *gradient.shape[1:])
    blocks_hik = np.stack([slices[head, :, head] for head in range(len(slices))])
    return arithmetic.unbroadcast(blocks_hik, blocks_hik.shape[1:])


def function_of(component: str) -> Callable[..., Any]:
    """Returns the reference's function for a component, with a case's inputs as arguments."""
    return calls.of_case(component, getattr(module_of(ASKED[component].module), component))


def named_outputs(result: Any) -> dict[str, Any]:
    """Returns `output`, and `weights` for a pair; for a mapping its values, with nested names
    joined by dots.

    NumPy scalars become arrays without axes.
    """
    if isinstance(result, Mapping):
        outputs = parameters.flatten(result)
    else:
        outputs = dict(zip(("output", "weights"), result, strict=True)) if isinstance(result, tuple) else {"output": result}
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in outputs.items()}
