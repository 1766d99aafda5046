"""Defects of the tables that are read, of the embedding's scale, of how positions join it, and of the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, embedding, feed_forward, inputs, softmax

from ..reference.patching import patched
from .alteration import Altered, Replaces, Variants
from .combinators import on_call, on_result
from .weights import sigmoid

Array = np.ndarray
SUM = "inputs._summed"
POSITIONS = ("positional_encoding.positional_encoding", "positional_encoding.position_embedding")


def _tables(**others: str) -> Replaces:
    """Looks the tokens of one side up in the table of another, if it has all their ids."""

    def change(parameters: Any, config: Any, side: str, token: Array, **given: Any) -> dict[str, Any]:
        name, read = inputs.table(config, side), f"{others.get(side, side)}_embedding"
        if read not in parameters or token.ndim > 2 or token.max(initial=0) >= len(parameters[read]["table"]):
            return {}
        return {"parameters": dict(parameters) | {name: parameters[read]}}

    return {SUM: on_call(change)}


def _source_head(original: Callable, parameters: Any, config: Any) -> dict[str, Array]:
    head, table_vd = original(parameters, config), parameters.get("source_embedding", {}).get("table")
    return head | {"kernel": table_vd.T} if table_vd is not None and table_vd.T.shape == head["kernel"].shape else head


def _times(factor: Callable[[int, int], float]) -> Replaces:
    """Multiplies a scaled embedding further by a function of v and d."""

    def altered(original: Callable, parameters: Any, token: Array, scale: bool, round_scale: bool = False) -> Array:
        x_btd = original(parameters, token, scale, round_scale)
        return x_btd * x_btd.dtype.type(factor(*parameters["table"].shape)) if scale else x_btd

    return {"embedding.embedding": altered}


def _scaled_sum(original: Callable, parameters: Any, config: Any, *rest: Any) -> Array:
    x_btd = original(parameters, config.replace(scale_embedding=False), *rest)
    return x_btd * x_btd.dtype.type(config.model_width**0.5) if config.scale_embedding else x_btd


def _multiplied(original: Callable, parameters: Any, config: Any, side: str, token: Array, *rest: Any) -> Array:
    x_btd = embedding.embedding(parameters[inputs.table(config, side)], token, config.scale_embedding)
    with patched({"embedding.embedding": on_result(np.zeros_like)}):
        return x_btd * original(parameters, config, side, token, *rest)


def _none_for_padding(original: Callable, parameters: Any, config: Any, side: str, token: Array, *rest: Any) -> Array:
    real_bt1 = inputs.mask.token_mask(token, config.padding_id)[..., None]
    hidden = on_result(lambda x_btd: x_btd * real_bt1.astype(x_btd.dtype))
    with patched({"positional_encoding.positional_encoding": hidden, "positional_encoding.position_embedding": hidden}):
        return original(parameters, config, side, token, *rest)


def _output(change: Callable[[Array], Array]) -> Replaces:
    """Applies a function to the logits of tokens and classes, in float32 if they are half precision."""
    wide = on_result(lambda logits: change(arithmetic.upcast_half(logits)).astype(logits.dtype, copy=False))
    return dict.fromkeys(("embedding.logits", "heads.classifier"), wide)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(arithmetic.sum(arithmetic.exp(shifted), -1))


ALTERED: Altered = {
    "EMB10": {"transformer.head": _source_head},
    "EMB11": _tables(target="source"),
    "EMB12": _times(lambda v, d: d**0.5),
    "PE18": {SUM: _scaled_sum},
    "PE19": {SUM: _none_for_padding},
    "OUT1": _output(softmax.softmax),
}
VARIANTS: Variants = {
    "EMB11": {
        "the source is embedded by the target's table": _tables(source="target"),
        "the tables of source and target are exchanged": _tables(source="target", target="source"),
    },
    "EMB12": {
        "the embedding is divided by sqrt(d)": _times(lambda v, d: 1 / d),
        "the embedding is multiplied by sqrt(v) of the vocabulary": _times(lambda v, d: (v / d) ** 0.5),
    },
    "PE18": {
        "the positions are multiplied by sqrt(d), too": dict.fromkeys(POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** 0.5))),
        "the positions are divided by sqrt(d)": dict.fromkeys(POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** -0.5))),
        "the embedding is multiplied by the position, not added": {SUM: _multiplied},
        "the position is subtracted": dict.fromkeys(POSITIONS, on_result(np.negative)),
        "the position is added twice": dict.fromkeys(POSITIONS, on_result(lambda x: x + x)),
    },
    "OUT1": {
        "the output is a log-softmax of the logits": _output(_log_softmax),
        "the output is a sigmoid of the logits": _output(sigmoid),
        "the output is a tanh of the logits": _output(arithmetic.tanh),
        "the output is the logits above 0: ReLU": _output(lambda logits: np.maximum(logits, 0)),
        "the output is a GELU of the logits": _output(lambda logits: feed_forward.activation(logits, "gelu_erf")),
    },
}
