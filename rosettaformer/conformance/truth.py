"""How a case is put to the truth: which function of `reference_numpy` answers, and what it takes from the config."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

from .case import Case, numpy_dtype

__all__ = ["COMPONENTS", "answer", "named_outputs"]

Settings = Callable[[TransformerConfig, np.dtype], dict[str, Any]]


def _no_settings(config: TransformerConfig, dtype: np.dtype) -> dict[str, Any]:
    return {}


# component -> (module of reference_numpy, what its function takes from the config); the order of the report's rows
COMPONENTS: dict[str, tuple[str, Settings]] = {
    "embedding": ("embedding", lambda config, dtype: {"scale": config.scale_embedding}),
    "token_positions": ("positional_encoding", _no_settings),
    "positional_encoding": ("positional_encoding", lambda config, dtype: {"width": config.model_width, "dtype": dtype}),
    "token_mask": ("mask", lambda config, dtype: {"padding_id": config.padding_id}),
    "padding_mask": ("mask", _no_settings),
    "causal_mask": ("mask", _no_settings),
    "combine_masks": ("mask", _no_settings),
    "softmax": ("softmax", _no_settings),
    "scaled_dot_product_attention": ("attention", _no_settings),
    "multi_head_attention": ("attention", _no_settings),
    "activation": ("feed_forward", lambda config, dtype: {"name": config.activation}),
    "feed_forward": ("feed_forward", lambda config, dtype: {"activation_name": config.activation}),
    "layer_norm": ("normalization", lambda config, dtype: {"epsilon": config.epsilon}),
    "dropout": ("dropout", lambda config, dtype: {"rate": config.dropout_rate}),
    "encoder_layer": ("layers", _no_settings),
    "decoder_layer": ("layers", _no_settings),
    "encoder": ("transformer", _no_settings),
    "decoder": ("transformer", _no_settings),
    "logits": ("embedding", _no_settings),
    "transformer": ("transformer", _no_settings),
}


def answer(case: Case) -> dict[str, np.ndarray]:
    """The truth's outputs for the case, in the case's dtype."""
    module, settings = COMPONENTS[case.component]
    function = getattr(importlib.import_module(f"reference_numpy.{module}"), case.component)
    arguments = dict(case.inputs) | settings(case.config, numpy_dtype(case.dtype))
    accepted = inspect.signature(function).parameters
    if "parameters" in accepted:
        arguments["parameters"] = parameters.nest(case.parameters)
    if "config" in accepted:
        arguments["config"] = case.config
    return named_outputs(function(**arguments))


def named_outputs(result: Any) -> dict[str, Any]:
    """`output`, and `weights` where a component returns a pair."""
    return dict(zip(("output", "weights"), result, strict=True)) if isinstance(result, tuple) else {"output": result}
