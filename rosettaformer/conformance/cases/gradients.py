"""The gradient cases: what a case asks forward, asked backward."""

import contextlib
import dataclasses
from collections.abc import Iterable

import numpy as np

from ..case import Case
from ..reference import components
from .build import rng

__all__ = ["gradient", "gradients", "with_cotangent"]

# the defects that a gradient reveals and no output does, by the gradient case
CATCHES = {
    "scaled_dot_product_attention_vjp/left_padding": "ATT14",
    "scaled_dot_product_attention_vjp/per_head": "ATT14",
    "scaled_dot_product_attention_vjp/causal_left_padding": "ATT14",
    "scaled_dot_product_attention_vjp/bias_minus_infinity": "ATT14",
    "multi_head_attention_vjp/left_padding": "ATT14",
    "layer_norm_vjp/constant_rows": "NRM11",
    "encoder_layer_vjp/left_padding": "ATT14",
    "decoder_layer_vjp/left_padding": "ATT14",
    "encoder_vjp/final_norm": "STR3",
    "decoder_vjp/final_norm": "STR3",
    "transformer_vjp/semillero": "STR3",
    "transformer_vjp/paper_base": "EMB5",
    "transformer_vjp/keras_lab": "EMB5",
    "transformer_vjp/sapiens": "EMB5",
    "transformer_vjp/ragged": "EMB4",
    "transformer_vjp/left_padding": "ATT14 EMB4",
    "transformer_vjp/keep_sapiens": "EMB4 EMB5",
    "training_loss_vjp/semillero": "STR3",
    "training_loss_vjp/sapiens": "EMB5",
    "training_loss_vjp/left_padding": "ATT14 EMB4",
}
INHERITED = "LOS"  # what is wrong with a loss is wrong with its gradient


def gradients(cases: Iterable[Case]) -> list[Case]:
    """The gradient case of every case that has something differentiable. Of two that differ by the weights that they ask for, one."""
    known = {case.id: case for case in cases}
    found = []
    for case in known.values():
        twin = "return_weights" in case.inputs and case.id.endswith("_weights") and case.id.removesuffix("_weights") in known
        if case.component in components.DIFFERENTIABLE and not twin:
            with contextlib.suppress(ValueError):  # a config without a decoder, which a port may fix, has no output here
                found.append(gradient(case))
    return found


def gradient(case: Case) -> Case:
    """The same case as one of `<component>_vjp`, with a random cotangent in the shape of its output."""
    inputs = {name: value for name, value in case.inputs.items() if name != "return_weights"}
    component = case.component + components.VJP
    forward = dataclasses.replace(case, inputs=inputs)
    output = components.answer(forward)["output"]
    catches = [id_ for id_ in case.catches if id_.startswith(INHERITED)] + CATCHES.get(f"{component}/{case.name}", "").split()
    cotangent = np.asarray(rng(f"{component}/{case.name}").standard_normal(output.shape))
    return dataclasses.replace(with_cotangent(forward, cotangent), catches=tuple(catches), twice=False, since=2)


def with_cotangent(case: Case, cotangent: np.ndarray) -> Case:
    """The case of the component's gradient with this cotangent."""
    return dataclasses.replace(case, component=case.component + components.VJP, inputs=dict(case.inputs) | {"cotangent": cotangent})
