"""Bad input to the reference: the whole message, which states the requirement and then the actual value. A batch of 0 is valid.

`test_bad_input` has the messages that the ports share.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from messages import mentions
from strategies import DTYPES, tree

from reference_numpy import (
    attention,
    dropout,
    embedding,
    feed_forward,
    loss,
    mask,
    optimizer,
    positional_encoding,
    preset,
    schedule,
    transformer,
)
from reference_numpy.scores import Scores
from reference_numpy.softmax import softmax
from reference_numpy.values import Heads

CONFIG = preset("tiny", source_vocabulary=7, target_vocabulary=7, model_width=6, heads=4, key_value_heads=2, key_size=3, value_size=5)
MODEL = tree(CONFIG, 0)
MHA = MODEL["encoder"]["layers"]["0"]["self_attention"]

IDS, X = np.ones((2, 3), int), np.zeros((2, 3, 6))
LOGITS = np.zeros((2, 3, 7))
QUERY, KEY, VALUE = np.zeros((2, 3, 4, 3)), np.zeros((2, 5, 2, 3)), np.zeros((2, 5, 2, 5))


def true(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def attend(query: np.ndarray = QUERY, key: np.ndarray = KEY, value: np.ndarray = VALUE, **arguments: Any) -> Any:
    return attention.scaled_dot_product_attention(Heads(query, key, value), **arguments)


def embed(token: np.ndarray) -> np.ndarray:
    return embedding.embedding(MODEL["source_embedding"], token, True)


DROPPED = "dropout rate … 0 … 1; got "

BAD_INPUT: list[tuple[Callable[[], Any], str]] = [
    # ids
    (lambda: embed(np.array([[200]], np.uint8)), "token ids … 0 .. 6; got 200"),
    (lambda: embed(np.ones((2, 3, 7), int)), "token … b t … b t v; got int64 of shape (2, 3, 7)"),
    # lengths of 0
    (lambda: attend(QUERY[:, :0]), "query … 1; got shape (2, 0, 4, 3)"),
    # masks
    (lambda: softmax(np.ones((2, 3)), true(3, 3)), "mask must broadcast to the logits = (2, 3); got shape (3, 3)"),
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X, true(2, 4)), "source mask … b t = (2, 3); got shape (2, 4)"),
    # heads and widths
    (lambda: attend(QUERY[0]), "query … shape (3, 4, 3)"),
    (lambda: positional_encoding.positional_encoding(IDS, 0), "width … 1; got 0"),
    (lambda: attention.multi_head_attention(MHA, CONFIG, X[..., :5], X), "query … b t d … d=6; got shape (2, 3, 5)"),
    (lambda: feed_forward.activation(X, "gelu"), "activation … gelu_erf, gelu_tanh, gelu_sigmoid … 'gelu'"),
    (lambda: embedding.logits({"kernel": np.ones((6, 7))}, X[0]), "x … b t d … d=6; got shape (3, 6)"),
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X[..., :5]), "memory … b t d … d=6; got shape (2, 3, 5)"),
    # batches
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X[:1]), "source 1, target 2"),
    # dropout
    (lambda: dropout.dropout(X, true(2, 3, 6), 1.0), DROPPED + "1.0"),
    (lambda: dropout.dropout(X, true(2, 3, 6), -0.5), DROPPED + "-0.5"),
    (lambda: dropout.dropout(X, true(2, 4, 6), 0.5), "keep must broadcast to the input = (2, 3, 6); got shape (2, 4, 6)"),
    # loss
    (lambda: loss.teacher_forcing(IDS[:, :1]), "target … 2 … shape (2, 1)"),
    (lambda: loss.teacher_forcing(IDS[0]), "target … b t; got int64 of shape (3,)"),
    (lambda: loss.cross_entropy(np.zeros((2, 7)), IDS), "logits … b t v; got shape (2, 7)"),
    (lambda: loss.cross_entropy(np.zeros((2, 3, 0)), IDS), "logits … b t v; got shape (2, 3, 0)"),
    (lambda: loss.cross_entropy(LOGITS, IDS[:, :2]), "labels … b t = (2, 3); got int64 of shape (2, 2)"),
    (lambda: loss.cross_entropy(LOGITS, true(2, 3)), "labels … b t = (2, 3) … shape (2, 3)"),
    (lambda: loss.cross_entropy(LOGITS, IDS, IDS), "mask must be boolean, True = real token; got int64"),
    # gradients
    (lambda: feed_forward.activation_vjp(X, "gelu", cotangent=X), "activation … gelu_erf … 'gelu'"),
    (lambda: attention.scaled_dot_product_attention_vjp(Heads(QUERY[:, :, :3], KEY, VALUE), cotangent=X), "g=2"),
    # update
    (lambda: optimizer.adam(*[{"kernel": X}] * 4, 0, 0.1, 0.9, 0.98, 1e-9), "step … 1; got 0"),
    (lambda: optimizer.clip_global_norm({"kernel": X}, 0.0), "limit … 0; got 0.0"),
    (lambda: optimizer.clip_global_norm({"kernel": X}, float("nan")), "limit … 0"),
    (lambda: schedule.noam(np.array([2, -1]), 4, 4), "step … 1; got [2, -1]"),
    (lambda: schedule.noam(1.0, 4, 4), "step … 1; got 1.0"),
    (lambda: schedule.noam(1, 0, 4), "width … 1; got 0"),
    (lambda: schedule.noam(1, 4, 0), "warmup … 1; got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_INPUT, ids=range(len(BAD_INPUT)))
def test_bad_input_is_refused_with_a_clear_message(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert mentions(str(caught.value), message)


def test_the_good_input_beside_the_bad_is_accepted_and_a_batch_of_0_of_masks_and_positions() -> None:
    assert transformer.transformer(MODEL, CONFIG, IDS, IDS).shape == (2, 3, 7)
    for mask_bhts in (true(2, 1, 3, 5), np.zeros((1, 4, 1, 5))):
        assert attend(mask_bhts=mask_bhts, scores=Scores(causal=True)).shape == (2, 3, 4, 5)
    assert embed(IDS.astype(np.uint8)).shape == (2, 3, 6)
    assert mask.token_mask(IDS[:0], 0).shape == (0, 3)
    assert mask.padding_mask(true(0, 3)).shape == (0, 1, 1, 3)
    assert mask.combine_masks(true(0, 1, 1, 3), mask.causal_mask(2, 3)).shape == (0, 1, 2, 3)  # type: ignore[union-attr]
    assert positional_encoding.token_positions(true(0, 3)).shape == (0, 3)
    assert attend(QUERY[:0], KEY[:0], VALUE[:0]).shape == (0, 3, 4, 5)
    assert attention.attention_weights(QUERY[:0], KEY[:0]).shape == (0, 4, 3, 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_of_0_gives_an_empty_result_of_the_right_shape(dtype: Any) -> None:
    part, ids = tree(CONFIG, 0, dtype=dtype), IDS[:0]
    soft, x, memory = (np.zeros(shape, dtype) for shape in ((0, 3, 7), (0, 3, 6), (0, 5, 6)))
    for result, width in (
        (embedding.embedding(part["source_embedding"], soft, False), 6),
        (dropout.dropout(x, true(0, 3, 6), 0.5), 6),
        (transformer.decode(part, CONFIG, ids, memory, true(0, 5)), 7),
    ):
        assert (result.shape, result.dtype) == ((0, 3, width), dtype)
