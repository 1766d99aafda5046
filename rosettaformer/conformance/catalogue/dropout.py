"""Defects of dropout."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import dropout, softmax

from .defect import Defect, bound, on_arguments, on_call

__all__ = ["DEFECTS"]


def drawn(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """A fresh random keep mask, another one at every call."""
    return np.random.default_rng().random(shape) >= rate


def _always_active(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    return original(x, drawn(x.shape, rate) if keep is None else keep, rate)


def _shrunk(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    y = original(x, keep, 0.0)
    return y if keep is None else y * x.dtype.type(1 - rate)


def _expected(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    return original(x, keep, rate) if keep is not None else x * x.dtype.type(1 - rate)


def _drawn_for(keep: str, rate: str, output: str) -> Callable:
    """The function with a random keep mask of its own, where it has none and its rate is above 0; output: the array that it drops."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        if given[keep] is None and given[rate] > 0:
            shape = given[output].shape
            given[keep] = drawn(
                (*shape[:-1], given["parameters"]["hidden"]["kernel"].shape[1]) if keep == "keep_btf" else shape, given[rate]
            )
        return original(**given)

    return altered


def _dropped(site: str, array: str) -> Callable:
    """The function whose keep masks hold a random one at this site, which drops one of its arguments; {} stands for its name."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        name, rate = site.format(given.get("name")), given["config"].dropout_rate
        if rate > 0 and name not in (given["keep"] or {}):
            given["keep"] = dict(given["keep"] or {}) | {name: drawn(given[array].shape, rate)}
        return original(**given)

    return altered


def _of_logits(original: Callable, *args: Any, **options: Any) -> Any:
    """The attention that drops its logits: they become 0, and are divided by 1 - rate where they are kept."""
    given = bound(original, *args, **options)
    keep_bhts, inner = given.pop("keep_bhts"), softmax.softmax
    if keep_bhts is None:
        return original(*args, **options)

    def dropping(logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return inner(dropout.dropout(logits, keep_bhts, given["dropout_rate"]), mask)

    with mock.patch.object(softmax, "softmax", dropping):
        return original(**given)


def _renormalised(original: Callable, *args: Any, **options: Any) -> Any:
    """The attention whose dropped weights are divided by their sum."""
    given = bound(original, *args, **options)
    keep_bhts, inner = given.pop("keep_bhts"), softmax.softmax
    if keep_bhts is None:
        return original(*args, **options)

    def hiding(logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return inner(logits, keep_bhts if mask is None else keep_bhts & mask)

    with mock.patch.object(softmax, "softmax", hiding):
        return original(**given)


DEFECTS = (
    Defect(
        id="DRP1",
        title="dropout is active in evaluation",
        what="`y = x / (1 - rate)` or 0 at random, also in evaluation: a layer built in the forward pass is always in training mode.",
        shows="Two evaluations of the same input differ. Evaluation with a rate above 0 shows it.",
        torch="self.dropout = nn.Dropout(rate)  # in __init__, so that .eval() reaches it; or F.dropout(x, rate, self.training)",
        tf="x = self.dropout(x, training=training)  # a layer of __init__; never training=True",
        jax="x = self.dropout(x, deterministic=not train)",
        variants={
            "the dropout of the sub-layers' outputs is active in evaluation": {"layers.residual_out": _dropped("{}_dropout", "y_btd")},
            "the dropout of the feed-forward's hidden layer is active in evaluation": {
                "feed_forward.feed_forward": _drawn_for("keep_btf", "dropout_rate", "x_btd")
            },
            "the dropout of the classifier is active in evaluation": {
                "heads.classifier": _drawn_for("keep_br", "dropout_rate", "pooled_br")
            },
        },
        evidence="semillero, pytorch#26338",
        replaces={"dropout.dropout": _always_active},
        random=True,
    ),
    Defect(
        id="DRP3",
        title="dropout stays off in training",
        what="`y = x` although training asks for dropout: an evaluation set the rate to 0 and nothing set it back.",
        shows="Training overfits; evaluation is right. A given keep mask shows it.",
        torch="rate = self.rate if self.training else 0.0  # a local name; self.rate stays as it is",
        tf="x = self.dropout(x, training=training)  # never self.dropout.rate = 0",
        jax="x = self.dropout(x, deterministic=not train)  # a fresh argument of every call",
        evidence="Megatron-LM#411",
        replaces={"dropout.dropout": on_arguments(keep=None)},
    ),
    Defect(
        id="DRP4",
        title="kept values are not divided by 1 - rate",
        what="`y = x` where kept, instead of `x / (1 - rate)`: evaluation then expects other magnitudes than training.",
        shows="Kept values are too small by 1 - rate. A given keep mask shows it.",
        torch="y = torch.where(keep, x / (1 - rate), 0)  # as F.dropout does",
        tf="y = tf.where(keep, x / (1 - rate), 0)  # as tf.nn.dropout does",
        jax="y = jnp.where(keep, x / (1 - rate), 0)  # as nn.Dropout does",
        variants={
            "the rate is the probability of keeping: kept values are divided by it": {
                "dropout.dropout": on_call(lambda rate, **given: {"rate": 1 - rate} if rate > 0 else {})
            },
            "kept values are multiplied by 1 - rate": {"dropout.dropout": _shrunk},
        },
        evidence="apex#816",
        replaces={"dropout.dropout": on_arguments(rate=0.0)},
    ),
    Defect(
        id="DRP6",
        title="dropout acts on the logits of the attention, not on its weights",
        component="scaled_dot_product_attention",
        what="`softmax(dropout(x)) V` instead of `dropout(softmax(x)) V`: a logit of 0 is an ordinary one.",
        shows="Nothing in evaluation; in training no weight is 0. A keep mask of the weights shows it.",
        variants={
            "the dropped weights are divided by their sum": {"attention.scaled_dot_product_attention": _renormalised},
        },
        torch="output = F.dropout(torch.softmax(logits, dim=-1), rate, self.training) @ value",
        tf="output = tf.matmul(self.dropout(tf.nn.softmax(logits), training=training), value)",
        jax="output = self.dropout(jax.nn.softmax(logits), deterministic=not train) @ value",
        evidence="Parakeet#74, fairseq#351",
        replaces={"attention.scaled_dot_product_attention": _of_logits},
    ),
    Defect(
        id="DRP7",
        title="values are multiplied by 1 - rate in evaluation",
        component="dropout",
        what="`(1 - rate) x` in evaluation, as where training does not divide by it; here training does.",
        shows="Every sub-layer's output is too small in evaluation. A rate above 0 shows it.",
        torch="return F.dropout(x, rate, self.training)  # divides by 1 - rate in training; nothing in evaluation",
        tf="return self.dropout(x, training=training)  # divides by 1 - rate in training; nothing in evaluation",
        jax="return self.dropout(x, deterministic=not train)  # divides by 1 - rate in training; nothing in evaluation",
        evidence="derived, not reported; Srivastava et al. 2014 define dropout so",
        replaces={"dropout.dropout": _expected},
    ),
)
