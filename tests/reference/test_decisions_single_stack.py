"""The decisions on encoder-only and decoder-only models (docs/decisions.md), by id: manually computed numbers and closed forms."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import tree

from reference_numpy import encoder_only, feed_forward, heads, inputs, layers, normalization, parameters, preset, sites, stacks, transformer
from reference_numpy.mask import padding_mask
from reference_numpy.positional_encoding import position_embedding, token_positions
from reference_numpy.values import Text

SIZES = {"source_vocabulary": 9, "target_vocabulary": 9, "model_width": 6, "heads": 2, "key_value_heads": 2, "key_size": 3, "value_size": 3}
BERT = preset("bert_base", **SIZES, feed_forward_width=5, encoder_layers=1, max_positions=8, padding_id=None, classes=3)
GPT2 = preset("gpt2_small", **SIZES, feed_forward_width=5, decoder_layers=1, max_positions=8)
IDS, MASK = np.array([[3, 1, 4, 1, 5]]), np.array([[False, False, True, True, True]])
ZERO = np.zeros((1, 5), int)


def test_POSITION_learned_are_rows_of_a_table_from_the_offset_on_and_start_by_config() -> None:
    table = np.arange(10.0).reshape(5, 2)
    assert_array_equal(position_embedding({"table": table}, np.array([[0, 2]]), 2)[0], [[4, 5], [8, 9]])
    with pytest.raises(ValueError, match=r"serves 8.*9"):
        transformer.decode(tree(GPT2, 0), GPT2, np.ones((1, 9), int))
    assert token_positions(MASK).tolist() == [[0, 0, 0, 1, 2]]
    assert token_positions(MASK, "row").tolist() == [[0, 1, 2, 3, 4]]
    assert (preset("bert_base").position_start, preset("gpt2_small").position_start) == ("row", "first_token")


def test_EMBED_adds_position_and_segment_then_normalises_then_drops() -> None:
    part, segment = tree(BERT, 1), np.array([[0, 1, 1, 0, 1]])
    tables = [part[f"source_{name}embedding"]["table"] for name in ("", "position_", "segment_")]
    summed = tables[0][IDS] + tables[1][np.arange(5)] + tables[2][segment]
    normed = normalization.layer_norm(part["source_embedding_norm"], summed, BERT.epsilon)
    assert_allclose(inputs.embed(part, BERT, "source", IDS, np.arange(5)[None], segment), normed, rtol=1e-14)
    keep = np.ones((1, 5, 6), bool)
    keep[0, 1] = False
    one = transformer.encode(part, BERT, Text(IDS, segment_bt=segment), {"encoder": {"embedding_dropout": keep}})
    assert_allclose(one, _encoded(part, np.where(keep, normed / (1 - BERT.dropout_rate), 0)), rtol=1e-12)


def test_EMBED_a_text_has_its_mask_and_its_segments_beside_its_ids() -> None:
    part, segment = tree(BERT, 1), np.array([[0, 1, 1, 0, 1]])
    x = inputs.embed(part, BERT, "source", IDS, np.arange(5)[None], segment)
    expected = stacks.encoder(part["encoder"], BERT, x, padding_mask(MASK))
    assert_array_equal(transformer.encode(part, BERT, Text(IDS, MASK, segment)), expected)
    assert_array_equal(transformer.encode(part, BERT, Text(IDS)), transformer.encode(part, BERT, IDS))
    assert np.abs(transformer.encode(part, BERT, Text(IDS, MASK)) - expected).max() > 1e-3
    assert np.abs(transformer.encode(part, BERT, Text(IDS, None, segment)) - expected).max() > 1e-3


def _encoded(part: dict, x_btd: np.ndarray) -> np.ndarray:
    return stacks.encoder(part["encoder"], BERT, x_btd)


def test_EMBED_without_segments_every_token_is_of_segment_0() -> None:
    part = tree(BERT, 2)
    assert_array_equal(transformer.encode(part, BERT, IDS), transformer.encode(part, BERT, Text(IDS, segment_bt=ZERO)))


def test_GELU_has_a_name_for_each_of_its_forms() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.7, 2.0])
    expected = {
        "gelu_erf": [v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x],
        "gelu_tanh": [v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x],
        "gelu_sigmoid": [v / (1 + math.exp(-1.702 * v)) for v in x],
        "relu_squared": [0.0, 0.0, 0.0, 0.7 * 0.7, 4.0],
    }
    for name, values in expected.items():
        assert_allclose(feed_forward.activation(x, name), values, rtol=1e-13, atol=1e-16)
    with pytest.raises(ValueError, match="activation"):
        feed_forward.activation(x, "gelu")


def test_ALONE_a_stack_has_nothing_of_the_other() -> None:
    names = parameters.axes(BERT)
    assert {name.partition(".")[0] for name in names} == {
        "source_embedding", "source_position_embedding", "source_segment_embedding", "source_embedding_norm", "encoder", "pooler",
        "classifier", "masked_language_head",
    }  # fmt: skip
    names = parameters.axes(GPT2)
    assert {name.partition(".")[0] for name in names} == {"target_embedding", "target_position_embedding", "decoder"}
    assert not [name for name in [*names, *sites.shapes(GPT2, 1, 0, 4)] if "cross" in name]
    assert parameters.ties(GPT2.replace(share_embeddings=True)) == {"logits.kernel": "target_embedding.table"}


def test_RESIDUAL_the_first_layer_may_read_its_input_without_a_norm() -> None:
    config = BERT.replace(norm_placement="pre", first_norm=False, encoder_layers=2, classes=0, pooler=False)
    part = tree(config, 6)["encoder"]["layers"]
    assert "self_attention_norm" not in part["0"] and "self_attention_norm" in part["1"]
    x = np.random.default_rng(0).standard_normal((1, 5, 6))
    normed = {"self_attention_norm": {"scale": np.ones(6), "offset": np.zeros(6)}}
    found = layers.encoder_layer(part["0"], config, x)
    read = x + layers.self_attention(part["0"], config, x)
    normalised = normalization.layer_norm(part["0"]["feed_forward_norm"], read, config.epsilon)
    assert_allclose(found, read + layers.network(part["0"], config, normalised), rtol=1e-13)
    assert np.abs(found - layers.encoder_layer(part["0"] | normed, config, x)).max() > 1e-2
    assert parameters.axes(config.replace(norm_placement="post")) == parameters.axes(config.replace(norm_placement="post", first_norm=True))


def test_HEADS_the_pooler_takes_the_first_token_though_it_is_padding_and_classes_a_dense_layer_after_dropout() -> None:
    part = tree(BERT, 3)
    x = transformer.encode(part, BERT, Text(IDS, MASK))
    kernel, bias = part["pooler"]["kernel"], part["pooler"]["bias"]
    assert_allclose(encoder_only.pool(part, BERT, Text(IDS, MASK)), np.tanh(x[:, 0] @ kernel + bias), rtol=1e-13)
    part, keep = tree(BERT, 4), np.array([[True, False, True, True, False, True]])
    pooled = encoder_only.pool(part, BERT, IDS)
    dropped = np.where(keep, pooled / (1 - BERT.classifier_dropout_rate), 0)
    expected = dropped @ part["classifier"]["kernel"] + part["classifier"]["bias"]
    assert_allclose(encoder_only.classify(part, BERT, IDS, keep={"classifier_dropout": keep}), expected, rtol=1e-13)


@pytest.mark.parametrize("tied", [True, False])
def test_HEADS_of_masked_tokens_are_dense_activation_norm_and_logits_with_a_bias_of_their_own(tied: bool) -> None:
    config = BERT.replace(tie_logits=tied)
    part = tree(config, 5)
    head, x = part["masked_language_head"], transformer.encode(part, config, IDS)
    hidden = feed_forward.activation(x @ head["hidden"]["kernel"] + head["hidden"]["bias"], "gelu_erf")
    normed = normalization.layer_norm(head["norm"], hidden, config.epsilon)
    kernel = part["source_embedding"]["table"].T if tied else head["logits"]["kernel"]
    assert_allclose(encoder_only.masked_language_logits(part, config, IDS), normed @ kernel + head["logits"]["bias"], rtol=1e-12)
    assert heads.masked_language_head({**head, "logits": {**head["logits"], "kernel": kernel}}, x, config).shape == (1, 5, 9)
