"""Defects of the embedding and of the head that is tied to it."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import inputs

from .defect import CONFIGURED, LOADED, Defect, on_arguments, on_call
from .kernels import without_bias

__all__ = ["DEFECTS", "without_padding_row"]


def _rounded_scale(original: Callable, parameters: Any, token: np.ndarray, scale: bool) -> np.ndarray:
    x_btd, factor = original(parameters, token, scale), parameters["table"].shape[1] ** 0.5
    return x_btd * x_btd.dtype.type(float(ml_dtypes.bfloat16(factor)) / factor) if scale else x_btd


def without_padding_row(embedding: Any, config: Any) -> dict[str, np.ndarray]:
    """The table of an embedding, or its gradient, with zeros in the row of the padding id."""
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


def _twice(original: Callable, parameters: Any, x_btd: np.ndarray) -> np.ndarray:
    logits_btv = original(parameters, x_btd)
    return logits_btv + parameters["bias"] if "bias" in parameters else logits_btv


def _first_two_exchanged(parameters: Any, segment_bs: np.ndarray) -> dict[str, Any]:
    return {"segment_bs": np.where(segment_bs < 2, 1 - segment_bs, segment_bs)} if len(parameters["table"]) > 1 else {}


_MODELS = ("transformer.encode", "transformer.decode", "encoder_only.masked_language_logits")
_SEGMENTS: dict[str, Any] = {
    "torch": "x = x + self.segment_embedding(segment)  # in transformers token_type_ids, by name: the third argument, 0 by default",
    "tf": "x = x + self.segment_embedding(segment)  # in transformers token_type_ids, in Keras Hub segment_ids",
    "jax": "x = x + segment_table[segment]  # in transformers token_type_ids",
}

DEFECTS = (
    Defect(
        id="EMB1",
        title="the sqrt(d) scale of the embedding is missing",
        what="`x = table[token]` instead of `x = sqrt(d) table[token]`, so that the positions drown the tokens.",
        shows="Every embedding is too small by sqrt(d). Any ids show it where the config scales embeddings.",
        torch="x = self.embedding(token) * math.sqrt(self.embedding.embedding_dim)",
        tf="x = self.embedding(token) * tf.cast(self.width, self.compute_dtype) ** 0.5",
        jax="x = self.embed(token) * jnp.sqrt(self.embed.features).astype(self.dtype)",
        elsewhere=CONFIGURED,
        evidence="keras_lab, OpenNMT-py#1722",
        replaces={"embedding.embedding": on_arguments(scale=False)},
    ),
    Defect(
        id="EMB2",
        title="the head's input is multiplied by d^-1/2",
        what="`logits = d^-1/2 x W + b`: T5's factor for a tied head, in a model without it (or, in T5, for an untied head).",
        shows="All logits are too small by sqrt(d): the ranking is right, the probabilities are too flat. Any input shows it.",
        torch="logits = F.linear(x, self.embedding.weight)  # x * width**-0.5 only in T5, and there only if tied",
        tf="logits = tf.matmul(x, self.embedding.embeddings, transpose_b=True)  # no x * width**-0.5",
        jax="logits = self.embed.attend(x)  # no x * width**-0.5",
        variants={
            "the head's input is multiplied by sqrt(d)": {
                "embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(x.shape[-1] ** 0.5))
            },
            "the head's input is divided by d": {"embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(1 / x.shape[-1]))},
        },
        evidence="mlx-examples#591, transformers#43681",
        replaces={"embedding.logits": on_arguments(x_btd=lambda x: x * x.dtype.type(x.shape[-1] ** -0.5))},
    ),
    Defect(
        id="EMB3",
        title="the padding id's row of the table is taken as zero",
        component="transformer",
        what="`table[padding_id] = 0`: initialisation or `padding_idx` overwrites the row that the checkpoint holds.",
        shows="Positions that hold padding, and with a tied head the padding id's logit everywhere, differ. Targets with padding show it.",
        torch="self.embedding = nn.Embedding(vocabulary, width)  # no padding_idx; or load the weights after every init",
        tf="self.embedding = keras.layers.Embedding(vocabulary, width)  # do not multiply by the padding mask",
        jax="x = table[token]  # not jnp.where((token == padding_id)[..., None], 0, table[token])",
        evidence="pytorch#6411",
        replaces=dict.fromkeys(_MODELS, on_call(_zero_padding_row)),
    ),
    Defect(
        id="EMB6",
        title="a tied checkpoint without a head: the head keeps its initial values",
        component="transformer",
        what="The checkpoint stores the tied tensor once, under the embedding; the head is never set to it. Zeros stand here for its "
        "initial values: `logits = x 0 + b`.",
        shows="The logits do not depend on the embedding's table: they are those of a fresh head. Any tied config shows it.",
        torch="self.head.weight = self.embedding.weight  # again after load_state_dict(..., assign=True)",
        tf="logits = tf.matmul(x, self.embedding.embeddings, transpose_b=True)  # no Dense layer of its own",
        jax="logits = self.embed.attend(x)  # no nn.Dense of its own",
        evidence="transformers#13086, transformers#2901",
        replaces={"transformer.decode": on_call(_zero_head), "encoder_only.masked_language_logits": on_call(_zero_masked_language_head)},
    ),
    Defect(
        id="EMB7",
        title="sqrt(d) is rounded to bfloat16",
        what="`x = bfloat16(sqrt(d)) table[token]`: the factor is stored in the half-precision dtype, whatever the model computes in "
        "(sqrt(3072) = 55.43 becomes 55.5).",
        shows="Every embedding is off by one factor, up to 0.4 %. Shows in float32; in bfloat16 itself it is no larger than rounding.",
        torch="x = (self.embedding(token).float() * math.sqrt(width)).to(dtype)  # a Python float, no tensor of the dtype",
        tf="x = tf.cast(tf.cast(self.embedding(token), tf.float32) * width**0.5, self.compute_dtype)",
        jax="x = (self.embed(token).astype(jnp.float32) * width**0.5).astype(self.dtype)",
        evidence="transformers#29402",
        replaces={"embedding.embedding": _rounded_scale},
    ),
    Defect(
        id="EMB8",
        title="the logits' bias is lost",
        what="`logits = x W` instead of `x W + b`: what skips or shares the tied kernel skips the bias of the head, too.",
        shows="Each token's logit is off by a constant of its own; frequent tokens lose the most. A bias that is not zero shows it.",
        torch="logits = F.linear(x, self.embedding.weight, self.bias)  # cls.predictions.bias of a BERT checkpoint",
        tf="logits = tf.matmul(x, self.embedding.embeddings, transpose_b=True) + self.bias",
        jax="logits = self.embed.attend(x) + self.bias",
        elsewhere=LOADED,
        evidence="vllm#46835, transformers#7167",
        replaces={"embedding.logits": on_arguments(parameters=without_bias)},
    ),
    Defect(
        id="EMB9",
        title="the logits' bias is added twice",
        what="`logits = x W + b + b`: the bias is a part of the linear layer, and is added by hand, too.",
        shows="Each token's logit is off by its bias. A bias that is not zero shows it.",
        torch="self.decoder.bias = self.bias; logits = self.decoder(x)  # not self.decoder(x) + self.bias",
        tf="logits = tf.matmul(x, self.embedding.embeddings, transpose_b=True) + self.bias",
        jax="logits = self.embed.attend(x) + self.bias",
        evidence="transformers#2957, FARM#533",
        replaces={"embedding.logits": _twice},
    ),
    Defect(
        id="SEG1",
        title="the segments are dropped: every token is of segment 0",
        what="`table[0]` is added everywhere: the segments do not reach the model, whose default is 0.",
        shows="A pair of sentences is read as one. A token of another segment than 0 shows it.",
        **_SEGMENTS,
        elsewhere="the segments are not passed on to it, or the rows of the table are loaded so",
        evidence="transformers#263, ferrox#44",
        replaces={"embedding.segment_embedding": on_arguments(segment_bs=np.zeros_like)},
    ),
    Defect(
        id="SEG2",
        title="the segments 0 and 1 are exchanged",
        what="`table[1 - segment]`: the first sentence is numbered 1, or another argument (the attention mask, 1 for every real token) "
        "stands where the segments are expected.",
        shows="Every token has the other sentence's segment. Any tokens show it.",
        **_SEGMENTS,
        elsewhere="the ids are exchanged before it, another argument comes in their place, or the rows of the table are loaded so",
        evidence="transformers#2506, structural-probes#13",
        replaces={"embedding.segment_embedding": on_call(_first_two_exchanged)},
    ),
)
