"""How the reference runs a case: which function of `reference_numpy` answers, and which arguments the config gives."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, arithmetic, parameters

from ..case import Case, numpy_dtype
from ..stored import nested
from . import calls, layouts, statistics, training
from .patching import module_of

Rows = dict[str, tuple[str, dict[str, str]]]

DROPOUT_RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate")  # of the config

NORM = {"epsilon": "epsilon", "one_plus_scale": "norm_one_plus_scale", "cast_before_scale": "norm_cast_before_scale"}
# component -> (module of reference_numpy, the arguments of its function that are fields of the config, or the dtype)
FORWARD: Rows = {
    "embedding": ("embedding", {"scale": "scale_embedding", "round_scale": "round_embedding_scale"}),
    "segment_embedding": ("embedding", {}),
    "token_positions": ("positional_encoding", {"start": "position_start"}),
    "position_embedding": ("positional_encoding", {"offset": "position_offset"}),
    "positional_encoding": ("positional_encoding", {"width": "model_width", "dtype": "dtype", "layout": "sinusoid_layout"}),
    "rotary_embedding": ("rotary", {}),
    "token_mask": ("mask", {"padding_id": "padding_id"}),
    "padding_mask": ("mask", {}),
    "causal_mask": ("mask", {}),
    "window_mask": ("mask", {}),
    "combine_masks": ("mask", {}),
    "soft_cap": ("softmax", {}),
    "softmax": ("softmax", {}),
    "scaled_dot_product_attention": ("attention", {}),
    "multi_head_attention": ("attention", {"dropout_rate": "attention_dropout_rate"}),
    "self_attention": (layouts.__name__, {}),
    "activation": ("feed_forward", {"name": "activation"}),
    "feed_forward": ("feed_forward", {"activation_name": "activation", "dropout_rate": "hidden_dropout_rate"}),
    "layer_norm": ("normalization", NORM),
    "rms_norm": ("normalization", NORM),
    "dropout": ("dropout", {"rate": "dropout_rate"}),
    "self_attention_sublayer": (layouts.__name__, {}),
    "cross_attention_sublayer": (layouts.__name__, {}),
    "feed_forward_sublayer": (layouts.__name__, {}),
    "encoder_layer": ("layers", {}),
    "decoder_layer": ("layers", {}),
    "encoder": ("stacks", {}),
    "decoder": ("stacks", {}),
    "logits": ("embedding", {"scale": "logit_scale", "cap": "logit_cap"}),
    "token_encoder": (layouts.__name__, {}),
    "token_decoder": (layouts.__name__, {}),
    "pooler": ("heads", {"activation_name": "pooler_activation"}),
    "classifier": ("heads", {"dropout_rate": "classifier_dropout_rate"}),
    "masked_language_head": ("heads", {}),
    "transformer": ("transformer", {}),
    "pool": ("encoder_only", {}),
    "classify": ("encoder_only", {}),
    "masked_language_logits": ("encoder_only", {}),
    "states": ("states", {}),
}
# components of other layouts, divisions of a model into modules: only ports that have them are asked
LAYOUTS = tuple(component for component, (module, _) in FORWARD.items() if module == layouts.__name__)
DECODING: Rows = {
    "decode_in_steps": ("cache", {}),
    "penalise": ("sampling", {}),
    "truncate": ("sampling", {}),
    "draw": ("sampling", {}),
    "greedy_search": ("decoding", {}),
    "sample": ("decoding", {}),
    "beam_search": ("decoding", {}),
}
SEARCHES = ("greedy_search", "sample", "beam_search")  # their answers depend on choices
WHOLE = ("training_loss", "classification_loss", "pool", "classify", "masked_language_logits", "states", "decode_in_steps", *SEARCHES)
TRAINING: Rows = {
    "cross_entropy": ("loss", {}),
    "training_loss": ("transformer", {}),
    "classification_loss": ("encoder_only", {}),
    "adam": ("optimizer", {}),
    "clip_global_norm": ("optimizer", {}),
    "noam": ("schedule", {"width": "model_width", "dtype": "dtype"}),
    "initialise": ("parameters", {"dtype": "dtype"}),
    "random_dropout": (statistics.__name__, {"rate": "dropout_rate"}),
}
VJP = "_vjp"  # the suffix that names the gradient of a component
DIFFERENTIABLE = (
    "embedding", "segment_embedding", "position_embedding", "rotary_embedding", "soft_cap", "softmax", "scaled_dot_product_attention",
    "multi_head_attention", "activation", "feed_forward", "layer_norm", "rms_norm", "dropout", "encoder_layer", "decoder_layer", "encoder",
    "decoder", "logits", "pooler", "classifier", "masked_language_head", "transformer", "pool", "classify", "masked_language_logits",
    "cross_entropy", "training_loss", "classification_loss", *LAYOUTS,
)  # fmt: skip
# every component in the order of the report's rows, each gradient after its forward component
COMPONENTS: Rows = {
    name: row
    for component, row in (FORWARD | DECODING | TRAINING).items()
    for name in (component, component + VJP)
    if name == component or component in DIFFERENTIABLE
}


# what only a port on a mesh is asked besides: a run of training; a whole model's loss with its gradients, of a port of `load(folder, mesh)`
MESHES: Rows = {"training_steps": (training.__name__, {}), "training": (training.__name__, {})}
# what only an exported file is asked besides
FILES: Rows = {"mean": (training.__name__, {}), "unit_mean": (training.__name__, {})}
ASKED = COMPONENTS | MESHES | FILES
# those that the four packages define
OWN = {name: row for name, row in COMPONENTS.items() if row[0] != layouts.__name__}


def forward_of(component: str) -> str:
    """Returns the component whose gradient this one is; empty if it is not a gradient."""
    return component.removesuffix(VJP) if component.endswith(VJP) else ""


def model_of(component: str) -> str:
    """Returns the component whose parameters this one takes: the model, if it runs a whole model, a loss or a search."""
    return (
        "transformer" if component in (*WHOLE, *MESHES, *FILES) else "multi_head_attention" if component == "self_attention" else component
    )


def whole_model(config: TransformerConfig) -> str:
    """Returns the component that a model of this config is: the outermost that its heads allow."""
    if config.decoder_layers:
        return "transformer"
    if config.classes:
        return "classify"
    return "masked_language_logits" if config.masked_language_head else "pool" if config.pooler else "encode"


def is_layout(component: str) -> bool:
    """Whether the component, or its forward component, belongs to another layout or to files, so that only ports that have it are asked."""
    return (forward_of(component) or component) in (*LAYOUTS, *FILES)


def without_other_layouts(cases: Sequence[Case], covered: Collection[str]) -> list[Case]:
    """Returns the cases without those of uncovered layouts, if others remain."""
    left = [case for case in cases if case.component in covered or not is_layout(case.component)]
    return left or list(cases)


def config_arguments(component: str, config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """Returns the arguments of the component's function that come from a case's config and dtype."""
    fields = ASKED[component][1].items()
    return {argument: numpy_dtype(dtype) if field == "dtype" else getattr(config, field) for argument, field in fields}


def takes_config(component: str) -> bool:
    """Whether the component's function takes the whole config, as everything that contains layers does."""
    return "config" in signature_of(component).parameters


def signature_of(component: str) -> inspect.Signature:
    """Returns the signature of the component's function, as the reference declares it."""
    return inspect.signature(function_of(component))


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns the reference's outputs for the case, in the case's dtype; for a component that draws random numbers their statistics.

    around: a context manager that is entered while the reference computes.
    """
    function = function_of(case.component)
    arguments = parameters.nest(case.inputs) | config_arguments(case.component, case.config, case.dtype)
    accepted = inspect.signature(function).parameters
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
    """Returns the gradient `i k` of a kernel that all heads share, given the gradient `d h k` of all heads."""
    slices = gradient.reshape(gradient.shape[1], -1, *gradient.shape[1:])
    blocks_hik = np.stack([slices[head, :, head] for head in range(len(slices))])
    return arithmetic.unbroadcast(blocks_hik, blocks_hik.shape[1:])


def function_of(component: str) -> Callable[..., Any]:
    """Returns the reference's function that answers the component's cases, by the inputs of a case."""
    return calls.of_case(component, getattr(module_of(ASKED[component][0]), component))


def named_outputs(result: Any) -> dict[str, Any]:
    """Returns `output`, and `weights` if a component returns a pair; of a mapping the values by name, nested names joined by dots.

    A NumPy scalar is an array without axes.
    """
    if isinstance(result, Mapping):
        outputs = parameters.flatten(result)
    else:
        outputs = dict(zip(("output", "weights"), result, strict=True)) if isinstance(result, tuple) else {"output": result}
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in outputs.items()}
