"""Defects of the embedding and of the head that is tied to it."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .defect import Defect, on_arguments, on_call

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
    table_vd = parameters["source_embedding" if config.share_embeddings else "target_embedding"]["table"]
    head = dict(parameters.get("logits", {})) | {"kernel": np.zeros_like(table_vd.T)}
    return {"parameters": dict(parameters) | {"logits": head}, "config": config.replace(tie_logits=False)}


DEFECTS = (
    Defect(
        id="EMB1",
        title="the sqrt(d) scale of the embedding is missing",
        what="`x = table[token]` instead of `x = sqrt(d) table[token]`, so that the positions drown the tokens.",
        shows="Every embedding is too small by sqrt(d). Any ids show it where the config scales embeddings.",
        torch="x = self.embedding(token) * math.sqrt(self.embedding.embedding_dim)",
        tf="x = self.embedding(token) * tf.cast(self.width, self.compute_dtype) ** 0.5",
        jax="x = self.embed(token) * jnp.sqrt(self.embed.features).astype(self.dtype)",
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
        replaces=dict.fromkeys(("transformer.encode", "transformer.decode"), on_call(_zero_padding_row)),
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
        evidence="transformers#13086",
        replaces={"transformer.decode": on_call(_zero_head)},
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
)
