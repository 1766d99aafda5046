"""Defects of which table is read, by what an embedding is multiplied, and how positions join it; and of what the logits become."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, embedding, feed_forward, inputs, positional_encoding, softmax

from .defect import CONFIGURED, LOADED, Defect, on_call, on_result

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
SUM = "inputs._summed"
POSITIONS = ("positional_encoding.positional_encoding", "positional_encoding.position_embedding")


def _tables(**others: str) -> Replaces:
    """The tokens of one side looked up in the table of another, where it has all their ids."""

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
    """A scaled embedding multiplied further by a function of v and d."""

    def altered(original: Callable, parameters: Any, token: Array, scale: bool) -> Array:
        x_btd = original(parameters, token, scale)
        return x_btd * x_btd.dtype.type(factor(*parameters["table"].shape)) if scale else x_btd

    return {"embedding.embedding": altered}


def _scaled_sum(original: Callable, parameters: Any, config: Any, *rest: Any) -> Array:
    x_btd = original(parameters, config.replace(scale_embedding=False), *rest)
    return x_btd * x_btd.dtype.type(config.model_width**0.5) if config.scale_embedding else x_btd


def _multiplied(original: Callable, parameters: Any, config: Any, side: str, token: Array, *rest: Any) -> Array:
    embedded = embedding.embedding

    def nothing(*given: Any) -> Array:
        return np.zeros_like(embedded(*given))

    x_btd = embedded(parameters[inputs.table(config, side)], token, config.scale_embedding)
    with mock.patch.object(inputs.embedding, "embedding", nothing):
        return x_btd * original(parameters, config, side, token, *rest)


def _none_for_padding(original: Callable, parameters: Any, config: Any, side: str, token: Array, *rest: Any) -> Array:
    real_bt1 = inputs.mask.token_mask(token, config.padding_id)[..., None]
    encoding, learned = positional_encoding.positional_encoding, positional_encoding.position_embedding

    def hide(x_btd: Array) -> Array:
        return x_btd * real_bt1.astype(x_btd.dtype)

    with (
        mock.patch.object(positional_encoding, "positional_encoding", lambda *given: hide(encoding(*given))),
        mock.patch.object(positional_encoding, "position_embedding", lambda *given: hide(learned(*given))),
    ):
        return original(parameters, config, side, token, *rest)


def _output(change: Callable[[Array], Array]) -> Replaces:
    """Logits of tokens and of classes that go through a function, in float32 where they are half precision."""
    wide = on_result(lambda logits: change(arithmetic.upcast_half(logits)).astype(logits.dtype, copy=False))
    return dict.fromkeys(("embedding.logits", "heads.classifier"), wide)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(arithmetic.sum(arithmetic.exp(shifted), -1))


def _sigmoid(logits: Array) -> Array:
    number = logits.dtype.type
    return number(0.5) * (number(1) + arithmetic.tanh(number(0.5) * logits))


_TABLES: dict[str, Any] = {
    "torch": "memory = self.encoder(self.source_embedding(source)); x = self.decoder(self.target_embedding(target), memory)",
    "tf": "memory = self.encoder(self.source_embedding(source)); x = self.decoder(self.target_embedding(target), memory)",
    "jax": "memory = self.encoder(self.source_embed(source)); x = self.decoder(self.target_embed(target), memory)",
}
_SCALE: dict[str, Any] = {
    "torch": "x = self.embedding(token) * math.sqrt(width) + encoding  # once, and before the position is added",
    "tf": "x = self.embedding(token) * width**0.5 + encoding  # once, and before the position is added",
    "jax": "x = self.embed(token) * width**0.5 + encoding  # once, and before the position is added",
}
DEFECTS = (
    Defect(
        id="EMB10",
        title="the logits' kernel is the source's table",
        component="transformer",
        what="`logits = x E_source^T`: the head is tied to the encoder's embedding, not to the decoder's, or not to be tied at all.",
        shows="No error where the vocabularies are equally large. Two tables of one size show it.",
        torch="self.head.weight = self.target_embedding.weight  # the decoder's, where the config ties them",
        tf="logits = tf.matmul(x, self.target_embedding.embeddings, transpose_b=True)",
        jax="logits = self.target_embed.attend(x)",
        elsewhere=CONFIGURED,
        evidence="nematus#117",
        replaces={"transformer.head": _source_head},
    ),
    Defect(
        id="EMB11",
        title="the target is embedded by the source's table",
        component="transformer",
        what="`x = E_source[target]`: one embedding serves both languages although the config has two, or the two are exchanged.",
        shows="No error where the source's vocabulary is as large. Two tables show it.",
        elsewhere=f"{LOADED}. Or {CONFIGURED}",
        variants={
            "the source is embedded by the target's table": _tables(source="target"),
            "the tables of source and target are exchanged": _tables(source="target", target="source"),
        },
        **_TABLES,
        evidence="Pytorch-Simple-Transformer#1",
        replaces=_tables(target="source"),
    ),
    Defect(
        id="EMB12",
        title="the embedding is multiplied by d",
        what="`x = d E[token]`, as after two factors of sqrt(d), or another factor than sqrt(d).",
        shows="Every embedding is too large or too small by one factor. Any ids show it where the config scales embeddings.",
        variants={
            "the embedding is divided by sqrt(d)": _times(lambda v, d: 1 / d),
            "the embedding is multiplied by sqrt(v) of the vocabulary": _times(lambda v, d: (v / d) ** 0.5),
        },
        **_SCALE,
        evidence="pytorch/tutorials#2849",
        replaces=_times(lambda v, d: d**0.5),
    ),
    Defect(
        id="PE18",
        title="the sum of embedding and position is multiplied by sqrt(d)",
        component="transformer",
        what="`sqrt(d) (E[token] + PE)` instead of `sqrt(d) E[token] + PE`.",
        shows="The positions drown the tokens. Any tokens show it where the config scales embeddings.",
        variants={
            "the positions are multiplied by sqrt(d), too": dict.fromkeys(
                POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** 0.5))
            ),
            "the positions are divided by sqrt(d)": dict.fromkeys(POSITIONS, on_result(lambda x: x * x.dtype.type(x.shape[-1] ** -0.5))),
            "the embedding is multiplied by the position, not added": {SUM: _multiplied},
            "the position is subtracted": dict.fromkeys(POSITIONS, on_result(np.negative)),
            "the position is added twice": dict.fromkeys(POSITIONS, on_result(lambda x: x + x)),
        },
        **_SCALE,
        evidence="Kyubyong/transformer#60",
        replaces={SUM: _scaled_sum},
    ),
    Defect(
        id="PE19",
        title="padding tokens have no position",
        component="transformer",
        what="The position of the padding id is a row of zeros, as in fairseq's tables, whose padding_idx row is zero.",
        shows="Only what stands at padding differs, which nothing real attends to. Padding shows it.",
        torch="x = self.embedding(token) + encoding[:, : token.size(1)]  # padding is masked in the attention",
        tf="x = self.embedding(token) + encoding[:, : tf.shape(token)[1]]  # padding is masked in the attention",
        jax="x = self.embed(token) + encoding[:, : token.shape[1]]  # padding is masked in the attention",
        evidence="derived, not reported",
        replaces={SUM: _none_for_padding},
    ),
    Defect(
        id="OUT1",
        title="the output is a softmax of the logits",
        component="logits",
        what="`softmax(x W + b)`, or another function of the logits, instead of `x W + b`.",
        shows="No output is below 0, and every row sums to 1. A loss that takes logits then takes the softmax twice. Any input shows it.",
        variants={
            "the output is a log-softmax of the logits": _output(_log_softmax),
            "the output is a sigmoid of the logits": _output(_sigmoid),
            "the output is a tanh of the logits": _output(arithmetic.tanh),
            "the output is the logits above 0: ReLU": _output(lambda logits: np.maximum(logits, 0)),
            "the output is a GELU of the logits": _output(lambda logits: feed_forward.activation(logits, "gelu_erf")),
        },
        torch="return self.head(x)  # F.cross_entropy takes logits; F.softmax(logits, -1) where probabilities are wanted",
        tf="return self.head(x)  # Dense without activation; SparseCategoricalCrossentropy(from_logits=True)",
        jax="return self.head(x)  # optax.softmax_cross_entropy_with_integer_labels takes logits",
        evidence="Transformer-GCN-QA#32, pytorch/examples#714",
        replaces=_output(softmax.softmax),
    ),
)
