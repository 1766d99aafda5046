"""Known bugs of an encoder-only model's heads: pooler and masked-language head."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, embedding, feed_forward, mask, normalization
from reference_numpy.values import Text

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_arguments


def _mean_of_tokens(original: Callable, parameters: Any, config: Any, head: str, source: Text | Array, keep: Any = None) -> Array:
    """Returns the mean of the real tokens instead of the pooler's output."""
    text = Text.of(source)
    real_bs = mask.token_mask(text.ids, config.padding_id) if text.mask_bt is None else text.mask_bt

    def mean(pooler: Callable, own: Any, x_bsd: Array, activation_name: str = "tanh") -> Array:
        weight_bs = real_bs.astype(x_bsd.dtype)
        count_b1 = np.maximum(arithmetic.sum(weight_bs, -1), weight_bs.dtype.type(1))
        return arithmetic.einsum("bsd,bs->bd", x_bsd, weight_bs) / count_b1

    with patched({"heads.pooler": mean}):
        return original(parameters, config, head, source, keep)


def _without_transform(original: Callable, parameters: Any, x_bsd: Array, config: Any) -> Array:
    return embedding.logits(parameters["logits"], x_bsd)


def _between(steps: Callable[..., Array]) -> Replaces:
    """Replaces the steps between the masked-language head's products.

    steps: a function of the hidden vectors, the activation and the norm.
    """

    def altered(original: Callable, parameters: Any, x_bsd: Array, config: Any) -> Array:
        active = functools.partial(feed_forward.activation, name=config.activation)
        norm = functools.partial(normalization.norm, parameters["norm"], config)
        hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
        return embedding.logits(parameters["logits"], steps(hidden_bsr, active, norm))

    return {"heads.masked_language_head": altered}


ALTERED: Altered = {
    "HED1": {"heads.pooler": on_arguments(x_bsd=lambda x_bsd: x_bsd[:, -1:])},
    "HED2": {"transformer.encoder_output": _mean_of_tokens},
    "HED3": {"heads.active": lambda original, x, name: x},
    "HED4": {"heads.pooler": lambda original, parameters, x_bsd, activation_name: x_bsd[:, 0]},
    "HED5": {"heads.masked_language_head": _without_transform},
    "HED6": _between(lambda hidden_bsr, active, norm: active(hidden_bsr)),
}
VARIANTS: Variants = {
    "HED2": {
        "the pooler uses the mean of all tokens, including padding": {
            "heads.pooler": on_arguments(x_bsd=lambda x_bsd: arithmetic.mean(x_bsd, 1))
        },
        "the pooler uses the maximum over the tokens": {"heads.pooler": on_arguments(x_bsd=lambda x_bsd: x_bsd.max(axis=1, keepdims=True))},
    },
    "HED3": {
        "the pooler uses ReLU instead of tanh": {"heads.active": lambda original, x, name: original(x, "relu")},
        "the pooler uses GELU instead of tanh": {"heads.active": lambda original, x, name: feed_forward.activation(x, "gelu_erf")},
    },
    "HED5": {
        "the masked-language head has no activation": _between(lambda hidden_bsr, active, norm: norm(hidden_bsr)),
        "the masked-language head's norm comes before its activation": _between(lambda hidden_bsr, active, norm: active(norm(hidden_bsr))),
    },
}
