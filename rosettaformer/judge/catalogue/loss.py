"""Known bugs of the loss and its gradient; settings of distribution, divisor and logarithm."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, loss, softmax

from .alteration import Alteration, Altered, Array, Variants, on_arguments, on_call, on_result, setting, settings

Target = Callable[[Array, float, int], Array]
Weight = Callable[[Array, int], Array]
Curve = tuple[Callable[[Array], Array], Callable[[Array], Array]]  # of log p, and its derivative
BOTH = ("loss.cross_entropy", "loss.cross_entropy_vjp")  # have the same arguments
LOG: Curve = (lambda log_p: log_p, np.ones_like)


def smoothed(label_btv: Array, smoothing: float, size: int) -> Array:
    """The reference's distribution: `(1 - e) [v = label] + e / V`."""
    return (1 - smoothing) * label_btv + smoothing / size


def weighted(counted_bt: Array, count: int) -> Array:
    """The reference's weight of each label's loss."""
    return counted_bt / count


def scored(
    target: Target = smoothed, weight: Weight = weighted, curve: Curve = LOG, divergence: bool = False
) -> Mapping[str, Callable]:  # fmt: skip
    """Replaces parts of the loss and its gradient.

    target: (one-hot labels `b t v`, smoothing, V) -> smoothed labels. weight: (labels that count `b
    t`, total) -> the weight of each loss. curve: replaces log p. divergence: adds `sum q log q` to
    each label's loss (KL divergence).
    """

    def altered(
        original: Callable, logits_btv: Array, label_bt: Array, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None,
        cotangent: Any = None,
    ) -> Any:  # fmt: skip
        x_btv, size = arithmetic.upcast_half(logits_btv), logits_btv.shape[-1]
        number = x_btv.dtype.type
        counted_bt = np.ones(label_bt.shape, bool) if mask_bt is None else mask_bt
        count = max(int(counted_bt.sum()) if total is None else total, 1)
        q_btv = target((label_bt[..., None] == np.arange(size)).astype(x_btv.dtype), smoothing, size)
        weight_bt, log_p_btv = weight(counted_bt, count).astype(x_btv.dtype), loss.log_softmax(x_btv)
        value, slope = curve
        if cotangent is not None:
            score_btv = -q_btv * slope(log_p_btv)
            gradient_btv = score_btv - np.exp(log_p_btv) * arithmetic.sum(score_btv, axis=-1)
            factor_bt = weight_bt * np.asarray(cotangent).astype(number)
            return {"logits_btv": (gradient_btv * factor_bt[..., None]).astype(logits_btv.dtype)}
        loss_bt = -arithmetic.sum(q_btv * value(log_p_btv), axis=-1)[..., 0]
        if divergence:
            loss_bt = loss_bt + arithmetic.sum(q_btv * np.log(np.where(q_btv > 0, q_btv, number(1))), axis=-1)[..., 0]
        counts_bt = np.where(weight_bt != 0, loss_bt, number(0)) * weight_bt
        return arithmetic.sum(counts_bt.reshape(-1), axis=0).reshape(()).astype(logits_btv.dtype)

    return dict.fromkeys(BOTH, altered)


def spread_over_fewer(fewer: int, left_out: int | None = None) -> Target:
    """Gives the label `1 - e`, other tokens `e / (V - fewer)`, and `left_out` always 0."""

    def target(label_btv: Array, smoothing: float, size: int) -> Array:
        q_btv = (1 - smoothing) * label_btv + smoothing / max(size - fewer, 1) * (1 - label_btv)
        return q_btv if left_out is None else q_btv * (np.arange(size) != left_out)

    return target


KL = scored(divergence=True)


def lost_mass(
    original: Callable, logits_btv: Array, label_bt: Array, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None, **options: Any
) -> Any:
    """Gives the label 1 - smoothing and other tokens smoothing / V: less than 1 in total."""
    lost = scored(lambda label_btv, e, size: (1 - e) * label_btv + e / size * (1 - label_btv))[BOTH[0]]
    return lost(original, logits_btv, label_bt, mask_bt, smoothing, total, **options)


_TARGETS: dict[str, tuple[str, Target]] = {
    "V - 2": ("label smoothing is spread as e / (V - 2) over every token but the label", spread_over_fewer(2)),
    "V - 1 of all": ("label smoothing adds e / (V - 1) to all V tokens, which sums to more than 1",
                     lambda y, e, size: (1 - e) * y + e / (size - 1)),
    "label whole": ("the label keeps 1 and every other token gets e / V, which sums to more than 1",
                    lambda y, e, size: y + e / size * (1 - y)),
    "label whole, V - 1": ("the label keeps 1 and every other token gets e / (V - 1), which sums to more than 1",
                           lambda y, e, size: y + e / (size - 1) * (1 - y)),
    "added": ("label smoothing adds e / V to every token without reducing the label", lambda y, e, size: y + e / size),
    "sum": ("label smoothing multiplies the sum over the tokens instead of their mean", lambda y, e, size: (1 - e) * y + e),
    "sum of the others": ("label smoothing multiplies the sum over the other tokens instead of their mean",
                          lambda y, e, size: (1 - e) * y + e * (1 - y)),
    "no share": ("label smoothing only scales the label to 1 - e", lambda y, e, size: (1 - e) * y),
    "half": ("label smoothing gives every token e / 2, as with two classes", lambda y, e, size: (1 - e) * y + e / 2),
}  # fmt: skip
_WEIGHTS: dict[str, tuple[str, Weight]] = {
    "rows": ("the loss is divided by the number of rows", lambda counted_bt, count: counted_bt / len(counted_bt)),
    "length": ("the loss is divided by the length", lambda counted_bt, count: counted_bt / counted_bt.shape[1]),
    "one more": ("the loss is divided by the number of labels plus 1", lambda counted_bt, count: counted_bt / (count + 1)),
    "twice": ("the loss is divided by the number of labels twice", lambda counted_bt, count: counted_bt / count**2),
    "padding added": ("padding counts only in the loss, not in the divisor", lambda counted_bt, count: np.ones(counted_bt.shape) / count),
}  # fmt: skip
_CURVES: dict[str, tuple[str, Curve]] = {
    "log2": ("the logarithm has base 2", (lambda log_p: log_p / math.log(2), lambda log_p: np.full_like(log_p, 1 / math.log(2)))),
    "log10": (
        "the logarithm has base 10",
        (lambda log_p: log_p / math.log(10), lambda log_p: np.full_like(log_p, 1 / math.log(10))),
    ),
    "no logarithm": ("the loss is -p, without a logarithm", (np.exp, np.exp)),
}


def _added(epsilon: float) -> Curve:
    """`log(p + epsilon)`."""
    return lambda log_p: np.log(np.exp(log_p) + epsilon), lambda log_p: np.exp(log_p) / (np.exp(log_p) + epsilon)


def _clipped(epsilon: float) -> Curve:
    """`log(p)` with p clipped to [epsilon, 1 - epsilon]."""
    inside = math.log(epsilon), math.log1p(-epsilon)
    return lambda log_p: np.clip(log_p, *inside), lambda log_p: ((log_p >= inside[0]) & (log_p <= inside[1])).astype(log_p.dtype)


def _of(prefix: str, fix: str, rows: Mapping[str, tuple[str, Any]], scored: Callable) -> Iterator[Alteration]:
    return settings(prefix, "cross_entropy", fix, rows, *BOTH, of=lambda part: scored(part)[BOTH[0]])


def losses() -> Iterator[Alteration]:
    """Yields the settings of the loss."""
    fix = "q = (1 - smoothing) onehot + smoothing / V"
    title = "the smoothed label is 1 - e without its own e / V"
    yield setting("smoothing=mass lost", "cross_entropy", title, "add e / V to the label too", lost_mass, *BOTH)
    yield from _of("smoothing=", fix, _TARGETS, scored)
    fix = "divide by the number of real labels"
    given: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
        "over all positions": (
            "padding counts only in the divisor",
            lambda label_bt, **others: {"total": max(label_bt.size, 1)},
        ),
        "over all logits": ("the loss is divided by the number of logits", lambda logits_btv, **others: {"total": max(logits_btv.size, 1)}),
        "sum": ("the loss is a sum instead of a mean", lambda **others: {"total": 1}),
    }
    yield from settings("loss=", "cross_entropy", fix, given, *BOTH, of=on_call)
    yield from _of("loss=", fix, _WEIGHTS, lambda weight: scored(weight=weight))
    fix = "take log_softmax of the logits"
    curves = dict(_CURVES)
    for epsilon in (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12):
        curves[f"log(p + {epsilon:g})"] = f"{epsilon:g} is added to p before the logarithm", _added(epsilon)
        curves[f"log(p of at least {epsilon:g})"] = f"p is clipped to {epsilon:g} .. 1 - {epsilon:g}", _clipped(epsilon)
    yield from _of("loss=", fix, curves, lambda curve: scored(curve=curve))
    yield setting(
        "loss=sigmoids", "cross_entropy", "the loss is a binary cross-entropy per token instead of a softmax", fix, _of_sigmoids, BOTH[0]
    )
    yield setting("loss=exp", "cross_entropy", "the loss is the perplexity, exp(loss)", "return the loss itself", _exponential, BOTH[0])
    yield from _alignments()


def _of_sigmoids(
    original: Callable, logits_btv: Array, label_bt: Array, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None
) -> Array:
    """`-sum_v q log s + (1 - q) log(1 - s)`, s the sigmoid of each logit."""

    def sigmoids(_: Array) -> Array:
        x_btv = arithmetic.upcast_half(logits_btv)
        own_btv = label_bt[..., None] == np.arange(x_btv.shape[-1])
        q_btv = smoothed(own_btv.astype(x_btv.dtype), smoothing, x_btv.shape[-1])
        each_btv = q_btv * -np.logaddexp(0, -x_btv) + (1 - q_btv) * -np.logaddexp(0, x_btv)
        return np.where(own_btv, arithmetic.sum(each_btv, axis=-1), 0)

    only_label = scored(lambda y, e, size: y, curve=(sigmoids, np.ones_like))
    return only_label[BOTH[0]](original, logits_btv, label_bt, mask_bt, smoothing, total)


def _exponential(original: Callable, *args: Any, **options: Any) -> Array:
    return np.exp(original(*args, **options))


def _alignments() -> Iterator[Alteration]:
    """Yields settings that change the decoder's input or which labels count."""
    first = lambda x_bt: x_bt[:, :1]  # noqa: E731
    pairs: dict[str, tuple[str, Callable[[Array], tuple[Array, Array]]]] = {
        "input": ("the start token is dropped, and the labels are not shifted", lambda target: (target[:, 1:], target[:, 1:])),
        "two ahead": ("the labels are two tokens ahead and wrap around",
                      lambda target: (target[:, :-1], np.roll(target, -2, 1)[:, :-1])),
        "of the next row": ("the labels are those of the next row", lambda target: (target[:, :-1], np.roll(target, -1, axis=0)[:, 1:])),
        "from the end": ("the target is read backwards", lambda target: (target[:, :0:-1], target[:, -2::-1])),
        "without the start": ("the target's first token is dropped before shifting", lambda target: (target[:, 1:-1], target[:, 2:])),
        "without the end": ("the target's last token is dropped before shifting", lambda target: (target[:, :-2], target[:, 1:-1])),
        "start twice": ("a second start token is prepended, so the first one becomes a label",
                        lambda target: (np.concatenate([first(target), target[:, :-1]], axis=1), target)),
        "0 before": ("id 0 is prepended, so the start token becomes a label",
                     lambda target: (np.concatenate([0 * first(target), target[:, :-1]], axis=1), target)),
    }  # fmt: skip
    fix = "input, label = target[:, :-1], target[:, 1:]"
    yield from settings("labels=", "training_loss", fix, pairs, "loss.teacher_forcing", of=_forced)
    masks: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "mask of the input": ("labels are masked by the decoder's input instead of the labels",
                              lambda mask: np.concatenate([np.ones_like(first(mask)), mask[:, :-1]], axis=1)),
        "no last label": ("the last real label does not count, as if the end token were padding",
                          lambda mask: mask & np.concatenate([mask[:, 1:], np.zeros_like(first(mask))], axis=1)),
        "no first label": ("the first label does not count", lambda mask: mask & (np.arange(mask.shape[1]) > 0)),
        "padding alone": ("the loss mask is inverted: only padding counts", np.logical_not),
    }  # fmt: skip
    fix = "count exactly the labels that are not padding"
    yield from settings("labels=", "training_loss", fix, masks, *BOTH, of=_counted)


def _counted(keep: Callable[[Array], Array]) -> Callable:
    """Changes which labels count by a function of the mask."""

    def change(label_bt: Array, mask_bt: Any, **others: Any) -> dict[str, Any]:
        return {"mask_bt": keep(np.ones(label_bt.shape, bool) if mask_bt is None else mask_bt)}

    return on_call(change)


def _forced(change: Callable[[Array], tuple[Array, Array]]) -> Callable:
    return lambda original, target_bt: change(target_bt)


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


def _uniform_part(of_all: bool) -> Callable:
    """Lets padding count in the uniform part of label smoothing; of_all: the part is a mean over
    all positions.

    The loss is linear in the smoothing e, `L(e) = (1 - e) L(0) + e L(1)`, so that the uniform part
    is `L(1) = 2 L(1/2) - L(0)`.
    """

    def altered(
        original: Callable, logits_btv: Array, label_bt: Array, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        counted = label_bt.size if mask_bt is None else int(mask_bt.sum())
        own = original(logits_btv, label_bt, mask_bt, 0.0 if counted else smoothing, total, **options)
        if not counted:
            return own
        count = label_bt.size if of_all else counted if total is None else total
        none, half = (original(logits_btv, label_bt, None, e, count, **options) for e in (0.0, 0.5))
        if not isinstance(own, dict):
            return ((1 - smoothing) * own + smoothing * (2 * half - none)).astype(own.dtype)
        return {name: (1 - smoothing) * own[name] + smoothing * (2 * half[name] - none[name]) for name in own}

    return altered


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
    "LOS5": {"input and labels are swapped": {"loss.teacher_forcing": on_result(lambda pair: pair[::-1])}},
    "LOS8": {
        "label smoothing uses 1 - e instead of e": dict.fromkeys(
            BOTH, on_call(lambda smoothing, **given: {"smoothing": 1 - smoothing} if smoothing else {})
        ),
        "padding counts in the uniform part of label smoothing": dict.fromkeys(BOTH, _uniform_part(False)),
        "the uniform part of label smoothing is a mean over all positions, padding too": dict.fromkeys(BOTH, _uniform_part(True)),
    },
    "LOS9": {
        f"label smoothing is spread over V - 2 tokens and skips id {id_}{kind}": scored(spread_over_fewer(2, id_), divergence=bool(kind))
        for kind in ("", ", in a KL divergence")
        for id_ in range(4)
        if id_ or kind
    },
    "LOS10": {"the loss is the KL divergence, smoothed over the other V - 1 tokens only": scored(spread_over_fewer(1), divergence=True)},
}
