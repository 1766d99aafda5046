"""Known bugs of the embedding and the tied head."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import inputs

from .alteration import Altered, Variants, on_arguments, on_call
from .kernels import without_bias


def _rounded_scale(original: Callable, parameters: Any, token: np.ndarray, scale: bool, *rest: Any, **options: Any) -> np.ndarray:
    x_btd, factor = original(parameters, token, scale, *rest, **options), parameters["table"].shape[1] ** 0.5
    return x_btd * x_btd.dtype.type(float(ml_dtypes.bfloat16(factor)) / factor) if scale else x_btd


def without_padding_row(embedding: Any, config: Any) -> dict[str, np.ndarray]:
    """Returns an embedding table (or its gradient) with zeros in the padding id's row."""
    table_vd = embedding["table"].copy()
    if config.padding_id is not None:
        table_vd[config.padding_id] = 0
    return {"table": table_vd}


def _zero_padding_row(parameters: Any, config: Any, **others: Any) -> dict[str, Any]:
    names = ("source_embedding", "target_embedding")
    return {"parameters": dict(parameters) | {name: without_padding_row(parameters[name], config) for name in names if name in parameters}}


def _zero_head(parameters: Any, config: Any, **others: Any) -> dict[str, Any]:
    if not config.tie_logits:
        return {}
    table_vd = parameters[inputs.table(config, "target")]["table"]
    head = dict(parameters.get("logits", {})) | {"kernel": np.zeros_like(table_vd.T)}
    return {"parameters": dict(parameters) | {"logits": head}, "config": config.replace(tie_logits=False)}


def _zero_masked_language_head(parameters: Any, config: Any, **others: Any) -> dict[str, Any]:
    if not config.tie_logits:
        return {}
    head = parameters["masked_language_head"]
    logits = dict(head.get("logits", {})) | {"kernel": np.zeros_like(parameters["source_embedding"]["table"].T)}
    return {
        "parameters": dict(parameters) | {"masked_language_head": {**head, "logits": logits}},
        "config": config.replace(tie_logits=False),
    }


def _twice(parameters: Any, **others: Any) -> dict[str, Any]:
    return {"parameters": dict(parameters) | {"bias": parameters["bias"] + parameters["bias"]}} if "bias" in parameters else {}


def _first_two_exchanged(parameters: Any, segment_bs: np.ndarray) -> dict[str, Any]:
    return {"segment_bs": np.where(segment_bs < 2, 1 - segment_bs, segment_bs)} if len(parameters["table"]) > 1 else {}


_MODELS = ("transformer.encode", "transformer.decode", "encoder_only.masked_language_logits")

ALTERED: Altered = {
    "EMB1": {"embedding.embedding": on_arguments(scale=False)},
    "EMB2": {"embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(x.shape[-1] ** -0.5))},
    "EMB3": dict.fromkeys(_MODELS, on_call(_zero_padding_row)),
    "EMB6": {"transformer.decode": on_call(_zero_head), "encoder_only.masked_language_logits": on_call(_zero_masked_language_head)},
    "EMB7": {"embedding.embedding": _rounded_scale},
    "EMB8": {"embedding.logits": on_arguments(parameters=without_bias)},
    "EMB9": {"embedding.logits": on_call(_twice)},
    "EMB16": {"embedding.embedding": on_arguments(round_scale=False)},
    "SEG1": {"embedding.segment_embedding": on_arguments(segment_bs=np.zeros_like)},
    "SEG2": {"embedding.segment_embedding": on_call(_first_two_exchanged)},
}
VARIANTS: Variants = {
    "EMB2": {
        "the head's input is multiplied by sqrt(d)": {
            "embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(x.shape[-1] ** 0.5))
        },
        "the head's input is divided by d": {"embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(1 / x.shape[-1]))},
    },
}
