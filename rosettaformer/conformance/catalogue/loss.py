"""Defects of the loss, each with its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import softmax

from .alteration import Altered, Variants
from .combinators import on_arguments, on_call, on_result
from .loss_settings import BOTH, KL, scored, spread_over_fewer

Array = np.ndarray


def _shifted_again(original: Callable, target_bt: Array) -> tuple[Array, Array]:
    input_bt, label_bt = original(target_bt)
    return input_bt[:, :-1], label_bt[:, 1:]


def _by_rows(
    original: Callable, logits_btv: Array, label_bt: Array, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None, **options: Any
) -> Any:
    if label_bt.ndim < 2 or total is not None or not len(label_bt):
        return original(logits_btv, label_bt, mask_bt, smoothing, total, **options)
    masks = np.ones(label_bt.shape, bool) if mask_bt is None else mask_bt
    rows = [original(*(x[row : row + 1] for x in (logits_btv, label_bt, masks)), smoothing, **options) for row in range(len(label_bt))]
    if isinstance(rows[0], dict):
        return {name: np.concatenate([row[name] for row in rows]) / logits_btv.dtype.type(len(rows)) for name in rows[0]}
    return np.mean(np.stack(rows), axis=0, dtype=logits_btv.dtype)


def _of_probabilities(original: Callable, logits_btv: Array, *rest: Any, **options: Any) -> Any:
    result = original(softmax.softmax(logits_btv), *rest, **options)
    if not isinstance(result, dict):
        return result
    return {"logits_btv": softmax.softmax_vjp(logits_btv, cotangent=result["logits_btv"])["logits"]}


ALTERED: Altered = {
    "LOS1": scored(spread_over_fewer(1)),
    "LOS2": dict.fromkeys(BOTH, on_arguments(mask_bt=None)),
    "LOS3": dict.fromkeys(BOTH, on_arguments(total=None)),
    "LOS4": {"loss.teacher_forcing": _shifted_again},
    "LOS5": {"loss.teacher_forcing": on_result(lambda pair: (pair[0], pair[0]))},
    "LOS6": dict.fromkeys(BOTH, _of_probabilities),
    "LOS7": dict.fromkeys(BOTH, _by_rows),
    "LOS8": dict.fromkeys(BOTH, on_arguments(smoothing=0.0)),
    "LOS9": scored(spread_over_fewer(2, 0)),
    "LOS10": KL,
}
VARIANTS: Variants = {
    "LOS5": {
        "input and labels are exchanged: the model is given the next tokens": {"loss.teacher_forcing": on_result(lambda pair: pair[::-1])}
    },
    "LOS8": {
        "the label is smoothed by 1 - e": dict.fromkeys(
            BOTH, on_call(lambda smoothing, **given: {"smoothing": 1 - smoothing} if smoothing else {})
        )
    },
    "LOS9": {
        f"the smoothing is spread over V - 2 tokens, and id {id_} has none{kind}": scored(spread_over_fewer(2, id_), divergence=bool(kind))
        for kind in ("", ", in the divergence of Kullback and Leibler")
        for id_ in range(4)
        if id_ or kind
    },
    "LOS10": {
        "the loss is the divergence of Kullback and Leibler, smoothed over the other tokens": scored(spread_over_fewer(1), divergence=True)
    },
}
