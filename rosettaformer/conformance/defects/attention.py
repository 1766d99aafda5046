"""Defects of scaled dot-product and multi-head attention."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import attention

from .defect import Defect

__all__ = ["DEFECTS"]

_attention = attention.scaled_dot_product_attention
_multi_head = attention.multi_head_attention
_project = attention._project


def _query_times(factor: Callable[[int, int, int], float]) -> Callable:
    """The attention whose query is multiplied by a function of h, k and e."""

    def altered(query_bthk: Any, key_bsgk: Any, value_bsge: Any, *rest: Any, **options: Any) -> Any:
        number = factor(query_bthk.shape[2], query_bthk.shape[3], value_bsge.shape[3])
        return _attention(query_bthk * query_bthk.dtype.type(number), key_bsgk, value_bsge, *rest, **options)

    return altered


def _with_mask(change: Callable[[np.ndarray, tuple[int, int]], np.ndarray]) -> Callable:
    """The attention whose given mask is changed, knowing the batch size and the heads."""

    def altered(query_bthk: Any, key_bsgk: Any, value_bsge: Any, mask_bhts: Any = None, *rest: Any, **options: Any) -> Any:
        if mask_bhts is not None:
            mask_bhts = change(mask_bhts, (query_bthk.shape[0], query_bthk.shape[2]))
        return _attention(query_bthk, key_bsgk, value_bsge, mask_bhts, *rest, **options)

    return altered


def _tiled_mask(mask_bhts: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    full = np.broadcast_to(mask_bhts, (*sizes, *mask_bhts.shape[2:]))
    return full.swapaxes(0, 1).reshape(full.shape)


def _tiled_heads(query_bthk: Any, key_bsgk: Any, value_bsge: Any, *rest: Any, **options: Any) -> Any:
    repeats = query_bthk.shape[2] // key_bsgk.shape[2]
    key, value = (np.tile(x, (1, 1, repeats, 1)) for x in (key_bsgk, value_bsge))
    return _attention(query_bthk, key, value, *rest, **options)


def _split_without_transpose(subscripts: str, parameters: Any, x: Any) -> np.ndarray:
    y = _project(subscripts, parameters, x)
    if subscripts == "bthe,hed->btd":
        return y
    b, t, h, k = y.shape
    return y.reshape(b, h, t, k).swapaxes(1, 2)


def _merged_without_transpose(subscripts: str, parameters: Any, x: Any) -> np.ndarray:
    if subscripts == "bthe,hed->btd":
        x = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    return _project(subscripts, parameters, x)


def _untransposed(subscripts: str, parameters: Any, x: Any) -> np.ndarray:
    kernel = parameters["kernel"]
    rows = kernel.shape[-1] if subscripts == "bthe,hed->btd" else kernel.shape[0]
    square = kernel.size == rows * rows
    turned = kernel.reshape(rows, rows).T.reshape(kernel.shape) if square else kernel
    return _project(subscripts, dict(parameters) | {"kernel": turned}, x)


def _without_bias(subscripts: str, parameters: Any, x: Any) -> np.ndarray:
    return _project(subscripts, {"kernel": parameters["kernel"]}, x)


def _concatenated_to_key_width(parameters: Any, query_btd: Any, *rest: Any, **options: Any) -> Any:
    _, heads, key_size = parameters["query"]["kernel"].shape
    value_size = parameters["value"]["kernel"].shape[2]
    if key_size != value_size:
        raise ValueError(f"cannot reshape heads of size {value_size} into width {heads * key_size}")
    return _multi_head(parameters, query_btd, *rest, **options)


def _value_before_key(parameters: Any, query_btd: Any, *rest: Any, **options: Any) -> Any:
    key, value = parameters["key"], parameters["value"]
    if key["kernel"].shape == value["kernel"].shape:
        parameters = dict(parameters) | {"key": value, "value": key}
    return _multi_head(parameters, query_btd, *rest, **options)


def _first_of_the_batch(parameters: Any, query_btd: Any, *rest: Any, **options: Any) -> Any:
    output = _multi_head(parameters, query_btd, *rest, **options)
    first = output[0] if isinstance(output, tuple) else output
    first = np.broadcast_to(first[:1], first.shape)
    return (first, output[1]) if isinstance(output, tuple) else first


def _defect(id_: str, title: str, evidence: str, function: Any, name: str = "scaled_dot_product_attention") -> Defect:
    component = "multi_head_attention" if name == "_project" else name
    return Defect(id_, title, component, evidence, {f"attention.{name}": function})


_MHA = "multi_head_attention"
DEFECTS = (
    _defect("ATT1", "scaled by sqrt(d) of the model", "train-llm-from-scratch#3", _query_times(lambda h, k, e: h**-0.5)),
    _defect("ATT2", "scaled by sqrt(e) of the value head", "openai/gpt-2#49", _query_times(lambda h, k, e: (k / e) ** 0.5)),
    _defect("ATT3", "the scale is missing", "transformers#20828", _query_times(lambda h, k, e: k**0.5)),
    _defect("ATT7", "the mask's polarity is inverted", "pytorch#170415, tensorflow/text#938", _with_mask(lambda mask, sizes: ~mask)),
    _defect("ATT15", "a mask a head is tiled, not interleaved with the batch", "CLIP4Clip#22", _with_mask(_tiled_mask)),
    _defect("MHA1", "heads are split without a transpose", "FuxiCTR#30", _split_without_transpose, "_project"),
    _defect("MHA2", "heads are merged without a transpose", "jadore801120#7", _merged_without_transpose, "_project"),
    _defect("MHA5", "a square kernel is not transposed", "nntile#370", _untransposed, "_project"),
    _defect("MHA6", "value and key are exchanged", "jsbaan/transformer-from-scratch#1", _value_before_key, _MHA),
    _defect("MHA7", "the output is unpacked over the batch", "semillero", _first_of_the_batch, _MHA),
    _defect("MHA8", "the projections' biases are missing", "keras_lab", _without_bias, "_project"),
    _defect("MHA9", "heads are concatenated to h k instead of h e", "semillero", _concatenated_to_key_width, _MHA),
    _defect("MHA10", "key heads are tiled, not repeated, for grouped queries", "axlearn#842, onnx#7274", _tiled_heads),
)
