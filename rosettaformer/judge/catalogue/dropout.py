"""Known bugs of dropout."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import dropout

from ..expectation.patching import patched
from .alteration import Altered, Variants, bound, called, on_arguments, on_call


def drawn(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """Draws a new random keep mask at every call."""
    return np.random.default_rng().random(shape) >= rate


def _always_active(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    return original(x, drawn(x.shape, rate) if keep is None else keep, rate)


def _shrunk(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    y = original(x, keep, 0.0)
    return y if keep is None else y * x.dtype.type(1 - rate)


def _expected(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    return original(x, keep, rate) if keep is not None else x * x.dtype.type(1 - rate)


def _drawn_for(keep: str, rate: str, output: str) -> Callable:
    """Draws a missing keep mask if the rate is above 0. output: the array that is dropped."""

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
    """Draws a keep mask for a site ({}: sub-layer). array: the argument that is dropped."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        name, rate = site.format(given.get("name")), given["config"].dropout_rate
        if rate > 0 and name not in (given["keep"] or {}):
            given["keep"] = dict(given["keep"] or {}) | {name: drawn(given[array].shape, rate)}
        return original(**given)

    return altered


def _of_logits(original: Callable, *args: Any, **options: Any) -> Any:
    """Applies dropout to the attention logits."""
    given = bound(original, *args, **options)
    keep_bhts, rate = given["keep_bhts"], given["dropout_rate"]
    if keep_bhts is None:
        return original(*args, **options)
    with patched({"softmax.softmax": on_arguments(logits=lambda logits: dropout.dropout(logits, keep_bhts, rate))}):
        return called(original, **given | {"keep_bhts": None})


def _renormalised(original: Callable, *args: Any, **options: Any) -> Any:
    """Divides the attention weights by their sum after dropout."""
    given = bound(original, *args, **options)
    keep_bhts = given["keep_bhts"]
    if keep_bhts is None:
        return original(*args, **options)
    with patched({"softmax.softmax": on_arguments(mask=lambda mask: keep_bhts if mask is None else keep_bhts & mask)}):
        return called(original, **given | {"keep_bhts": None})


ALTERED: Altered = {
    "DRP1": {"dropout.dropout": _always_active},
    "DRP3": {"dropout.dropout": on_arguments(keep=None)},
    "DRP4": {"dropout.dropout": on_arguments(rate=0.0)},
    "DRP6": {"attention.scaled_dot_product_attention": _of_logits},
    "DRP7": {"dropout.dropout": _expected},
}
VARIANTS: Variants = {
    "DRP1": {
        "dropout of the sub-layers' outputs stays on in evaluation": {"layers.residual_out": _dropped("{}_dropout", "y_btd")},
        "dropout of the feed-forward's hidden layer stays on in evaluation": {
            "feed_forward.feed_forward": _drawn_for("keep_btf", "dropout_rate", "x_btd")
        },
        "dropout of the classifier stays on in evaluation": {"heads.classifier": _drawn_for("keep_br", "dropout_rate", "pooled_br")},
    },
    "DRP4": {
        "the rate is read as the probability of keeping a value": {
            "dropout.dropout": on_call(lambda rate, **given: {"rate": 1 - rate} if rate > 0 else {})
        },
        "kept values are multiplied by 1 - rate instead of divided": {"dropout.dropout": _shrunk},
    },
    "DRP6": {
        "the attention weights are normalized again after dropout": {"attention.scaled_dot_product_attention": _renormalised},
    },
}
