"""Defects of the loss, each with its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import softmax

from .defect import Defect, on_arguments, on_call, on_result
from .loss_settings import BOTH, KL, scored, spread_over_fewer

__all__ = ["DEFECTS"]

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


DEFECTS = (
    Defect(
        id="LOS1",
        title="the smoothing is spread over the other tokens",
        what="`q = 1 - e` for the label and `e / (V - 1)` for every other token, instead of `q = (1 - e) onehot + e / V` over all V.",
        shows="The loss is larger by a part in V, which hardly shows in a large vocabulary. V = 5 shows it.",
        torch="F.cross_entropy(logits, labels, label_smoothing=e)  # (1 - e) onehot + e / V",
        tf="keras.losses.CategoricalCrossentropy(label_smoothing=e)  # (1 - e) onehot + e / V",
        jax="labels = optax.smooth_labels(jax.nn.one_hot(labels, V), e)  # (1 - e) onehot + e / V",
        evidence="icefall#107, fastai#1814",
        replaces=scored(spread_over_fewer(1)),
    ),
    Defect(
        id="LOS2",
        title="padding counts in the loss",
        what="The mean over every position, padding among them, instead of over the real labels.",
        shows="The loss depends on how long the padding is, and the model learns to predict it. Unequal rows show it.",
        torch="F.cross_entropy(logits, labels, ignore_index=padding_id)  # or reduction='none', times the mask, over its sum",
        tf="loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)  # Keras' own mean divides by the size of the batch",
        jax="loss = (losses * mask).sum() / mask.sum()",
        evidence="transformers#5919",
        replaces=dict.fromkeys(BOTH, on_arguments(mask_bt=None)),
    ),
    Defect(
        id="LOS3",
        title="microbatches are averaged one by one",
        what="Each part of a batch is divided by its own number of labels, instead of by that of the whole batch: a mean of means.",
        shows="A part with few labels weighs as much as one with many. Microbatches of unequal rows show it.",
        torch="loss = F.cross_entropy(logits, labels, reduction='sum', ignore_index=padding_id) / labels_of_the_whole_batch",
        tf="loss = tf.reduce_sum(losses * mask) / labels_of_the_whole_batch",
        jax="loss = (losses * mask).sum() / labels_of_the_whole_batch  # optax.MultiSteps takes the mean of means",
        evidence="transformers#34191",
        replaces=dict.fromkeys(BOTH, on_arguments(total=None)),
    ),
    Defect(
        id="LOS4",
        title="the labels are shifted twice",
        component="training_loss",
        what="The data are shifted already and the loss shifts again: position t is scored on token t + 2.",
        shows="The loss goes down, and the model learns to skip a token. Any target of three tokens shows it.",
        torch="loss = F.cross_entropy(logits.transpose(1, 2), labels)  # input target[:, :-1], labels target[:, 1:]; shift once",
        tf="loss = loss_function(labels, logits)  # input target[:, :-1], labels target[:, 1:]; shift once",
        jax="loss = cross_entropy(logits, labels)  # input target[:, :-1], labels target[:, 1:]; shift once",
        evidence="transformers#46898",
        replaces={"loss.teacher_forcing": _shifted_again},
    ),
    Defect(
        id="LOS5",
        title="the labels are not shifted",
        component="training_loss",
        what="Position t is scored on token t, which it was given, instead of on token t + 1.",
        shows="The loss falls to 0, and the model has learned to copy its input. Any target shows it.",
        variants={
            "input and labels are exchanged: the model is given the next tokens": {
                "loss.teacher_forcing": on_result(lambda pair: pair[::-1])
            }
        },
        torch="input, label = target[:, :-1], target[:, 1:]",
        tf="input, label = target[:, :-1], target[:, 1:]",
        jax="input, label = target[:, :-1], target[:, 1:]",
        evidence="transformers#27517, transformers#3711, macrocosm-os/pretraining#64",
        replaces={"loss.teacher_forcing": on_result(lambda pair: (pair[0], pair[0]))},
    ),
    Defect(
        id="LOS6",
        title="the loss takes probabilities for logits",
        what="`-log softmax(softmax(x))[label]`: the model ends in a softmax, and the loss has another.",
        shows="The loss hardly falls below log V - 1, and its gradients are small. Any logits show it.",
        torch="F.cross_entropy(logits, labels)  # takes logits; F.nll_loss takes log-softmax",
        tf="keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)  # the default takes probabilities",
        jax="optax.softmax_cross_entropy_with_integer_labels(logits, labels)  # takes logits",
        evidence="Transformer-GCN-QA#32, tflearn#562",
        replaces=dict.fromkeys(BOTH, _of_probabilities),
    ),
    Defect(
        id="LOS7",
        title="the loss is a mean of the rows' means",
        what="Each row is divided by its own number of labels and the rows by theirs, instead of all labels by the number of all.",
        shows="A label of a short row weighs more. Rows of unequal length show it.",
        torch="loss = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=padding_id)  # over all labels of the batch",
        tf="loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)",
        jax="loss = (losses * mask).sum() / mask.sum()",
        evidence="derived, not reported",
        replaces=dict.fromkeys(BOTH, _by_rows),
    ),
    Defect(
        id="LOS8",
        title="the labels are not smoothed",
        what="`-log p[label]`, whatever the smoothing: it is not passed on, or is used as another number.",
        shows="The training loss is too small, and the validation loss, which is not smoothed, agrees. Any smoothing shows it.",
        variants={
            "the label is smoothed by 1 - e": dict.fromkeys(
                BOTH, on_call(lambda smoothing, **given: {"smoothing": 1 - smoothing} if smoothing else {})
            )
        },
        torch="F.cross_entropy(logits, labels, label_smoothing=e)",
        tf="keras.losses.CategoricalCrossentropy(label_smoothing=e)",
        jax="labels = optax.smooth_labels(jax.nn.one_hot(labels, V), e)",
        evidence="derived, not reported",
        replaces=dict.fromkeys(BOTH, on_arguments(smoothing=0.0)),
    ),
    Defect(
        id="LOS9",
        title="the smoothing is spread over V - 2 tokens, and id 0 has none",
        what="`q = 1 - e` for the label, 0 for id 0, the padding, and `e / (V - 2)` for every other token, as the Annotated Transformer's "
        "`LabelSmoothing`, instead of `q = (1 - e) onehot + e / V`.",
        shows="The loss is another by a part in V. V = 5 shows it.",
        variants={
            f"the smoothing is spread over V - 2 tokens, and id {id_} has none{kind}": scored(
                spread_over_fewer(2, id_), divergence=bool(kind)
            )
            for kind in ("", ", in the divergence of Kullback and Leibler")
            for id_ in range(4)
            if id_ or kind
        },
        torch="F.cross_entropy(logits, labels, label_smoothing=e)  # (1 - e) onehot + e / V",
        tf="keras.losses.CategoricalCrossentropy(label_smoothing=e)  # (1 - e) onehot + e / V",
        jax="labels = optax.smooth_labels(jax.nn.one_hot(labels, V), e)  # (1 - e) onehot + e / V",
        evidence="the Annotated Transformer's LabelSmoothing, Translator-Transformer#1",
        replaces=scored(spread_over_fewer(2, 0)),
    ),
    Defect(
        id="LOS10",
        title="the loss is the divergence of Kullback and Leibler",
        what="`sum q (log q - log p)` instead of `- sum q log p`: `sum q log q`, which no parameter changes, is added.",
        shows="The training loss is smaller than the cross-entropy, and the gradients are the same. Any smoothing shows it.",
        variants={
            "the loss is the divergence of Kullback and Leibler, smoothed over the other tokens": scored(
                spread_over_fewer(1), divergence=True
            )
        },
        torch="F.cross_entropy(logits, labels, label_smoothing=e)  # nn.KLDivLoss adds sum q log q",
        tf="keras.losses.CategoricalCrossentropy(label_smoothing=e)  # keras.losses.KLDivergence adds sum q log q",
        jax="optax.softmax_cross_entropy(logits, labels)  # optax.kl_divergence adds sum q log q",
        evidence="the Annotated Transformer's LabelSmoothing, OpenNMT-py#432",
        replaces=KL,
    ),
)
