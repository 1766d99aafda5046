"""Bad input raises the same clear error in all four implementations, and an empty batch gives an empty result."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import Backend, of_four
from messages import mentions, naming

from reference_numpy import TransformerConfig, checks, parameters, preset
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation.components import model_of

CONFIG = preset("tiny", source_vocabulary=11, target_vocabulary=11, model_width=8, feed_forward_width=12)
SIZES = {"source_vocabulary": 11, "target_vocabulary": 11, "model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4,
         "value_size": 4, "feed_forward_width": 12, "max_positions": 4}  # fmt: skip
BERT = preset("bert_base", **SIZES, encoder_layers=1, padding_id=None, classes=3)
GPT2 = preset("gpt2_small", **SIZES, decoder_layers=1)
IDS = np.array([[1, 2, 3], [4, 5, 0]])
X = np.random.default_rng(0).standard_normal((2, 3, 8))
Q = np.random.default_rng(1).standard_normal((2, 3, 4, 5))
ALL = np.ones((2, 3), bool)

Answer = Callable[[Case], dict[str, Any]]


def _case(component: str, config: TransformerConfig = CONFIG, **inputs: Any) -> Case:
    rng = np.random.default_rng(2)
    try:
        shapes = parameters.shapes(config, model_of(component))
    except ValueError:
        shapes = {}
    return Case("bad", component, config, inputs, {name: rng.standard_normal(shape) for name, shape in shapes.items()}).at(
        "float32", mode="eager"
    )


def _attention(**changes: Any) -> Case:
    return _case("scaled_dot_product_attention", **({"query_bthk": Q, "key_bsgk": Q, "value_bsge": Q} | changes))


def _model(config: TransformerConfig = CONFIG, **changes: Any) -> Case:
    return _case("transformer", config, **({"source": IDS, "target": IDS} | changes))


WANTED = "b h t s = (2, 4, 3, 3)"
BAD = {
    "id_too_large": (_model(target=IDS + 6), "ids … 0 .. 10; got 11"),
    "id_negative": (_model(source=IDS - 1), "ids … 0 .. 10; got -1"),
    "ids_float": (_case("embedding", token=IDS * 1.0), "token … b t … b t v; got float32 of shape (2, 3)"),
    "ids_boolean": (_case("embedding", token=ALL), "got bool of shape (2, 3)"),
    "soft_rows_width": (_case("embedding", token=np.ones((2, 3, 7))), "token … vocabulary's size 11; got shape (2, 3, 7)"),
    "length_0": (_model(source=IDS[:, :0]), "1; got shape (2, 0)"),
    "batches_differ": (_model(target=IDS[:1]), "source 2, target 1"),
    "target_mask_dtype": (_model(target_mask_bt=ALL * 1.0), "target mask … True = … float32"),
    "mask_shape": (_attention(mask_bhts=np.ones((2, 1, 3, 4), bool)), f"mask … {WANTED}; got shape (2, 1, 3, 4)"),
    "mask_axes": (_attention(mask_bhts=ALL), f"mask … {WANTED}; got shape (2, 3)"),
    "mask_dtype": (_attention(mask_bhts=np.ones((2, 1, 3, 3), np.int32)), "mask … True = … int32"),
    "bias_shape": (_attention(bias_bhts=np.ones((2, 5, 3, 3))), f"bias … {WANTED}; got shape (2, 5, 3, 3)"),
    "bias_boolean": (_attention(bias_bhts=np.ones((2, 1, 3, 3), bool)), "bias … bool"),
    "mask_of_one_position": (_model(source_mask_bs=ALL[:, :1]), "mask … b t = (2, 3); got shape (2, 1)"),
    "head_sizes": (_attention(key_bsgk=Q[..., :4]), "5 and 4"),
    "heads_do_not_divide": (_attention(key_bsgk=Q[:, :, :3], value_bsge=Q[:, :, :3]), "h=4, g=3"),
    "key_value_positions": (_attention(value_bsge=Q[:, :2]), "shapes (2, 3, 4, 5) and (2, 2, 4, 5)"),
    "attention_batch": (_attention(key_bsgk=Q[:1], value_bsge=Q[:1]), "query 2, key 1, value 1"),
    "width": (_case("layer_norm", x_btd=X[..., :7]), "x … b t d … d=8; got shape (2, 3, 7)"),
    "axes": (_case("feed_forward", x_btd=X[0]), "x … b t d … d=8; got shape (3, 8)"),
    "memory_width": (_case("multi_head_attention", query_btd=X, memory_bsd=X[..., :5]), "memory … (2, 3, 5)"),
    "vectors_of_length_0": (_case("encoder_layer", x_btd=X[:, :0]), "1; got shape (2, 0, 8)"),
    "memory_batch": (_case("decoder_layer", x_btd=X, memory_bsd=X[:1]), "x 2, memory 1"),
    "softmax_mask": (_case("softmax", logits=X, mask=np.ones((2, 3, 8))), "mask … True = … float32"),
    "no_decoder": (_model(CONFIG.replace(decoder_layers=0)), "encoder-only"),
    "no_encoder": (_case("states", GPT2, source=IDS, target=IDS), "a decoder-only model (encoder_layers=0) takes no source; got one"),
    "source_of_a_decoder_alone": (_model(GPT2), "encoder_layers=0 … source; got one"),
    "source_missing": (_model(source=None), "source … None"),
    "target_of_an_encoder_alone": (_case("states", BERT, source=IDS, target=IDS), "encoder-only"),
    "target_missing": (_case("states", source=IDS), "target … None"),
    "segments_of_a_decoder_alone": (_model(GPT2, source=None, segment_bs=IDS * 0), "segment_bs; got one"),
    "source_mask_of_a_decoder": (_case("states", GPT2, target=IDS, source_mask_bs=ALL), "source_mask_bs"),
    "target_mask_of_an_encoder": (_case("states", BERT, source=IDS, target_mask_bt=ALL), "target_mask_bt"),
    "memory_of_a_decoder_alone": (_case("decoder", GPT2, x_btd=X, memory_bsd=X), "encoder_layers=0"),
    "memory_mask_of_a_decoder": (_case("decoder_layer", GPT2, x_btd=X, cross_mask_bhts=ALL), "source mask"),
    "segments_of_a_model_without": (_model(segment_bs=IDS * 0), "segments=0 … shape (2, 3)"),
    "segment_too_large": (_case("pool", BERT, source=IDS, segment_bs=IDS * 0 + 2), "segment must be in 0 .. 1; got 2 .. 2"),
    "segment_axes": (_case("pool", BERT, source=IDS, segment_bs=IDS[:, :2] * 0), "segment … b s = (2, 3); got shape (2, 2)"),
    "too_many_tokens": (_case("pool", BERT, source=np.ones((2, 5), int)), "serves 4 … 5"),
    "no_classes": (_case("classify", BERT.replace(classes=0), source=IDS), "classes=0"),
    "label_too_large": (_case("classification_loss", BERT, source=IDS, label_b=IDS[:, 2]), "label … got 3"),
    "label_of_a_loss_too_large": (_case("cross_entropy", logits_btv=X, label_bt=IDS + 5), "label ids … 0 .. 7; got 10"),
    "total_0": (_case("cross_entropy", logits_btv=X, label_bt=IDS, total=0), "total … 1; got 0"),
    "smoothing_1": (_case("cross_entropy", logits_btv=X, label_bt=IDS, smoothing=1), "smoothing … 0 … 1; got 1"),
    "keep_dtype": (_case("dropout", x=X, keep=np.ones((2, 3, 8))), "keep … True = … float32"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "name"), of_four(BAD), indirect=["answer"])
def test_bad_input_is_one_clear_error(answer: Answer, name: str) -> None:
    case, message = BAD[name]
    with pytest.raises(ValueError) as error:
        answer(case)
    assert mentions(str(error.value), message)


@pytest.mark.parametrize(
    ("component", "inputs", "shape"),
    [
        ("embedding", {"token": IDS[:0]}, (0, 3, 8)),
        ("softmax", {"logits": X[:0]}, (0, 3, 8)),
        ("scaled_dot_product_attention", {"query_bthk": Q[:0], "key_bsgk": Q[:0], "value_bsge": Q[:0]}, (0, 3, 4, 5)),
        ("multi_head_attention", {"query_btd": X[:0], "memory_bsd": X[:0]}, (0, 3, 8)),
        ("feed_forward", {"x_btd": X[:0]}, (0, 3, 8)),
        ("layer_norm", {"x_btd": X[:0]}, (0, 3, 8)),
        ("encoder_layer", {"x_btd": X[:0]}, (0, 3, 8)),
        ("decoder", {"x_btd": X[:0], "memory_bsd": X[:0]}, (0, 3, 8)),
        ("logits", {"x_btd": X[:0]}, (0, 3, 11)),
        ("transformer", {"source": IDS[:0], "target": IDS[:0, :2]}, (0, 2, 11)),
    ],
)
def test_an_empty_batch_gives_an_empty_result(answer: Answer, component: str, inputs: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert answer(_case(component, **inputs))["output"].shape == shape


def test_ids_segments_and_labels_are_checked_on_the_host_before_the_compiled_part(backend: Backend) -> None:
    """In a compiled program ids have no values. For TensorFlow's encoder-only models, only `Trainer` has compiled methods."""
    compiled, label = backend.part("programs.compiled").compiled, np.array([0, 2])
    both, alone = (backend.build("transformer", config) for config in (CONFIG, GPT2))
    loss = backend.build("transformer", BERT).classification_loss
    calls: list[tuple[Any, dict[str, np.ndarray], str]] = [
        (both, {"source": IDS, "target": IDS + 6}, "ids … 0 .. 10; got 11"),
        (alone, {"target": IDS + 6}, "ids … 0 .. 10; got 11"),
        (alone, {"target": np.ones((1, 5), int)}, "serves 4 … 5"),
        (alone, {"source": IDS, "target": IDS}, "takes no source; got one"),
    ]
    if backend.name != "tf":
        calls += [
            (loss, {"source": IDS + 6, "label_b": label}, "ids … 0 .. 10; got 11"),
            (loss, {"source": IDS, "label_b": label, "segment_bs": IDS}, "segment must be in 0 .. 1; got 0 .. 5"),
            (loss, {"source": IDS, "label_b": label + 1}, "label ids … 0 .. 2; got 3"),
        ]
    for function, inputs, message in calls:
        with pytest.raises(ValueError, match=naming(message)):
            given = {"source": None} | {name: backend.weights.from_numpy(array) for name, array in inputs.items()}
            compiled(function)(**({"source": None} | backend.texts(**given)))


class Symbol:
    """A size of a traced program: it can be compared for equality but not order, and has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __repr__(self) -> str:
        return self.name


def test_sizes_may_be_symbols() -> None:
    symbols: Any = map(Symbol, "bts")
    b, t, s = symbols
    shape = (b, t, 4, 8)
    checks.check_same_batch(source=(b, t), target=(b, s), mask=(None, t))
    checks.check_attention(shape, shape, shape)
    checks.check_mask((b, 1, 1, s), "bool", (b, 4, t, s))
    checks.check_token_mask("mask", (b, t), "bool", (b, t))
    checks.check_target((b, t), "int32")
    checks.check_labels((b, t, 7), (b, t), "int32", 0.1, None)
    checks.check_uniform((b,), (b,))
    with pytest.raises(ValueError, match="source b, target t"):
        checks.check_same_batch(source=(b, s), target=(t, s))
