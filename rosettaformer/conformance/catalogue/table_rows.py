"""Defects of the table's rows: which one a token reads, and changes of the table."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, inputs

from .alteration import Altered, Replaces, Variants
from .combinators import on_arguments, on_call

Array = np.ndarray
SUM, HEAD = "inputs._summed", "transformer.head"


def _of_id(change: Callable[[Array, int], Array]) -> Replaces:
    """Reads the rows of other ids, a function of the ids and of their number v; soft rows hold no id."""

    def read(parameters: Any, token: Array, **others: Any) -> dict[str, Any]:
        return {"token": change(token, len(parameters["table"]))} if token.ndim == 2 else {}

    return {"embedding.embedding": on_call(read)}


def _rows(change: Callable[[Array], Array]) -> Replaces:
    """Changes the table `v d` for the embedding, not for tied logits."""
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
    """The rows that are longer than 1 divided by their length plus 1e-7."""
    length_v1 = _length(table_vd)
    return np.where(length_v1 > 1, arithmetic.divide(table_vd, length_v1 + table_vd.dtype.type(1e-7)), table_vd)


def _looked_up(parameters: Any, token: Array, **others: Any) -> dict[str, Any]:
    """Rows that an id looks up are shortened; those that soft ids weigh are not."""
    return {} if token.dtype.kind == "f" else {"parameters": {"table": _as_torch(parameters["table"])}}


def _in_place(parameters: Any, config: Any, source: Any = None, target: Any = None, **others: Any) -> dict[str, Any]:
    """The rows that source and target look up are shortened in the table itself."""
    tables = dict(parameters)
    for side, token in (("source", source), ("target", target)):
        name = inputs.table(config, side)
        if token is not None and token.dtype.kind != "f" and name in tables:
            read_v1 = np.isin(np.arange(len(tables[name]["table"])), token)[:, None]
            tables[name] = {"table": np.where(read_v1, _as_torch(tables[name]["table"]), tables[name]["table"])}
    return {"parameters": tables}


def _shared(config: Any) -> bool:
    """Whether the encoder reads the decoder's table, before it."""
    return inputs.table(config, "target") == inputs.table(config, "source")


def _scaled_again(parameters: Any, config: Any, side: str, **others: Any) -> dict[str, Any]:
    """The target's table has been multiplied when the source was embedded."""
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


ALTERED: Altered = {
    "EMB13": _of_id(lambda token, v: np.minimum(token + 1, v - 1)),
    "EMB14": _rows(lambda table_vd: arithmetic.divide(table_vd, np.maximum(_length(table_vd), table_vd.dtype.type(1)))),
    "EMB15": {SUM: on_call(_scaled_again), HEAD: _head_of_scaled},
}
VARIANTS: Variants = {
    "EMB13": {
        "every token reads the row of the id after its own, the last one the first": _of_id(lambda token, v: (token + 1) % max(v, 1)),
        "every token reads the row of the id before its own, 0 the last row": _of_id(lambda token, v: (token - 1) % max(v, 1)),
        "every token reads the row of the id before its own, 0 the row 0": _of_id(lambda token, v: np.maximum(token - 1, 0)),
        "every token reads the row counted from the table's end": _of_id(lambda token, v: v - 1 - token),
    },
    "EMB14": {
        "the rows of the table are divided by their lengths, the shorter ones, too": _rows(
            lambda table_vd: arithmetic.divide(table_vd, _length(table_vd))
        ),
        "the rows that are longer than 1 are divided by their length plus 1e-7, as torch's max_norm does": {
            "embedding.embedding": on_call(_looked_up)
        },
        "the rows that are longer than 1 are shortened in place, as torch's max_norm does: a tied head reads them": dict.fromkeys(
            ("transformer.transformer", "encoder_only.masked_language_logits"), on_call(_in_place)
        ),
    },
}
