"""Specifics of the TensorFlow port without padding: graphs, Keras masks, and symbolic inputs."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from backends import Backend
from test_unpadding import OTHERS, arrays, close, tokens

from impl_tf.framework import keras
from impl_tf.mask import real_rows
from impl_tf.programs.compiled import compiled
from impl_tf.programs.unpadding import Sides, of_forward, unpadded
from impl_tf.stacks import Encoder

BACKEND = Backend("tf")


@pytest.fixture
def model() -> Any:
    return BACKEND.loaded(OTHERS, arrays(OTHERS))


def test_a_mask_that_keras_attached_keeps_the_rows(model: Any) -> None:
    source, target = map(tf.constant, tokens("right", OTHERS))
    source._keras_mask = tf.random.stateless_uniform(source.shape, (0, 1)) < 0.5
    assert of_forward(model, 0, source, target) == Sides()
    close(unpadded(model, 0)(source, target, skip_padding=True), real_rows(model(source, target), target != 0))


def test_a_mask_that_keras_attached_to_the_target_says_which_rows_are_zeros() -> None:
    source, target = map(tf.constant, tokens("right", OTHERS))
    model = BACKEND.loaded(OTHERS.replace(padding_id=None), arrays(OTHERS))
    target._keras_mask = tf.random.stateless_uniform(target.shape, (0, 2)) < 0.5
    assert np.array_equal(np.any(unpadded(model)(source, target, skip_padding=True), axis=2), target._keras_mask)


def test_rows_of_the_same_count_share_a_graph(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (source, target), traces = tokens("right", OTHERS), []
    call = Encoder.call

    def counted(self: Encoder, x_bsd: Any, *arguments: Any, **keywords: Any) -> Any:
        if tf.is_symbolic_tensor(x_bsd):
            traces.append(x_bsd.shape[0])
        return call(self, x_bsd, *arguments, **keywords)

    monkeypatch.setattr(Encoder, "call", counted)
    run = compiled(BACKEND.loaded(OTHERS, arrays(OTHERS)), jit_compile=False, least=0)
    for rows in (source, source[::-1], source[:, ::-1], np.ones_like(source), np.full_like(source, 2)):
        close(run(rows, target), model(rows, target))
    assert sorted(traces) == [1, len(source)]


def test_ids_without_values_keep_their_rows(model: Any, tmp_path) -> None:
    source, target = tokens("right", OTHERS)
    wanted = np.where((target != 0)[..., None], model(source, target), 0)
    inner = compiled(model, least=0)
    graph = tf.function(lambda source, target: inner(source, target, skip_padding=True), autograph=False)
    close(graph(tf.constant(source), tf.constant(target)), wanted)
    inputs = keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int64")
    outer = keras.Model(inputs, model(*inputs))
    close(outer([source, target]), model(source, target))
    outer.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras").predict([source, target], verbose=0), model(source, target))


def test_rows_stay_if_graphs_run_eagerly(model: Any) -> None:
    """So that observers of layers see rows."""
    source, target = tokens("right", OTHERS)
    shapes = []
    layer = model.encoder.layers[0]
    layer.call, call = lambda x, *others, **keywords: shapes.append(x.shape) or call(x, *others, **keywords), layer.call
    tf.config.run_functions_eagerly(True)
    try:
        compiled(model, least=0)(source, target)
    finally:
        tf.config.run_functions_eagerly(False)
    assert shapes == [(*source.shape, OTHERS.model_width)]
