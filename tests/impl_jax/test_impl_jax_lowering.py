"""Every program of the JAX port is lowered for CUDA and TPU on a machine that has neither: it has no host callbacks.

The platforms are those the program is lowered for: nothing queries the devices of this process.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expectations import suite
from flax import nnx

from impl_jax import port
from impl_jax.attention import scaled_dot_product_attention
from impl_jax.decoding import beams, one_by_one
from impl_jax.programs import static_cache, unpadding
from impl_jax.programs.fused import fused
from impl_jax.programs.search import Prompt, plan, request
from impl_jax.programs.step import Batch
from impl_jax.training import Trainer
from impl_jax.transformer import Transformer
from impl_jax.values import Heads
from reference_numpy import parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.scores import Scores
from reference_numpy.strategy import Strategy
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation.components import OWN, SEARCHES, without_other_layouts
from rosettaformer.judge.ports.adapters.jax import Adapter

PLATFORMS = ("cuda", "tpu")
ASKING = ("default_backend", "devices", "device_count", "local_devices", "local_device_count")  # the array knows them itself
SIZES = {
    "model_width": 6,
    "heads": 2,
    "key_size": 3,
    "value_size": 4,
    "feed_forward_width": 7,
    "source_vocabulary": 13,
    "target_vocabulary": 13,
}
BOTH = preset("tiny", **SIZES, key_value_heads=1, encoder_layers=1, decoder_layers=1, hidden_dropout_rate=0.1, attention_dropout_rate=0.1)
ENCODER = preset("bert_base", **SIZES, key_value_heads=2, max_positions=20, encoder_layers=1, classes=3, masked_language_head=False)
DECODER = preset("gpt2_small", **SIZES, key_value_heads=2, max_positions=40, decoder_layers=1)
SOURCE, TARGET = np.array([[3, 4, 5, 6], [1, 2, 0, 0]], np.int32), np.array([[7, 8, 9], [5, 0, 0]], np.int32)
# Python that prepares a program, and values made before it.
NO_PROGRAM = (*SEARCHES, "decode_in_steps", "initialise", "random_dropout")


def lowered(program: Any, *arguments: Any) -> str:
    """Returns the program's text for both platforms."""
    with mock.patch.multiple(jax, **dict.fromkeys(ASKING, _refused)):
        return program.trace(*arguments).lower(lowering_platforms=PLATFORMS).as_text()


def _refused(*given: Any) -> None:
    raise AssertionError("a program must not ask for the devices of the process")


def assert_no_callback(program: Any, *arguments: Any) -> None:
    assert "callback" not in lowered(program, *arguments)


def test_a_callback_is_seen() -> None:
    with pytest.raises(NotImplementedError, match="python_callback"):
        lowered(jax.jit(lambda x: jax.pure_callback(np.sin, x, x)), jnp.ones(2))


@pytest.mark.parametrize("question", ASKING)
def test_a_question_for_devices_is_seen(question: str) -> None:
    with pytest.raises(AssertionError, match="must not ask"):
        lowered(jax.jit(lambda x: [x, getattr(jax, question)()][0]), jnp.ones(2))


def components() -> Iterator[Case]:
    seen = {*NO_PROGRAM}
    for case in without_other_layouts(suite(), OWN):
        if case.core and case.component not in seen:
            seen.add(case.component)
            yield case


@pytest.mark.conformance
def test_every_component() -> None:
    adapter = Adapter(port)
    for case in components():
        function, inputs = adapter._built(case.at("float32"))
        arrays = {name: value for name, value in inputs.items() if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))}
        plain = {name: value for name, value in inputs.items() if name not in arrays}
        assert_no_callback(jax.jit(lambda arrays, call=function, plain=plain: call(**arrays, **plain)), arrays)
    assert {case.component for case in components()} | {*NO_PROGRAM} == set(port.components)


def model_of(config: Any) -> Transformer:
    model = port.blank(Transformer, config, jnp.float32)
    model.eval()
    return model


def test_whole_models_that_leave_out_padding_and_attention_in_chunks() -> None:
    model = model_of(BOTH)
    flat = unpadding.of_forward(BOTH, 0, SOURCE, TARGET, skip_padding=True)
    assert all(flat)
    program = jax.jit(lambda flat: unpadding.forward(model, flat, SOURCE, TARGET, skip_padding=True))
    assert_no_callback(program, flat)
    x = jax.ShapeDtypeStruct((1, 8192, 8, 8), jnp.float32)
    program = jax.jit(jax.grad(lambda x: scaled_dot_product_attention(Heads(x, x, x), None, Scores(causal=True)).sum()))
    assert_no_callback(program, x)


@pytest.mark.parametrize("config", [BOTH, ENCODER], ids=["both", "encoder-alone"])
def test_a_training_step_forward_and_backward(config: Any) -> None:
    source, target = SOURCE, np.array([2, 0], np.int32) if config.classes else TARGET
    run = Trainer(config, PAPER.replace(microbatches=2, clip_norm=1.0, weight_decay=0.1), parameters.initialise(config, 0, np.float32))
    flat = run.flat(source, target, 2)
    assert_no_callback(run._step, run._parameters, run._moments, np.uint32(0), Batch(source, target, None, flat))


@pytest.mark.parametrize(("name", "dtype"), [("greedy", None), ("sample", None), ("beam", None), ("greedy", "int8")])
def test_every_search(name: str, dtype: str | None) -> None:
    config = BOTH if dtype else DECODER
    leaves, structure = jax.tree.flatten(nnx.eval_shape(lambda: fused(Transformer(config, rngs=nnx.Rngs(0)), dtype)))
    options = {"start_id": 1, "end_id": 2, "max_new_tokens": 3, "no_repeat_ngram": 2, "repetition_penalty": 1.2, "top_p": 0.9}
    strategy = Strategy.of(options | ({"beam_size": 2} if name == "beam" else {}), config)
    source, prefix = SOURCE if config.encoder_layers else None, np.array([[1, 3], [1, 4]], np.int32)
    given = request(config, strategy, Prompt(source, prefix), np.full((2, 3), 0.5) if name == "sample" else None)
    search = beams if name == "beam" else one_by_one
    assert_no_callback(search, structure, leaves, plan(strategy, strategy.beam_size, name == "sample"), given)


def test_a_step_of_a_cache() -> None:
    model, memory_bsd, mask_bs = model_of(BOTH), jnp.zeros((2, 4, 6)), jnp.asarray(SOURCE != 0)

    def steps(memory_bsd: jax.Array) -> Any:
        held = static_cache.start_cache(model, memory_bsd, mask_bs, length=8)
        logits_btv, held = static_cache.decode_step(model, TARGET, held)
        return logits_btv, static_cache.reorder(held, jnp.arange(2))

    assert_no_callback(jax.jit(steps), memory_bsd)
