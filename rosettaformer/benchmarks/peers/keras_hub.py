"""BART of KerasHub, of the same sizes: its generation with its cache and samplers, as one graph compiled by XLA or not."""

import functools
from typing import Any

import numpy as np

from ..problem import Problem
from ..rows import Call, Row
from ..workloads import PADDING, START

__all__ = ["rows"]


def rows(problem: Problem) -> list[Row]:
    """Another architecture than ours (learned positions, a norm after the embedding): timed, not compared."""
    return [
        Row("tf", f"keras_hub BART {how}", peer=True, compiles=True, comparable=False, start=functools.partial(_start, problem, jit))
        for how, jit in (("compiled", True), ("compiled, no XLA", False))
    ]


def _start(problem: Problem, jit_compile: bool) -> Call:
    from impl_tf.framework import keras  # chooses the backend before KerasHub does

    del keras
    import keras_hub

    config, task = problem.config, problem.task
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=config.target_vocabulary, num_layers=config.encoder_layers, num_heads=config.heads,
        hidden_dim=config.model_width, intermediate_dim=config.feed_forward_width,
        max_sequence_length=max(task.length, task.new_tokens + 1),
    )  # fmt: skip
    model = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
    greedy = keras_hub.samplers.GreedySampler()
    sampler = greedy if task.kind == "greedy" else keras_hub.samplers.BeamSampler(num_beams=task.beams)
    model.compile(sampler=sampler, jit_compile=jit_compile)
    inputs = _inputs(problem)
    return lambda: {"token_bn": model.generate(inputs, stop_token_ids=None)["decoder_token_ids"][:, 1:]}


def _inputs(problem: Problem) -> dict[str, Any]:
    """The tokens that a preprocessor would make: a prompt of one token, and room for the new ones. No token stops."""
    batch, length = len(problem.source), problem.task.new_tokens + 1
    target = np.full((batch, length), PADDING, "int32")
    target[:, 0] = START
    return {
        "encoder_token_ids": problem.source.astype("int32"),
        "encoder_padding_mask": problem.source != PADDING,
        "decoder_token_ids": target,
        "decoder_padding_mask": np.arange(length) < np.ones((batch, 1)),
    }
