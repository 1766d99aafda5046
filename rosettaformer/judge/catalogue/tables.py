"""Known bugs of embedding tables (rows, scale), of how positions are added, and of the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, embedding, feed_forward, inputs, softmax

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call, on_result
from .weights import sigmoid

SUM, HEAD = "inputs.summed", "transformer.head"


def _of_id(change: Callable[[Array, int], Array]) -> Replaces:
    """Reads the rows of other ids: (ids, table size v) -> ids. Ignores soft tokens."""

    def read(parameters: Any, token: Array, **others: Any) -> dict[str, Any]:
        return {"token": change(token, len(parameters["table"]))} if token.ndim == 2 else {}

    return {"embedding.embedding": on_call(read)}


def _rows(change: Callable[[Array], Array]) -> Replaces:
    """Changes the table `v d` for the embedding but not for tied logits."""
    return {
        "embedding.embedding": on_arguments(
            parameters=lambda parameters: {
                "table": change(arithmetic.upcast_half(parameters["table"])).astype(parameters["table"].dtype, copy=False)
            }
        )
    }


def _length(table_vd: Array) -> Array:
    return np.sqrt(np.maximum(arithmetic.sum(table_vd * table_vd, -1), table_vd.dtype.type(1e-12)))


def _as_torch(table_vd: Array) -> Array:
    """Divides rows longer than 1 by their length plus 1e-7."""
    length_v1 = _length(table_vd)
    return np.where(length_v1 > 1, arithmetic.divide(table_vd, length_v1 + table_vd.dtype.type(1e-7)), table_vd)


def _looked_up(parameters: Any, token: Array, **others: Any) -> dict[str, Any]:
    """Shortens rows that are looked up by id, but not for soft tokens."""
    return {} if token.dtype.kind == "f" else {"parameters": {"table": _as_torch(parameters["table"])}}


def _in_place(parameters: Any, config: Any, source: Any = None, target: Any = None, **others: Any) -> dict[str, Any]:
    """Shortens the rows that source and target look up, in the table itself."""
    tables = dict(parameters)
    for side, token in (("source", source), ("target", target)):
        name = inputs.table(config, side)
        if token is not None and token.dtype.kind != "f" and name in tables:
            read_v1 = np.isin(np.arange(len(tables[name]["table"])), token)[:, None]
            tables[name] = {"table": np.where(read_v1, _as_torch(tables[name]["table"]), tables[name]["table"])}
    return {"parameters": tables}


def _shared(config: Any) -> bool:
    """Returns whether encoder and decoder share a table."""
    return inputs.table(config, "target") == inputs.table(config, "source")


def _scaled_again(parameters: Any, config: Any, side: str, **others: Any) -> dict[str, Any]:
    """Scales the target's table again if embedding the source has already scaled it."""
    if side != "target" or not config.scale_embedding or not _shared(config):
        return {}
    name = inputs.table(config, side)
    table_vd = parameters[name]["table"]
    return {"parameters": dict(parameters) | {name: {"table": table_vd * table_vd.dtype.type(table_vd.shape[1] ** 0.5)}}}


def _head_of_scaled(original: Callable, parameters: Any, config: Any) -> dict[str, Array]:
    head = original(parameters, config)
    if not (config.tie_logits and config.scale_embedding):
        return head
    factor = head["kernel"].shape[0] ** (1.0 if _shared(config) else 0.5)
    return head | {"kernel": head["kernel"] * head["kernel"].dtype.type(factor)}


POSITIONS = ("positional_encoding.positional_encoding", "positional_encoding.position_embedding")


def _tables(**others: str) -> Replaces:
    """Looks up one side's tokens in another side's table, if it has all their ids."""

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
    """Multiplies a scaled embedding by another function of v and d."""

    def altered(original: Callable, parameters: Any, token: Array, scale: bool, *rest: Any, **options: Any) -> Array:
        x_btd = original(parameters, token, scale, *rest, **options)
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
    """Applies a function to the output and class logits, in float32 if they are half precision."""
    wide = on_result(lambda logits: change(arithmetic.upcast_half(logits)).astype(logits.dtype, copy=False))
    return dict.fromkeys(("embedding.logits", "heads.classifier"), wide)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(arithmetic.sum(arithmetic.exp(shifted), -1))


ALTERED: Altered = {
    "EMB13": _of_id(lambda token, v: np.minimum(token + 1, v - 1)),
    "EMB14": _rows(lambda table_vd: arithmetic.divide(table_vd, np.maximum(_length(table_vd), table_vd.dtype.type(1)))),
    "EMB15": {SUM: on_call(_scaled_again), HEAD: _head_of_scaled},
    "EMB10": {"transformer.head": _source_head},
    "EMB11": _tables(target="source"),
    "EMB12": _times(lambda v, d: d**0.5),
    "PE18": {SUM: _scaled_sum},
    "PE19": {SUM: _none_for_padding},
    "OUT1": _output(softmax.softmax),
}
VARIANTS: Variants = {
    "EMB13": {
        "every token reads the embedding row of the next id, wrapping around": _of_id(lambda token, v: (token + 1) % max(v, 1)),
        "every token reads the embedding row of the previous id, wrapping around": _of_id(lambda token, v: (token - 1) % max(v, 1)),
        "every token reads the embedding row of the previous id, row 0 for id 0": _of_id(lambda token, v: np.maximum(token - 1, 0)),
        "embedding rows are counted from the end of the table": _of_id(lambda token, v: v - 1 - token),
    },
    "EMB14": {
        "all embedding rows are normalized to length 1, shorter ones too": _rows(
            lambda table_vd: arithmetic.divide(table_vd, _length(table_vd))
        ),
        "embedding rows longer than 1 are divided by their length plus 1e-7, as torch's max_norm does": {
            "embedding.embedding": on_call(_looked_up)
        },
        "embedding rows longer than 1 are shortened in place, as torch's max_norm does, also for a tied head": dict.fromkeys(
            ("transformer.transformer", "encoder_only.masked_language_logits"), on_call(_in_place)
        ),
    },
    "EMB11": {
        "the source is embedded with the target's table": _tables(source="target"),
        "the source and target tables are swapped": _tables(source="target", target="source"),
    },
    "EMB12": {
        "the embedding is divided by sqrt(d) instead of multiplied": _times(lambda v, d: 1 / d),
        "the embedding is multiplied by sqrt(v), v the vocabulary size": _times(lambda v, d: (v / d) ** 0.5),
    },
    "PE18": {
        "the positions are multiplied by sqrt(d) too": dict.fromkeys(POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** 0.5))),
        "the positions are divided by sqrt(d)": dict.fromkeys(POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** -0.5))),
        "the embedding is multiplied by the position instead of added": {SUM: _multiplied},
        "the position is subtracted instead of added": dict.fromkeys(POSITIONS, on_result(np.negative)),
        "the position is added twice": dict.fromkeys(POSITIONS, on_result(lambda x: x + x)),
    },
    "OUT1": {
        "the model returns a log-softmax instead of logits": _output(_log_softmax),
        "the model returns a sigmoid of the logits": _output(sigmoid),
        "the model returns a tanh of the logits": _output(arithmetic.tanh),
        "the model returns a ReLU of the logits": _output(lambda logits: np.maximum(logits, 0)),
        "the model returns a GELU of the logits": _output(lambda logits: feed_forward.activation(logits, "gelu_erf")),
    },
}
