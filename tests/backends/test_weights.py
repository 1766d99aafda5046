"""Weight transfer: the reference to each port and back, bit for bit; strict in both directions."""

import re
from itertools import product

import numpy as np
import pytest
from backends import Backend
from kinds import every

from reference_numpy import TransformerConfig, parameters, preset
from rosettaformer.judge.case import DTYPES, numpy_dtype

CONFIGS = {
    "untied": preset("tiny", share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True, final_norm=True),
    "tied": preset("tiny", output_bias=True),
    "grouped": preset("tiny", heads=6, key_value_heads=2, key_size=5, value_size=7, attention_bias=True),
    "tied_to_target": preset("tiny", share_embeddings=False, target_vocabulary=53),
    "encoder": preset("one_encoder_layer", model_width=24, source_vocabulary=31, target_vocabulary=31),
}


def _parameters(config: TransformerConfig, dtype: str) -> dict[str, np.ndarray]:
    """Draws parameters with a NaN and a negative zero at the start of every array."""
    rng, found = np.random.default_rng(7), {}
    for name, shape in parameters.shapes(config).items():
        found[name] = rng.standard_normal(shape).astype(numpy_dtype(dtype))
        found[name].ravel()[:2] = np.nan, -0.0
    return found


def _assert_same_bits(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        assert got[name].flags.c_contiguous, name
        assert got[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize(("name", "dtype"), every(7, product(CONFIGS, DTYPES)))
def test_parameters_go_in_and_come_out_bit_for_bit(backend: Backend, name: str, dtype: str) -> None:
    config = CONFIGS[name]
    wanted = _parameters(config, dtype)
    with backend.wide():
        module = backend.build("transformer", config, dtype)
        backend.weights.load(module, wanted, config)
        _assert_same_bits(backend.weights.export(module, config), wanted)


def test_arrays_that_go_in_or_come_out_share_no_memory_with_the_module(backend: Backend) -> None:
    config = CONFIGS["tied"]
    wanted, module = _parameters(config, "float32"), backend.build("transformer", config)
    given = {name: array.copy() for name, array in wanted.items()}
    backend.weights.load(module, given, config)
    for arrays in (given, backend.weights.export(module, config)):
        for array in arrays.values():
            array[:] = 7
    _assert_same_bits(backend.weights.export(module, config), wanted)


def _spoiled(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    spoiled = dict(values)
    spoiled.pop("encoder.layers.1.feed_forward.hidden.bias")
    spoiled["encoder.layers.1.feed_forward.hiden.bias"] = values["encoder.layers.1.feed_forward.hidden.bias"]
    spoiled["logits.kernel"] = np.ascontiguousarray(values["logits.kernel"].T)
    spoiled["decoder.final_norm.scale"] = values["decoder.final_norm.scale"].astype(np.float64)
    return spoiled


def test_every_problem_is_named_at_once_with_what_nothing_would_fill_and_another_dtype(backend: Backend) -> None:
    config = CONFIGS["untied"]
    module, values = backend.build("transformer", config), _parameters(config, "float32")
    before = backend.weights.export(module, config)
    with pytest.raises(ValueError) as error:
        backend.weights.load(module, _spoiled(values), config)
    message = str(error.value)
    assert "missing encoder.layers.1.feed_forward.hidden.bias" in message
    assert "unexpected encoder.layers.1.feed_forward.hiden.bias" in message
    assert "(nearest: encoder.layers.1.feed_forward.hidden.bias)" in message
    assert re.search(r"logits.kernel.*\(101, 32\).*\(32, 101\)", message)
    _assert_same_bits(backend.weights.export(module, config), before)
    config = CONFIGS["tied"]
    biased = config.replace(attention_bias=True)
    with pytest.raises(ValueError, match=r"cross_attention\W+query\W+bias"):
        backend.weights.load(backend.build("transformer", biased), _parameters(config, "float32"), config)
    with pytest.raises(ValueError, match=r"cross_attention\W+query\W+bias"):
        backend.weights.load(backend.build("transformer", config), _parameters(biased, "float32"), biased)
    config = CONFIGS["tied"]
    module, values = backend.build("transformer", config), _parameters(config, "float32")
    values["encoder.layers.0.feed_forward.output.bias"] = values["encoder.layers.0.feed_forward.output.bias"].astype(np.float64)
    with pytest.raises(ValueError, match=r"encoder.layers.0.feed_forward.output.bias must be float32; got float64"):
        backend.weights.load(module, values, config)


def test_a_module_of_any_kind_is_loaded_by_a_table_of_its_own(backend: Backend) -> None:
    config, (scale, offset) = CONFIGS["tied"], ("gamma", "beta")
    if backend.name == "torch":
        module, scale, offset = backend.framework.nn.LayerNorm(32), "weight", "bias"
    elif backend.name == "tf":
        module = backend.framework.Module()
        module.gamma, module.beta = (backend.framework.Variable(backend.framework.ones(32)) for _ in range(2))
    else:
        from flax import nnx

        module, scale, offset = nnx.LayerNorm(32, rngs=nnx.Rngs(0)), "scale", "bias"
    wanted = {"scale": np.arange(32, dtype=np.float32), "offset": np.full(32, 7, np.float32)}
    table = (("scale", scale, "d"), ("offset", offset, "d"))
    backend.weights.load(module, wanted, config, "layer_norm", table)
    _assert_same_bits(backend.weights.export(module, config, "layer_norm", table), wanted)
    with pytest.raises(ValueError, match="gain"):
        backend.weights.load(module, wanted, config, "layer_norm", (("scale", "gain", "d"), table[1]))
