"""Defects of the residual connections and of what the sub-layers are given."""

from typing import Any

import numpy as np

from reference_numpy import layers, normalization

from .defect import Defect

__all__ = ["DEFECTS"]

_residual = layers._residual
_attend = layers._attend
_decoder_layer = layers.decoder_layer


def _other_placement(parameters: Any, config: Any, *rest: Any) -> np.ndarray:
    other = "post" if config.norm_placement == "pre" else "pre"
    return _residual(parameters, config.replace(norm_placement=other), *rest)


def _norm_before_residual(parameters: Any, config: Any, name: str, x_btd: Any, sublayer: Any, keep: Any) -> np.ndarray:
    if config.norm_placement == "pre":
        return _residual(parameters, config, name, x_btd, sublayer, keep)
    return x_btd + normalization.layer_norm(parameters[f"{name}_norm"], sublayer(x_btd), config.epsilon)


def _cross_mask_dropped(parameters: Any, config: Any, name: str, query: Any, memory: Any, mask: Any, *rest: Any) -> np.ndarray:
    return _attend(parameters, config, name, query, memory, None if name == "cross_attention" else mask, *rest)


def _target_mask_for_cross(
    parameters: Any, config: Any, x_btd: Any, memory_bsd: Any, self_mask_bhts: Any = None, cross_mask_bhts: Any = None, keep: Any = None
) -> np.ndarray:
    if self_mask_bhts is not None and self_mask_bhts.shape[-1] == memory_bsd.shape[1]:
        cross_mask_bhts = self_mask_bhts
    return _decoder_layer(parameters, config, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, keep)


def _cross_query_from_input(
    parameters: Any, config: Any, x_btd: Any, memory_bsd: Any, self_mask_bhts: Any = None, cross_mask_bhts: Any = None, keep: Any = None
) -> np.ndarray:
    def cross_attention(query_btd: np.ndarray) -> np.ndarray:
        return _attend(parameters, config, "cross_attention", x_btd, memory_bsd, cross_mask_bhts, False, {})

    y_btd = layers._self_attention(parameters, config, x_btd, self_mask_bhts, True, {})
    y_btd = _residual(parameters, config, "cross_attention", y_btd, cross_attention, {})
    return layers._feed_forward(parameters, config, y_btd, {})


def _defect(id_: str, title: str, component: str, evidence: str, place: str, function: Any) -> Defect:
    return Defect(id_, title, component, evidence, {f"layers.{place}": function})


_NORM = "pre-norm for post-norm, or the reverse"
_INPUT = "the cross-attention's query is the layer's input, before self-attention and its residual"
DEFECTS = (
    _defect("NRM8", _NORM, "encoder_layer", "annotated-transformer#1", "_residual", _other_placement),
    _defect("NRM9", "the norm precedes the residual's sum", "encoder_layer", "Compact-Transformers#25", "_residual", _norm_before_residual),
    _defect("ATT16", "the memory's padding mask is dropped", "decoder_layer", "guide, transformers#47946", "_attend", _cross_mask_dropped),
    _defect("ATT17", "the target's mask hides the memory", "decoder_layer", "keras-io#1964", "decoder_layer", _target_mask_for_cross),
    _defect("MHA11", _INPUT, "decoder_layer", "keras_lab, mlx#3382", "decoder_layer", _cross_query_from_input),
)
