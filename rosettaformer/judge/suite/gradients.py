"""Gradient cases: one for each differentiable case."""

import contextlib
import dataclasses
from collections.abc import Iterable

import numpy as np

from ..case import Case
from ..expectation import components
from .build import rng

# known bugs that only gradients reveal -> the gradient cases
CATCHES = {
    "ATT14": """
        scaled_dot_product_attention_vjp/left_padding scaled_dot_product_attention_vjp/per_head
        scaled_dot_product_attention_vjp/causal_left_padding scaled_dot_product_attention_vjp/bias_minus_infinity
        multi_head_attention_vjp/left_padding encoder_layer_vjp/left_padding decoder_layer_vjp/left_padding
        transformer_vjp/left_padding transformer_vjp/gpt2_left_padding training_loss_vjp/left_padding
        self_attention_vjp/empty_row
    """,
    "EMB4": """
        transformer_vjp/ragged transformer_vjp/left_padding transformer_vjp/keep_feed_forward_dropout
        transformer_vjp/gpt2_padding_id training_loss_vjp/left_padding
    """,
    "EMB5": """
        transformer_vjp/paper_base transformer_vjp/unscaled_embedding transformer_vjp/feed_forward_dropout
        transformer_vjp/keep_feed_forward_dropout transformer_vjp/gpt2 masked_language_logits_vjp/bert
        training_loss_vjp/feed_forward_dropout training_loss_vjp/gpt2
    """,
    "NRM11": "layer_norm_vjp/constant_rows",
    "STR3": """
        encoder_vjp/final_norm decoder_vjp/final_norm decoder_vjp/alone transformer_vjp/nn_transformer transformer_vjp/gpt2
        classify_vjp/bert training_loss_vjp/nn_transformer classification_loss_vjp/bert
    """,
}
WITHOUT = ("transformer/long_text",)  # its gradient adds nothing to that of far positions and takes a minute per summation order
INHERITED, CONSTANT = "LOS", ("LOS10",)  # a bug in a loss affects its gradient, unless it adds a constant


def gradients(cases: Iterable[Case]) -> list[Case]:
    """Returns a gradient case for each differentiable case; one per `_weights` pair."""
    known = {case.id: case for case in cases}
    found = []
    for case in known.values():
        twin = "return_weights" in case.inputs and case.id.endswith("_weights") and case.id.removesuffix("_weights") in known
        if case.component in components.DIFFERENTIABLE and not twin and case.id not in WITHOUT:
            with contextlib.suppress(ValueError):  # a port may fix a config without a decoder, which has no output here
                found.append(gradient(case))
    return found


def gradient(case: Case) -> Case:
    """Returns the case of `<component>_vjp`, with a random cotangent in the output's shape."""
    inputs = {name: value for name, value in case.inputs.items() if name != "return_weights"}
    forward = dataclasses.replace(case, inputs=inputs)
    output = components.answer(forward)["output"]
    own = f"{case.component}{components.VJP}/{case.name}"
    catches = [id_ for id_ in case.catches if id_.startswith(INHERITED) and id_ not in CONSTANT] + [
        id_ for id_, names in CATCHES.items() if own in names.split()
    ]
    cotangent = np.asarray(rng(own).standard_normal(output.shape))
    return dataclasses.replace(with_cotangent(forward, cotangent), catches=tuple(catches), twice=False)


def with_cotangent(case: Case, cotangent: np.ndarray) -> Case:
    """Returns the case of the component's gradient for this cotangent."""
    return dataclasses.replace(case, component=case.component + components.VJP, inputs=dict(case.inputs) | {"cotangent": cotangent})
