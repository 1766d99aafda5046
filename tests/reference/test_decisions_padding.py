"""The decision PADDING (docs/decisions.md) on the reference: padding positions that nothing reads are not computed."""

from typing import Any

import flat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import DTYPES, tree

from reference_numpy import TransformerConfig, parameters, preset, transformer
from reference_numpy.values import Text

SIZES = {"model_width": 6, "heads": 2, "key_value_heads": 2, "key_size": 3, "value_size": 3, "feed_forward_width": 5}
CONFIG = preset("tiny", **SIZES, source_vocabulary=9, target_vocabulary=9, encoder_layers=1, decoder_layers=1, padding_id=0)
GPT2 = preset("gpt2_small", **SIZES, source_vocabulary=9, target_vocabulary=9, decoder_layers=1, max_positions=8, padding_id=0)
SOURCE = np.array([[3, 1, 4, 1], [0, 5, 0, 2], [0, 0, 0, 0]])
TARGET = np.array([[3, 1, 4, 0, 0], [0, 0, 2, 6, 5], [3, 0, 8, 0, 7]])  # right, left and inner padding
REAL = TARGET != 0
OTHER = np.array([[True, True, False, True, False], [True] * 5, [False] * 5])


def _logits(
    target: np.ndarray = TARGET, config: TransformerConfig = CONFIG, dtype: Any = np.float64, target_mask_bt: Any = None,
    skip_padding: bool = False,
) -> np.ndarray:  # fmt: skip
    source = SOURCE if config.encoder_layers else None
    rows = transformer.transformer(tree(config, 0, dtype=dtype), config, source, Text(target, target_mask_bt))
    return transformer.real_rows(rows, config, target, target_mask_bt) if skip_padding else rows


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["both stacks", "decoder alone"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_PADDING_of_the_target_is_rows_of_zeros(config: TransformerConfig, dtype: Any) -> None:
    rows, skipped = _logits(config=config, dtype=dtype), _logits(config=config, dtype=dtype, skip_padding=True)
    assert skipped.dtype == dtype
    assert_array_equal(skipped[REAL].astype(float), rows[REAL].astype(float))
    assert not skipped[~REAL].astype(float).any()
    assert rows[~REAL].astype(float).any(axis=-1).all()


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["both stacks", "decoder alone"])
def test_PADDING_is_where_the_mask_that_is_given_is_false(config: TransformerConfig) -> None:
    rows, skipped = (_logits(config=config, target_mask_bt=OTHER, skip_padding=skip) for skip in (False, True))
    assert_array_equal(skipped, np.where(OTHER[..., None], rows, 0))


def test_PADDING_is_nothing_of_soft_rows_and_of_a_config_without_a_padding_id_and_alone_is_zeros() -> None:
    soft = np.eye(9)[TARGET]
    assert_array_equal(_logits(soft, skip_padding=True), _logits(soft))
    skipped = _logits(soft, target_mask_bt=REAL, skip_padding=True)
    assert_array_equal(skipped, np.where(REAL[..., None], _logits(soft, target_mask_bt=REAL), 0))
    without = CONFIG.replace(padding_id=None)
    assert_array_equal(_logits(config=without, skip_padding=True), _logits(config=without))
    skipped = _logits(TARGET * 0, skip_padding=True)
    assert skipped.shape == (3, 5, 9)
    assert not skipped.any()


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["both stacks", "decoder alone"])
def test_PADDING_passes_zero_gradient(config: TransformerConfig) -> None:
    source, part = SOURCE if config.encoder_layers else None, tree(config, 0)
    g = np.random.default_rng(1).normal(size=(3, 5, 9))
    for mask_bt in (None, OTHER):
        real = REAL if mask_bt is None else mask_bt
        given = {"target_mask_bt": mask_bt, "cotangent": g}
        skipped = flat.transformer_vjp(part, config, source, TARGET, skip_padding=True, **given)
        by_hand = flat.transformer_vjp(part, config, source, TARGET, **(given | {"cotangent": g * real[..., None]}))
        every = flat.transformer_vjp(part, config, source, TARGET, **given)
        found, other, rows = (parameters.flatten(gradients) for gradients in (skipped, by_hand, every))
        for name, gradient in found.items():
            assert_allclose(gradient, other[name], rtol=1e-12, atol=1e-12)
        assert any(np.abs(gradient - rows[name]).max() > 1e-3 for name, gradient in found.items())


def test_PADDING_of_the_source_changes_no_logits() -> None:
    """Replacing the table's row for the padding id changes the output of `encode` only at padding."""
    config = CONFIG.replace(share_embeddings=False, tie_logits=False)
    part = tree(config, 0)
    rows = transformer.transformer(part, config, SOURCE, TARGET)
    values = parameters.flatten(part)
    values["source_embedding.table"] = np.where(np.arange(9)[:, None] == config.padding_id, 1e3, values["source_embedding.table"])
    other = parameters.nest(values)
    assert_array_equal(transformer.transformer(other, config, SOURCE, TARGET), rows)
    memory, changed = (transformer.encode(one, config, SOURCE) for one in (part, other))
    assert memory.shape == changed.shape == (3, 4, 6)
    assert_array_equal(changed[SOURCE != 0], memory[SOURCE != 0])
    assert np.abs(changed - memory)[SOURCE == 0].max() > 1e-3
