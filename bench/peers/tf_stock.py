"""Keras's stock layers and a training step, as a Keras user writes them."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impl_tf import weights
from impl_tf.framework import keras
from impl_tf.schedule import Noam
from reference_numpy import TransformerConfig, layout
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem, optional
from ..timed_rows import Step
from ..workloads import PADDING

TABLE: layout.Table = (
    *layout.renamed(
        table="embeddings",
        query="_query_dense",
        key="_key_dense",
        value="_value_dense",
        output="_output_dense",
        scale="gamma",
        offset="beta",
    ),
    ("feed_forward.hidden.kernel", "feed_forward.layers.0.kernel", "d f"),
    ("feed_forward.hidden.bias", "feed_forward.layers.0.bias", "f"),
    ("feed_forward.output.kernel", "feed_forward.layers.1.kernel", "f d"),
    ("feed_forward.output.bias", "feed_forward.layers.1.bias", "d"),
)


class StockLayer(keras.layers.Layer):
    def __init__(self, config: TransformerConfig, decoder: bool) -> None:
        super().__init__()
        attention = functools.partial(keras.layers.MultiHeadAttention, config.heads, config.key_size, config.value_size)
        norm = functools.partial(keras.layers.LayerNormalization, epsilon=config.epsilon)
        self.decoder = decoder
        self.self_attention, self.self_attention_norm = attention(), norm()
        if decoder:
            self.cross_attention, self.cross_attention_norm = attention(), norm()
        self.feed_forward = keras.Sequential(
            [keras.layers.Dense(config.feed_forward_width, config.activation), keras.layers.Dense(config.model_width)]
        )
        self.feed_forward_norm = norm()
        self.dropout = keras.layers.Dropout(config.dropout_rate)

    def call(self, x: tf.Tensor, mask: tf.Tensor, memory: tf.Tensor | None = None, memory_mask: tf.Tensor | None = None) -> tf.Tensor:
        x = self.self_attention_norm(x + self.dropout(self.self_attention(x, x, attention_mask=mask, use_causal_mask=self.decoder)))
        if self.decoder:
            x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, attention_mask=memory_mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class StockStack(keras.layers.Layer):
    def __init__(self, config: TransformerConfig, count: int, decoder: bool) -> None:
        super().__init__()
        self.layers = [StockLayer(config, decoder) for _ in range(count)]
        self.final_norm = keras.layers.LayerNormalization(epsilon=config.epsilon)

    def call(self, x: tf.Tensor, mask: tf.Tensor, memory: tf.Tensor | None = None, memory_mask: tf.Tensor | None = None) -> tf.Tensor:
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)
        return self.final_norm(x)


class Stock(keras.Model):
    """The paper's model from `keras.layers`."""

    def __init__(self, config: TransformerConfig, length: int) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = keras.layers.Embedding(config.source_vocabulary, config.model_width)
        self.target_embedding = keras.layers.Embedding(config.target_vocabulary, config.model_width)
        self.encoder = StockStack(config, config.encoder_layers, decoder=False)
        self.decoder = StockStack(config, config.decoder_layers, decoder=True)
        self.dropout = keras.layers.Dropout(config.dropout_rate)
        self.logits = keras.layers.Dense(config.target_vocabulary)
        self.position = tf.constant(positional_encoding(np.arange(length), config.model_width, np.float32))

    def call(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        source_mask, target_mask = ((token != PADDING)[:, None, :] for token in (source, target))
        memory = self.encode(source)
        return self.logits(self.decoder(self._embed(self.target_embedding, target), target_mask, memory, source_mask))

    def encode(self, source: tf.Tensor) -> tf.Tensor:
        return self.encoder(self._embed(self.source_embedding, source), (source != PADDING)[:, None, :])

    def _embed(self, embedding: keras.layers.Embedding, token: tf.Tensor) -> tf.Tensor:
        return self.dropout(embedding(token) * self.config.model_width**0.5 + self.position)


def ids(token: np.ndarray) -> tf.Tensor:
    return weights.from_numpy(token.astype(np.int32), "/CPU:0")


def build(problem: Problem) -> Stock:
    """Builds the model with the problem's weights."""
    stock = Stock(problem.config, problem.task.length)
    stock(ids(problem.source[:1]), ids(problem.target[:1]))  # creates its variables
    weights.load(stock, problem.tensors, problem.config, table=TABLE)
    return stock


def training(build: Callable[[Problem], Any], jit_compile: bool, problem: Problem) -> Step:
    """Trains with Keras's Adam, whose epsilon is added before the bias correction."""
    config, recipe, stock = problem.config, problem.recipe, build(problem)
    source, target = optional(ids)(problem.encoded), ids(problem.sequence)
    schedule = Noam(config.model_width, recipe.warmup)
    optimizer = keras.optimizers.Adam(schedule, recipe.beta_1, recipe.beta_2, recipe.epsilon)
    optimizer.build(stock.trainable_variables)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def step(source: tf.Tensor | None, target: tf.Tensor) -> tf.Tensor:
        label = target[:, 1:]
        one_hot, mask = tf.one_hot(label, config.target_vocabulary), tf.cast(label != PADDING, tf.float32)
        with tf.GradientTape() as tape:
            logits = stock(source, target[:, :-1], training=True)
            losses = keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=recipe.smoothing)
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        # A table's gradient is a list of rows; Keras's Adam would square a repeated token's rows separately.
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, stock.trainable_variables)]
        optimizer.apply_gradients(zip(gradients, stock.trainable_variables, strict=True))
        return loss

    return lambda: step(source, target)
