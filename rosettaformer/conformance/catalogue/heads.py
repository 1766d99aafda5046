"""Defects of the heads of an encoder alone: pooler and masked-language head."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, embedding, feed_forward, mask, normalization, transformer

from .defect import Defect, on_arguments

__all__ = ["DEFECTS"]

Array = np.ndarray


def _mean_of_tokens(
    original: Callable, parameters: Any, config: Any, source: Array, source_mask_bs: Any = None, keep: Any = None, segment_bs: Any = None
) -> Array:
    config.need("pooler")
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    real_bs = mask.token_mask(source, config.padding_id) if source_mask_bs is None else source_mask_bs
    real_bs = real_bs.astype(x_bsd.dtype)
    return arithmetic.einsum("bsd,bs->bd", x_bsd, real_bs) / np.maximum(arithmetic.sum(real_bs, -1), real_bs.dtype.type(1))


def _without_transform(original: Callable, parameters: Any, x_bsd: Array, activation_name: str, epsilon: float) -> Array:
    return embedding.logits(parameters["logits"], x_bsd)


def _without_norm(original: Callable, parameters: Any, x_bsd: Array, activation_name: str, epsilon: float) -> Array:
    hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
    return embedding.logits(parameters["logits"], feed_forward.activation(hidden_bsr, activation_name))


def _without_activation(original: Callable, parameters: Any, x_bsd: Array, activation_name: str, epsilon: float) -> Array:
    hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
    return embedding.logits(parameters["logits"], normalization.layer_norm(parameters["norm"], hidden_bsr, epsilon))


def _norm_first(original: Callable, parameters: Any, x_bsd: Array, activation_name: str, epsilon: float) -> Array:
    hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
    normed_bsr = normalization.layer_norm(parameters["norm"], hidden_bsr, epsilon)
    return embedding.logits(parameters["logits"], feed_forward.activation(normed_bsr, activation_name))


_POOLER: dict[str, Any] = {
    "torch": "pooled = torch.tanh(self.pooler(x[:, 0]))",
    "tf": "pooled = tf.tanh(self.pooler(x[:, 0]))",
    "jax": "pooled = jnp.tanh(self.pooler(x[:, 0]))",
}
_TRANSFORM: dict[str, Any] = {
    "torch": "logits = self.decoder(self.norm(F.gelu(self.dense(x))))",
    "tf": "logits = self.decoder(self.norm(keras.activations.gelu(self.dense(x))))",
    "jax": "logits = self.decoder(self.norm(jax.nn.gelu(self.dense(x), approximate=False)))",
}
DEFECTS = (
    Defect(
        id="HED1",
        title="the pooler takes the last token",
        what="`tanh(x[-1] W + b)`: the token that a decoder's classifier reads, which may be padding, instead of the first one ([CLS]).",
        shows="The pooled vector depends on the length of the padding. Two tokens show it.",
        **_POOLER,
        evidence="transformers#415",
        replaces={"heads.pooler": on_arguments(x_bsd=lambda x_bsd: x_bsd[:, -1:])},
    ),
    Defect(
        id="HED2",
        title="the mean of the real tokens stands for the pooled first one",
        component="pool",
        what="`sum_s mask x / sum_s mask`, the pooling of many sentence embeddings, instead of `tanh(x[0] W + b)`.",
        shows="Every pooled vector is another one, and nothing of the pooler reaches it. Any tokens show it.",
        **_POOLER,
        variants={
            "the mean of all tokens, padding among them, is pooled by the pooler": {
                "heads.pooler": on_arguments(x_bsd=lambda x_bsd: arithmetic.mean(x_bsd, 1))
            },
            "the largest of the tokens' features are pooled by the pooler": {
                "heads.pooler": on_arguments(x_bsd=lambda x_bsd: x_bsd.max(axis=1, keepdims=True))
            },
        },
        evidence="nixiesearch#465, txtai#565",
        replaces={"encoder_only.pool": _mean_of_tokens},
    ),
    Defect(
        id="HED3",
        title="the pooler lacks its tanh",
        what="`x[0] W + b` instead of `tanh(x[0] W + b)`.",
        shows="Pooled values go beyond 1. Any token shows it.",
        **_POOLER,
        variants={
            "the pooler has a ReLU for its tanh": {"heads._tanh": lambda original, x: np.maximum(x, x.dtype.type(0))},
            "the pooler has a GELU for its tanh": {"heads._tanh": lambda original, x: feed_forward.activation(x, "gelu_erf")},
        },
        evidence="google-research/bert#43, ggml#399",
        replaces={"heads._tanh": lambda original, x: x},
        component="pooler",
    ),
    Defect(
        id="HED4",
        title="the first token is taken without the pooler",
        what="`x[0]` instead of `tanh(x[0] W + b)`: the first row of the last hidden state is taken for the pooled output.",
        shows="The pooled vector is the first token's. Any token shows it.",
        **_POOLER,
        evidence="google-research/bert#1067, transformers#7540",
        replaces={"heads.pooler": lambda original, parameters, x_bsd: x_bsd[:, 0]},
    ),
    Defect(
        id="HED5",
        title="the masked-language head lacks its transform",
        what="`x W_v + b_v` instead of `norm(gelu(x W + b)) W_v + b_v`: the head is taken for a linear layer.",
        shows="All logits differ, and what the transform has learned is not used. Any token shows it.",
        **_TRANSFORM,
        variants={
            "the masked-language head lacks its activation": {"heads.masked_language_head": _without_activation},
            "the masked-language head's norm precedes its activation": {"heads.masked_language_head": _norm_first},
        },
        evidence="transformers#12215",
        replaces={"heads.masked_language_head": _without_transform},
    ),
    Defect(
        id="HED6",
        title="the masked-language head lacks its norm",
        what="`gelu(x W + b) W_v + b_v` instead of `norm(gelu(x W + b)) W_v + b_v`.",
        shows="All logits differ, the more the smaller the activations are. Any token shows it.",
        **_TRANSFORM,
        evidence="derived, not reported",
        replaces={"heads.masked_language_head": _without_norm},
    ),
)
