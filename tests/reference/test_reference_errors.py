"""Bad input to the reference: the whole message, which says what is required and then what came; and the batch of 0, which is no error.

What the ports refuse with the same words is in `test_bad_input`.
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
    layers,
    loss,
    mask,
    normalization,
    optimizer,
    positional_encoding,
    preset,
    schedule,
    stacks,
    transformer,
)
from reference_numpy.softmax import softmax

CONFIG = preset("tiny", source_vocabulary=7, target_vocabulary=7, model_width=6, heads=4, key_value_heads=2, key_size=3, value_size=5)
MODEL = tree(CONFIG, 0)
ENCODER_LAYER, DECODER_LAYER = MODEL["encoder"]["layers"]["0"], MODEL["decoder"]["layers"]["0"]
MHA, NORM, NETWORK = ENCODER_LAYER["self_attention"], ENCODER_LAYER["feed_forward_norm"], ENCODER_LAYER["feed_forward"]

IDS, X = np.ones((2, 3), int), np.zeros((2, 3, 6))
LOGITS, ONE = np.zeros((2, 3, 7)), np.ones(())
QUERY, KEY, VALUE = np.zeros((2, 3, 4, 3)), np.zeros((2, 5, 2, 3)), np.zeros((2, 5, 2, 5))


def true(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def model(source: np.ndarray = IDS, target: np.ndarray = IDS, *masks: Any) -> np.ndarray:
    return transformer.transformer(MODEL, CONFIG, source, target, *masks)


def attend(query: np.ndarray = QUERY, key: np.ndarray = KEY, value: np.ndarray = VALUE, **arguments: Any) -> Any:
    return attention.scaled_dot_product_attention(query, key, value, **arguments)


def embed(token: np.ndarray) -> np.ndarray:
    return embedding.embedding(MODEL["source_embedding"], token, True)


def entropy(logits: np.ndarray = LOGITS, label: np.ndarray = IDS, *arguments: Any) -> Any:
    return loss.cross_entropy(logits, label, *arguments)


def step(number: int) -> Any:
    tree_of_one = {"kernel": np.ones(1)}
    return optimizer.adam(tree_of_one, tree_of_one, tree_of_one, tree_of_one, number, 0.1, 0.9, 0.98, 1e-9)


KINDS = "token … b t … b t v; got "
REAL = "must be boolean, True = real token; got "
DROPPED = "dropout rate … 0 … 1; got "

BAD_INPUT: list[tuple[Callable[[], Any], str]] = [
    # ids
    (lambda: embed(np.array([[200]], np.uint8)), "token ids … 0 .. 6; got 200"),
    (lambda: embed(np.ones((2, 3, 7), int)), KINDS + "int64 of shape (2, 3, 7)"),
    (lambda: embed(np.ones((2, 3, 7), complex)), KINDS + "complex128 of shape (2, 3, 7)"),
    # lengths of 0
    (lambda: attend(QUERY[:, :0]), "query … 1; got shape (2, 0, 4, 3)"),
    (lambda: attend(QUERY, KEY[:, :0], VALUE[:, :0]), "key … 1; got shape (2, 0, 2, 3)"),
    (lambda: attention.multi_head_attention(MHA, X, X[:, :0]), "memory … 1; got shape (2, 0, 6)"),
    (lambda: normalization.layer_norm(NORM, X[:, :0], 1e-5), "x … 1; got shape (2, 0, 6)"),
    (lambda: feed_forward.feed_forward(NETWORK, X[:, :0], "relu"), "x … 1; got shape (2, 0, 6)"),
    (lambda: embedding.logits({"kernel": np.ones((6, 7))}, X[:, :0]), "x … 1; got shape (2, 0, 6)"),
    # masks
    (lambda: attend(mask_bhts=true(2, 2, 3, 5)), "mask … b h t s = (2, 4, 3, 5); got shape (2, 2, 3, 5)"),
    (lambda: softmax(np.ones((2, 3)), true(3, 3)), "mask must broadcast to the logits = (2, 3); got shape (3, 3)"),
    (lambda: softmax(np.ones((2, 3)), true(3)), "mask must broadcast to the logits = (2, 3); got shape (3,)"),
    (lambda: layers.encoder_layer(ENCODER_LAYER, CONFIG, X, true(2, 1, 1, 4)),
     "mask … b h t s = (2, 4, 3, 3); got shape (2, 1, 1, 4)"),
    (lambda: layers.decoder_layer(DECODER_LAYER, CONFIG, X, X, true(2, 1, 3, 4)),
     "mask … b h t s = (2, 4, 3, 3); got shape (2, 1, 3, 4)"),
    (lambda: layers.decoder_layer(DECODER_LAYER, CONFIG, X, X, None, true(2, 1, 3, 4)),
     "mask … b h t s = (2, 4, 3, 3); got shape (2, 1, 3, 4)"),
    (lambda: model(IDS, IDS, np.ones((2, 3))), f"source mask {REAL}float64"),
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X, true(2, 4)), "source mask … b t = (2, 3); got shape (2, 4)"),
    (lambda: model(IDS, IDS, None, true(2, 1, 1, 3)), "target mask … b t = (2, 3); got shape (2, 1, 1, 3)"),
    # heads and widths
    (lambda: attend(QUERY[:, :, :1]), "h=1, g=2"),
    (lambda: attend(QUERY, KEY[:, :, :1]), "shapes (2, 5, 1, 3) and (2, 5, 2, 5)"),
    (lambda: attend(QUERY[0]), "query … shape (3, 4, 3)"),
    (lambda: attend(QUERY, KEY, VALUE[0]), "value … shape (5, 2, 5)"),
    (lambda: positional_encoding.positional_encoding(IDS, 0), "width … 1; got 0"),
    (lambda: attention.multi_head_attention(MHA, X[..., :5], X), "query … b t d … d=6; got shape (2, 3, 5)"),
    (lambda: attention.multi_head_attention(MHA, X[0], X), "query … b t d … d=6; got shape (3, 6)"),
    (lambda: feed_forward.feed_forward(NETWORK, X[..., :5], "relu"), "x … b t d … d=6; got shape (2, 3, 5)"),
    (lambda: feed_forward.activation(X, "gelu"), "activation … gelu_erf, gelu_tanh, gelu_sigmoid … 'gelu'"),
    (lambda: embedding.logits({"kernel": np.ones((6, 7))}, X[0]), "x … b t d … d=6; got shape (3, 6)"),
    (lambda: stacks.encoder(MODEL["encoder"], CONFIG, X[..., :5]), "query … b t d … d=6; got shape (2, 3, 5)"),
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X[..., :5]), "memory … b t d … d=6; got shape (2, 3, 5)"),
    # batches
    (lambda: transformer.decode(MODEL, CONFIG, IDS, X[:1]), "source 1, target 2"),
    (lambda: attention.multi_head_attention(MHA, X, X[:1]), "query 2, key 1, value 1"),
    # dropout
    (lambda: dropout.dropout(X, true(2, 3, 6), 1.0), DROPPED + "1.0"),
    (lambda: dropout.dropout(X, true(2, 3, 6), -0.5), DROPPED + "-0.5"),
    (lambda: dropout.dropout(X, true(2, 4, 6), 0.5), "keep must broadcast to the input = (2, 3, 6); got shape (2, 4, 6)"),
    # loss
    (lambda: loss.teacher_forcing(IDS[:, :1]), "target … 2 … shape (2, 1)"),
    (lambda: loss.teacher_forcing(IDS[0]), "target … b t; got int64 of shape (3,)"),
    (lambda: loss.teacher_forcing(X), "target … b t; got float64 of shape (2, 3, 6)"),
    (lambda: transformer.training_loss(MODEL, CONFIG, IDS, IDS[:, :1]),
     "target … 2 … shape (2, 1)"),
    (lambda: transformer.training_loss(MODEL, CONFIG, IDS, IDS[:1]), "source 2, target 1"),
    (lambda: entropy(np.zeros((2, 7))), "logits … b t v; got shape (2, 7)"),
    (lambda: entropy(np.zeros((2, 3, 0))), "logits … b t v; got shape (2, 3, 0)"),
    (lambda: entropy(label=IDS[:, :2]), "labels … b t = (2, 3); got int64 of shape (2, 2)"),
    (lambda: entropy(label=IDS[:1]), "labels … b t = (2, 3); got int64 of shape (1, 3)"),
    (lambda: entropy(label=IDS * 1.0), "labels … b t = (2, 3); got float64 of shape (2, 3)"),
    (lambda: entropy(label=true(2, 3)), "labels … b t = (2, 3) … shape (2, 3)"),
    (lambda: entropy(label=-IDS), "label ids … 0 .. 6; got -1"),
    (lambda: entropy(LOGITS, IDS, IDS), f"mask {REAL}int64"),
    (lambda: entropy(LOGITS, IDS, true(2, 1)), "mask … b t = (2, 3); got shape (2, 1)"),
    (lambda: entropy(LOGITS, IDS, None, -0.1), "smoothing … 0 … 1; got -0.1"),
    # gradients
    (lambda: loss.cross_entropy_vjp(LOGITS, 7 * IDS, cotangent=ONE), "label ids … 0 .. 6; got 7"),
    (lambda: transformer.training_loss_vjp(MODEL, CONFIG, IDS, IDS[:, :1], cotangent=ONE),
     "target … 2 … shape (2, 1)"),
    (lambda: transformer.transformer_vjp(MODEL, CONFIG, IDS, 7 * IDS, cotangent=LOGITS), "token ids … 0 .. 6; got 7"),
    (
        lambda: feed_forward.activation_vjp(X, "gelu", cotangent=X),
        "activation … gelu_erf, gelu_tanh, gelu_sigmoid … 'gelu'",
    ),
    (lambda: attention.scaled_dot_product_attention_vjp(QUERY[:, :, :3], KEY, VALUE, cotangent=X),
     "h=3, g=2"),
    (lambda: dropout.dropout_vjp(X, np.ones((2, 3, 6)), 0.5, cotangent=X), "keep … True = … float64"),
    # update
    (lambda: step(0), "step … 1; got 0"),
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
    assert model().shape == (2, 3, 7)
    assert attend(mask_bhts=true(2, 1, 3, 5), bias_bhts=np.zeros((1, 4, 1, 5)), causal=True).shape == (2, 3, 4, 5)
    assert embed(IDS.astype(np.uint8)).shape == (2, 3, 6)
    assert mask.token_mask(IDS[:0], 0).shape == (0, 3)
    assert mask.padding_mask(true(0, 3)).shape == (0, 1, 1, 3)
    assert mask.combine_masks(true(0, 1, 1, 3), mask.causal_mask(2, 3)).shape == (0, 1, 2, 3)  # type: ignore[union-attr]
    assert positional_encoding.token_positions(true(0, 3)).shape == (0, 3)
    _, weights = attend(QUERY[:0], KEY[:0], VALUE[:0], return_weights=True)
    assert weights.shape == (0, 4, 3, 5)


def zeros(part: Any, *shape: int) -> np.ndarray:
    """Zeros of the parameters' dtype."""
    return np.zeros(shape, part["source_embedding"]["table"].dtype)


EMPTY_BATCH: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "soft embedding": (lambda p: embedding.embedding(p["source_embedding"], zeros(p, 0, 3, 7), False), (0, 3, 6)),
    "dropout": (lambda p: dropout.dropout(zeros(p, 0, 3, 6), true(0, 3, 6), 0.5), (0, 3, 6)),
    "attention": (
        lambda p: attend(*(zeros(p, 0, *array.shape[1:]) for array in (QUERY, KEY, VALUE)), mask_bhts=true(0, 1, 1, 5), causal=True),
        (0, 3, 4, 5),
    ),
    "decode": (lambda p: transformer.decode(p, CONFIG, IDS[:0], zeros(p, 0, 5, 6), true(0, 5)), (0, 3, 7)),
    "transformer": (lambda p: transformer.transformer(p, CONFIG, np.ones((0, 5), int), IDS[:0]), (0, 3, 7)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("component", EMPTY_BATCH)
def test_a_batch_of_0_gives_an_empty_result_of_the_right_shape(component: str, dtype: Any) -> None:
    call, shape = EMPTY_BATCH[component]
    result = call(tree(CONFIG, 0, dtype=dtype))
    assert result.shape == shape
    assert result.dtype == dtype
