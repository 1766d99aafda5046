"""How the reference runs a case: which function of `reference_numpy` answers, and what it takes from the config."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

from ..case import Case, numpy_dtype
from . import statistics

__all__ = [
    "COMPONENTS", "DECODING", "DIFFERENTIABLE", "FORWARD", "SEARCHES", "TRAINING", "VJP", "answer", "forward_of", "model_of", "module_of",
    "named_outputs",
]  # fmt: skip

Settings = Callable[[TransformerConfig, np.dtype], dict[str, Any]]
Rows = dict[str, tuple[str, Settings]]


def _no_settings(config: TransformerConfig, dtype: np.dtype) -> dict[str, Any]:
    return {}


# component -> (module of reference_numpy, what its function takes from the config)
FORWARD: Rows = {
    "embedding": ("embedding", lambda config, dtype: {"scale": config.scale_embedding}),
    "token_positions": ("positional_encoding", _no_settings),
    "positional_encoding": ("positional_encoding", lambda config, dtype: {"width": config.model_width, "dtype": dtype}),
    "token_mask": ("mask", lambda config, dtype: {"padding_id": config.padding_id}),
    "padding_mask": ("mask", _no_settings),
    "causal_mask": ("mask", _no_settings),
    "combine_masks": ("mask", _no_settings),
    "softmax": ("softmax", _no_settings),
    "scaled_dot_product_attention": ("attention", _no_settings),
    "multi_head_attention": ("attention", lambda config, dtype: {"dropout_rate": config.attention_dropout_rate}),
    "activation": ("feed_forward", lambda config, dtype: {"name": config.activation}),
    "feed_forward": (
        "feed_forward", lambda config, dtype: {"activation_name": config.activation, "dropout_rate": config.hidden_dropout_rate},
    ),
    "layer_norm": ("normalization", lambda config, dtype: {"epsilon": config.epsilon}),
    "dropout": ("dropout", lambda config, dtype: {"rate": config.dropout_rate}),
    "encoder_layer": ("layers", _no_settings),
    "decoder_layer": ("layers", _no_settings),
    "encoder": ("stacks", _no_settings),
    "decoder": ("stacks", _no_settings),
    "logits": ("embedding", _no_settings),
    "transformer": ("transformer", _no_settings),
}  # fmt: skip
DECODING: Rows = {
    "decode_in_steps": ("cache", _no_settings),
    "penalise": ("sampling", _no_settings),
    "truncate": ("sampling", _no_settings),
    "draw": ("sampling", _no_settings),
    "greedy_search": ("decoding", _no_settings),
    "sample": ("decoding", _no_settings),
    "beam_search": ("decoding", _no_settings),
}
SEARCHES = ("greedy_search", "sample", "beam_search")  # their answers hang on choices
TRAINING: Rows = {
    "cross_entropy": ("loss", _no_settings),
    "training_loss": ("transformer", _no_settings),
    "adam": ("optimizer", _no_settings),
    "clip_global_norm": ("optimizer", _no_settings),
    "noam": ("schedule", lambda config, dtype: {"width": config.model_width, "dtype": dtype}),
    "initialise": ("parameters", lambda config, dtype: {"dtype": dtype}),
    "random_dropout": (statistics.__name__, lambda config, dtype: {"rate": config.dropout_rate}),
}
VJP = "_vjp"  # ends the name of the component that is the gradient of another
DIFFERENTIABLE = (
    "embedding", "softmax", "scaled_dot_product_attention", "multi_head_attention", "activation", "feed_forward", "layer_norm", "dropout",
    "encoder_layer", "decoder_layer", "encoder", "decoder", "logits", "transformer", "cross_entropy", "training_loss",
)  # fmt: skip
# every component in the order of the report's rows, each gradient after what it is the gradient of
COMPONENTS: Rows = {
    name: row
    for component, row in (FORWARD | DECODING | TRAINING).items()
    for name in (component, component + VJP)
    if name == component or component in DIFFERENTIABLE
}


def forward_of(component: str) -> str:
    """The component of which this one is the gradient; empty where it is none."""
    return component.removesuffix(VJP) if component.endswith(VJP) else ""


def model_of(component: str) -> str:
    """The component that has this one's parameters: of what runs the whole model, a loss or a search, the model."""
    return "transformer" if component in ("training_loss", "decode_in_steps", *SEARCHES) else component


def module_of(name: str) -> ModuleType:
    """The module of that name in `reference_numpy`; a name with dots is a whole one."""
    return importlib.import_module(name if "." in name else f"reference_numpy.{name}")


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """The reference's outputs for the case, in the case's dtype; of a component that draws random numbers their statistics.

    around: is entered while the reference computes.
    """
    module, settings = COMPONENTS[case.component]
    function = getattr(module_of(module), case.component)
    arguments = parameters.nest(case.inputs) | settings(case.config, numpy_dtype(case.dtype))
    accepted = inspect.signature(function).parameters
    if "parameters" in accepted:
        arguments.setdefault("parameters", parameters.nest(case.parameters))
    if "config" in accepted:
        arguments["config"] = case.config
    with around or contextlib.nullcontext():
        result = function(**arguments)
    return statistics.measured(case.component, case.inputs, named_outputs(result))


def named_outputs(result: Any) -> dict[str, Any]:
    """`output`, and `weights` where a component returns a pair; what a mapping holds by its names, joined by dots where it is nested.

    A NumPy scalar is an array without axes.
    """
    if isinstance(result, Mapping):
        outputs = parameters.flatten(result)
    else:
        outputs = dict(zip(("output", "weights"), result, strict=True)) if isinstance(result, tuple) else {"output": result}
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in outputs.items()}
