"""The reference and its gradients equal the frameworks' own stock layers in float64; weights and masks are carried over by hand, one
convention at a time."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from strategies import tree

from reference_numpy import TransformerConfig, attention, layers, normalization, preset, stacks

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-13}
CONFIG = preset("tiny", model_width=12, heads=3, key_value_heads=3, key_size=4, value_size=4, feed_forward_width=17, attention_bias=True,
                final_norm=True, epsilon=1e-5, encoder_layers=2, decoder_layers=3)  # fmt: skip
BATCH, TARGET, SOURCE = 2, 5, 7

placements = pytest.mark.parametrize("placement", ["post", "pre"])
activations = pytest.mark.parametrize("activation", ["relu", "gelu_erf"])


def vectors(length: int, seed: int, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, length, width))


def token_mask(length: int, seed: int) -> np.ndarray:
    """Real tokens True; the first of each row always is, so that no query is left without a key (the stock layers return NaN there)."""
    real = np.random.default_rng(seed).random((BATCH, length)) < 0.6
    real[:, 0] = True
    return real


def pair_mask(*shape: int, seed: int = 0) -> np.ndarray:
    """True = may attend, with at least the first key for every query."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def torch_linear(part: dict[str, np.ndarray], name: str = "") -> dict[str, np.ndarray]:
    return {f"{name}weight": part["kernel"].T, f"{name}bias": part["bias"]}


def torch_norm(part: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {f"{name}.weight": part["scale"], f"{name}.bias": part["offset"]}


def torch_attention(part: dict[str, Any], name: str = "", packed: bool = True) -> dict[str, np.ndarray]:
    """`d h k` becomes `(h k) d`, and the three projections are one matrix; the output `h e d` becomes `d (h e)`."""
    weights = [part[side]["kernel"].reshape(part[side]["kernel"].shape[0], -1).T for side in ("query", "key", "value")]
    width = part["output"]["kernel"].shape[-1]
    state = {f"{name}out_proj.weight": part["output"]["kernel"].reshape(-1, width).T}
    if "bias" in part["output"]:
        state[f"{name}in_proj_bias"] = np.concatenate([part[side]["bias"].ravel() for side in ("query", "key", "value")])
        state[f"{name}out_proj.bias"] = part["output"]["bias"]
    if packed:
        return state | {f"{name}in_proj_weight": np.concatenate(weights)}
    return state | {f"{name}{side}_proj_weight": weight for side, weight in zip("qkv", weights, strict=True)}


def torch_layer(part: dict[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    state = torch_attention(part["self_attention"], f"{prefix}self_attn.")
    norms = ["self_attention_norm", "feed_forward_norm"]
    if "cross_attention" in part:
        state |= torch_attention(part["cross_attention"], f"{prefix}multihead_attn.")
        norms.insert(1, "cross_attention_norm")
    for index, norm in enumerate(norms):
        state |= torch_norm(part[norm], f"{prefix}norm{index + 1}")
    for index, side in enumerate(("hidden", "output")):
        state |= torch_linear(part["feed_forward"][side], f"{prefix}linear{index + 1}.")
    return state


def torch_load(module: Any, state: dict[str, np.ndarray]) -> Any:
    import torch

    module = module.double().eval()
    module.load_state_dict({name: torch.tensor(value) for name, value in state.items()}, strict=True)
    return module


def torch_run(module: Any, *inputs: Any, **arguments: Any) -> Any:
    import torch

    def to_torch(value: Any) -> Any:
        return torch.tensor(value) if isinstance(value, np.ndarray) else value

    with torch.no_grad():
        result = module(*map(to_torch, inputs), **{name: to_torch(value) for name, value in arguments.items()})
    return tuple(part if part is None else part.numpy() for part in result) if isinstance(result, tuple) else result.numpy()


def torch_backward(module: Any, g: np.ndarray, *inputs: np.ndarray, **arguments: Any) -> tuple[Any, list[np.ndarray]]:
    """The module's output, and the gradients of `<g, output>` with respect to the inputs; those of its parameters lie in the module."""
    import torch

    tensors = [torch.tensor(array, requires_grad=True) for array in inputs]
    result = module(
        *tensors, **{name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    )
    (result[0] if isinstance(result, tuple) else result).backward(torch.tensor(g))
    return result, [tensor.grad.numpy() for tensor in tensors]


def assert_module(module: Any, wanted: Mapping[str, np.ndarray]) -> None:
    """The gradients of a module's parameters, in its own layout: relayouts are linear, so they carry gradients as they carry weights."""
    grads = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    assert set(grads) == set(wanted)
    for name, gradient in grads.items():
        assert_allclose(wanted[name], gradient, **EXACT, err_msg=name)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("memory", ["self", "cross"])
def test_torch_multihead_attention(memory: str, bias: bool) -> None:
    torch = pytest.importorskip("torch")
    part = tree(CONFIG.replace(attention_bias=bias), 1, "multi_head_attention")
    x, g = vectors(TARGET, 2), vectors(TARGET, 9)
    m = x if memory == "self" else vectors(SOURCE, 3)
    real, pairs = token_mask(m.shape[1], 4), pair_mask(TARGET, m.shape[1], seed=5)
    module = torch_load(torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True), torch_attention(part))
    masks = {"key_padding_mask": ~real, "attn_mask": ~pairs, "average_attn_weights": False}
    expected, (of_query, of_memory) = torch_backward(lambda x, m, **masks: module(x, m, m, **masks), g, x, m, **masks)
    mask = real[:, None, None] & pairs
    assert mask.any(-1).all()
    output, weights = attention.multi_head_attention(part, x, m, mask, return_weights=True)
    assert_allclose(output, expected[0].detach(), **EXACT)
    assert_allclose(weights, expected[1].detach(), **EXACT)
    gradients = attention.multi_head_attention_vjp(part, x, m, mask, cotangent=g)
    assert_module(module, torch_attention(gradients["parameters"]))
    assert_allclose(gradients["query_btd"], of_query, **EXACT)
    assert_allclose(gradients["memory_bsd"], of_memory, **EXACT)


def test_torch_multihead_attention_with_an_additive_bias_and_with_its_own_key_and_value_widths() -> None:
    torch = pytest.importorskip("torch")
    part, x, bias = (
        tree(CONFIG, 6, "multi_head_attention"),
        vectors(TARGET, 7),
        np.random.default_rng(8).normal(size=(BATCH, 3, TARGET, TARGET)),
    )
    module = torch_load(torch.nn.MultiheadAttention(12, 3, batch_first=True), torch_attention(part))
    expected = torch_run(module, x, x, x, attn_mask=bias.reshape(-1, TARGET, TARGET), need_weights=False)[:1]
    assert_allclose(attention.multi_head_attention(part, x, x, bias_bhts=bias), expected[0], **EXACT)
    # Torch's kdim and vdim are widths of other memories for keys and values; rows of zeros in our kernels express them
    part, x, m = tree(CONFIG, 9, "multi_head_attention"), vectors(TARGET, 10), vectors(SOURCE, 11)
    part["key"]["kernel"][5:] = 0
    part["value"]["kernel"][:4] = 0
    state = torch_attention(part, packed=False)
    state["k_proj_weight"], state["v_proj_weight"] = state["k_proj_weight"][:, :5], state["v_proj_weight"][:, 4:]
    module = torch_load(torch.nn.MultiheadAttention(12, 3, kdim=5, vdim=8, batch_first=True), state)
    expected = torch_run(module, x, m[..., :5], m[..., 4:], need_weights=False)
    assert_allclose(attention.multi_head_attention(part, x, m), expected[0], **EXACT)


@pytest.mark.parametrize("lengths", [(2, 5), (5, 5)])
def test_torch_causal_lower_right_bias(lengths: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention.bias import causal_lower_right

    rng = np.random.default_rng(13)
    query, key, value = (rng.normal(size=(2, length, 3, 4)) for length in (lengths[0], lengths[1], lengths[1]))
    swapped = (x.swapaxes(1, 2) for x in (query, key, value))
    expected = torch_run(torch.nn.functional.scaled_dot_product_attention, *swapped, attn_mask=causal_lower_right(*lengths))
    assert_allclose(attention.scaled_dot_product_attention(query, key, value, causal=True), expected.swapaxes(1, 2), **EXACT)


def torch_options(config: TransformerConfig) -> dict[str, Any]:
    return {
        "d_model": 12, "nhead": 3, "dim_feedforward": 17, "dropout": 0.1, "activation": config.activation.removesuffix("_erf"),
        "norm_first": config.norm_placement == "pre", "layer_norm_eps": config.epsilon, "batch_first": True,
    }  # fmt: skip


@placements
@activations
def test_torch_encoder_layer(placement: str, activation: str) -> None:
    torch = pytest.importorskip("torch")
    config = CONFIG.replace(norm_placement=placement, activation=activation)
    part, x, g = tree(config, 14, "encoder_layer"), vectors(SOURCE, 15), vectors(SOURCE, 13)
    real, pairs = token_mask(SOURCE, 16), pair_mask(SOURCE, SOURCE, seed=17)
    module = torch_load(torch.nn.TransformerEncoderLayer(**torch_options(config)), torch_layer(part))
    expected, (of_x,) = torch_backward(module, g, x, src_mask=~pairs, src_key_padding_mask=~real)
    mask = real[:, None, None] & pairs
    assert_allclose(layers.encoder_layer(part, config, x, mask), expected.detach(), **EXACT)
    gradients = layers.encoder_layer_vjp(part, config, x, mask, cotangent=g)
    assert_module(module, torch_layer(gradients["parameters"]))
    assert_allclose(gradients["x_btd"], of_x, **EXACT)


@placements
@activations
def test_torch_transformer(placement: str, activation: str) -> None:
    """nn.Transformer maps vectors to vectors and always ends both stacks in a norm."""
    torch = pytest.importorskip("torch")
    config = CONFIG.replace(norm_placement=placement, activation=activation)
    part, source, target, g = tree(config, 23), vectors(SOURCE, 24), vectors(TARGET, 25), vectors(TARGET, 18)
    source_real, target_real = token_mask(SOURCE, 26), token_mask(TARGET, 27)

    def state(parts: Mapping[str, Any]) -> dict[str, np.ndarray]:
        result: dict[str, np.ndarray] = {}
        for stack in ("encoder", "decoder"):
            result |= torch_norm(parts[stack]["final_norm"], f"{stack}.norm")
            for index, layer in parts[stack]["layers"].items():
                result |= torch_layer(layer, f"{stack}.layers.{index}.")
        return result

    options = torch_options(config)  # nested tensors would zero the padded positions
    encoder_layer, norm = torch.nn.TransformerEncoderLayer(**options), torch.nn.LayerNorm(12, config.epsilon)
    stack = torch.nn.TransformerEncoder(encoder_layer, 2, norm, enable_nested_tensor=False)
    module = torch_load(torch.nn.Transformer(custom_encoder=stack, num_decoder_layers=3, **options), state(part))
    masks = {"tgt_mask": np.triu(np.ones((TARGET, TARGET), bool), 1), "tgt_key_padding_mask": ~target_real}
    masks |= {"src_key_padding_mask": ~source_real, "memory_key_padding_mask": ~source_real}
    expected, (of_source, of_target) = torch_backward(module, g, source, target, **masks)
    self_mask, cross_mask = target_real[:, None, None], source_real[:, None, None]
    memory = stacks.encoder(part["encoder"], config, source, cross_mask)
    output = stacks.decoder(part["decoder"], config, target, memory, self_mask, cross_mask)
    assert_allclose(output, expected.detach(), **EXACT)
    second = stacks.decoder_vjp(part["decoder"], config, target, memory, self_mask, cross_mask, cotangent=g)
    first = stacks.encoder_vjp(part["encoder"], config, source, cross_mask, cotangent=second["memory_bsd"])
    assert_module(module, state({"encoder": first["parameters"], "decoder": second["parameters"]}))
    assert_allclose(first["x_bsd"], of_source, **EXACT)
    assert_allclose(second["x_btd"], of_target, **EXACT)


def import_keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    pytest.importorskip("tensorflow")
    return pytest.importorskip("keras")


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("value_size", [4, 7])
def test_keras_multi_head_attention(value_size: int, use_bias: bool) -> None:
    keras = import_keras()
    config = CONFIG.replace(value_size=value_size, attention_bias=use_bias)
    part, x, memory = tree(config, 28, "multi_head_attention"), vectors(TARGET, 29), vectors(SOURCE, 30)
    mask = pair_mask(BATCH, TARGET, SOURCE, seed=31)
    layer = keras.layers.MultiHeadAttention(3, 4, value_dim=value_size, use_bias=use_bias, dtype="float64")
    layer.build(x.shape, memory.shape)
    sides = ("query", "key", "value", "output")
    layer.set_weights([part[side][kind] for side in sides for kind in ("kernel", "bias")[: 1 + use_bias]])
    expected = layer(x, memory, attention_mask=mask, return_attention_scores=True)
    output, weights = attention.multi_head_attention(part, x, memory, mask[:, None], return_weights=True)
    assert_allclose(output, expected[0].numpy(), **EXACT)
    assert_allclose(weights, expected[1].numpy(), **EXACT)
    assert_allclose(attention.multi_head_attention(part, x, x, causal=True), layer(x, x, use_causal_mask=True).numpy(), **EXACT)


def test_keras_grouped_query_attention() -> None:
    keras = import_keras()
    config = CONFIG.replace(heads=6, key_value_heads=2)
    part, x, memory = tree(config, 32, "multi_head_attention"), vectors(TARGET, 33), vectors(SOURCE, 34)
    layer = keras.layers.GroupQueryAttention(4, 6, 2, dtype="float64")
    layer.build(x.shape, memory.shape)
    layer.set_weights([part[side][kind] for side in ("query", "key", "value", "output") for kind in ("kernel", "bias")])
    assert_allclose(attention.multi_head_attention(part, x, memory), layer(x, memory).numpy(), **EXACT)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6])
def test_keras_layer_normalization(epsilon: float) -> None:
    keras = import_keras()
    part, x = tree(CONFIG, 35, "layer_norm"), vectors(TARGET, 36) + 3
    layer = keras.layers.LayerNormalization(epsilon=epsilon, dtype="float64")
    layer.build(x.shape)
    layer.set_weights([part["scale"], part["offset"]])
    assert_allclose(normalization.layer_norm(part, x, epsilon), layer(x).numpy(), **EXACT)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("groups", [3, 1])
def test_flax_multi_head_attention(groups: int, use_bias: bool) -> None:
    jax, nnx = pytest.importorskip("jax"), pytest.importorskip("flax.nnx")
    config = CONFIG.replace(key_value_heads=groups, attention_bias=use_bias)
    part, x, memory = tree(config, 37, "multi_head_attention"), vectors(TARGET, 38), vectors(SOURCE, 39)
    mask = pair_mask(BATCH, 1, TARGET, SOURCE, seed=40)
    with jax.enable_x64(True):
        float64 = {"dtype": jax.numpy.float64, "param_dtype": jax.numpy.float64}
        # with a dropout rate of 0 Flax calls jax.nn.dot_product_attention, which holds logits in float32 whatever the dtype
        options = {"num_kv_heads": groups, "use_bias": use_bias, "dropout_rate": 0.1, "decode": False}
        module = nnx.MultiHeadAttention(3, 12, **options, rngs=nnx.Rngs(0), **float64)
        for side, name in (("query", "query"), ("key", "key"), ("value", "value"), ("output", "out")):
            linear = getattr(module, name)
            for kind, value in part[side].items():
                assert getattr(linear, kind).shape == value.shape
                getattr(linear, kind)[...] = jax.numpy.asarray(value)
        inputs = (jax.numpy.asarray(x), jax.numpy.asarray(memory))
        expected = np.asarray(module(*inputs, mask=jax.numpy.asarray(mask), deterministic=True))
    assert expected.dtype == np.float64
    assert_allclose(attention.multi_head_attention(part, x, memory, mask), expected, **EXACT)


def test_flax_layer_norm() -> None:
    jax, nnx = pytest.importorskip("jax"), pytest.importorskip("flax.nnx")
    part, x = tree(CONFIG, 41, "layer_norm"), vectors(TARGET, 42) + 3
    with jax.enable_x64(True):
        float64 = {"dtype": jax.numpy.float64, "param_dtype": jax.numpy.float64}
        module = nnx.LayerNorm(12, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0), **float64)
        module.scale[...], module.bias[...] = jax.numpy.asarray(part["scale"]), jax.numpy.asarray(part["offset"])
        expected = np.asarray(module(jax.numpy.asarray(x)))
    assert_allclose(normalization.layer_norm(part, x, 1e-5), expected, **EXACT)
