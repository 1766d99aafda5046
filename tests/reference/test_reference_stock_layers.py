"""The reference and its gradients equal the frameworks' stock layers in float64; weights and masks are converted explicitly, one
convention at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from strategies import tree

from reference_numpy import attention, preset, stacks
from reference_numpy.scores import Scores
from reference_numpy.values import Attending, Heads, Memory

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-13}
CONFIG = preset("tiny", model_width=12, heads=3, key_value_heads=3, key_size=4, value_size=4, feed_forward_width=17, attention_bias=True,
                final_norm=True, epsilon=1e-5, encoder_layers=2, decoder_layers=3)  # fmt: skip
BATCH, TARGET, SOURCE = 2, 5, 7


def vectors(length: int, seed: int, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, length, width))


def token_mask(length: int, seed: int) -> np.ndarray:
    """Draws a mask, True at real tokens; the first of each row always is, since the stock layers return NaN for a query without keys."""
    real = np.random.default_rng(seed).random((BATCH, length)) < 0.6
    real[:, 0] = True
    return real


def pair_mask(*shape: int, seed: int = 0) -> np.ndarray:
    """Draws a mask, True where a query may attend, with at least the first key for every query."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def torch_norm(part: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {f"{name}.weight": part["scale"], f"{name}.bias": part["offset"]}


def torch_attention(part: dict[str, Any], name: str) -> dict[str, np.ndarray]:
    """`d h k` becomes `(h k) d`, and the three projections become one matrix; the output `h e d` becomes `d (h e)`."""
    sides, output = [part[side] for side in ("query", "key", "value")], part["output"]
    kernels = [side["kernel"].reshape(len(side["kernel"]), -1) for side in sides]
    return {
        f"{name}in_proj_weight": np.concatenate(kernels, axis=1).T,
        f"{name}in_proj_bias": np.concatenate([side["bias"].ravel() for side in sides]),
        f"{name}out_proj.weight": output["kernel"].reshape(-1, output["kernel"].shape[-1]).T,
        f"{name}out_proj.bias": output["bias"],
    }


def torch_layer(part: dict[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    state = torch_attention(part["self_attention"], f"{prefix}self_attn.")
    norms = ["self_attention_norm", "feed_forward_norm"]
    if "cross_attention" in part:
        state |= torch_attention(part["cross_attention"], f"{prefix}multihead_attn.")
        norms.insert(1, "cross_attention_norm")
    for index, norm in enumerate(norms):
        state |= torch_norm(part[norm], f"{prefix}norm{index + 1}")
    for index, side in enumerate(("hidden", "output")):
        linear, name = part["feed_forward"][side], f"{prefix}linear{index + 1}"
        state |= {f"{name}.weight": linear["kernel"].T, f"{name}.bias": linear["bias"]}
    return state


@pytest.mark.parametrize("lengths", [(2, 5), (5, 5)])
def test_torch_causal_lower_right_bias(lengths: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention.bias import causal_lower_right

    rng = np.random.default_rng(13)
    query, key, value = (rng.normal(size=(2, length, 3, 4)) for length in (lengths[0], lengths[1], lengths[1]))
    swapped = (torch.tensor(x.swapaxes(1, 2)) for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*swapped, attn_mask=causal_lower_right(*lengths))
    found = attention.scaled_dot_product_attention(Heads(query, key, value), scores=Scores(causal=True))
    assert_allclose(found.swapaxes(1, 2), expected.numpy(), **EXACT)


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu_erf"])
def test_torch_transformer(placement: str, activation: str) -> None:
    """nn.Transformer maps vectors to vectors and always ends both stacks with a norm."""
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

    options: dict[str, Any] = {
        "d_model": 12, "nhead": 3, "dim_feedforward": 17, "dropout": 0.1,
        "activation": activation.removesuffix("_erf"), "norm_first": placement == "pre",
        "layer_norm_eps": config.epsilon, "batch_first": True,
    }  # fmt: skip
    encoder_layer, norm = torch.nn.TransformerEncoderLayer(**options), torch.nn.LayerNorm(12, config.epsilon)
    # nested tensors would zero the padded positions
    stack = torch.nn.TransformerEncoder(encoder_layer, 2, norm, enable_nested_tensor=False)
    module = torch.nn.Transformer(custom_encoder=stack, num_decoder_layers=3, **options).double().eval()
    module.load_state_dict({name: torch.tensor(value) for name, value in state(part).items()}, strict=True)
    masks = {"tgt_mask": np.triu(np.ones((TARGET, TARGET), bool), 1), "tgt_key_padding_mask": ~target_real}
    masks |= {"src_key_padding_mask": ~source_real, "memory_key_padding_mask": ~source_real}
    given = [torch.tensor(x, requires_grad=True) for x in (source, target)]
    expected = module(*given, **{name: torch.tensor(mask) for name, mask in masks.items()})
    expected.backward(torch.tensor(g))
    self_mask, cross_mask = target_real[:, None, None], source_real[:, None, None]
    memory = Memory(stacks.encoder(part["encoder"], config, source, cross_mask), cross_mask)
    output = stacks.decoder(part["decoder"], config, target, memory, self_mask)
    assert_allclose(output, expected.detach(), **EXACT)
    second = stacks.decoder_vjp(part["decoder"], config, target, memory, self_mask, cotangent=g)
    first = stacks.encoder_vjp(part["encoder"], config, source, cross_mask, cotangent=second["memory_bsd"])
    # relayouts are linear, so they convert gradients like weights
    gradients = state({"encoder": first["parameters"], "decoder": second["parameters"]})
    learnt = dict(module.named_parameters())
    assert learnt.keys() == gradients.keys()
    for name, parameter in learnt.items():
        assert_allclose(gradients[name], parameter.grad.numpy(), **EXACT, err_msg=name)
    for actual, argument in zip((first["x_bsd"], second["x_btd"]), given, strict=True):
        assert_allclose(actual, argument.grad.numpy(), **EXACT)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("value_size", [4, 7])
def test_keras_multi_head_attention(value_size: int, use_bias: bool) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    config = CONFIG.replace(value_size=value_size, attention_bias=use_bias)
    part, x, memory = tree(config, 28, "multi_head_attention"), vectors(TARGET, 29), vectors(SOURCE, 30)
    mask = pair_mask(BATCH, TARGET, SOURCE, seed=31)
    layer = keras.layers.MultiHeadAttention(3, 4, value_dim=value_size, use_bias=use_bias, dtype="float64")
    layer.build(x.shape, memory.shape)
    sides = ("query", "key", "value", "output")
    layer.set_weights([part[side][kind] for side in sides for kind in ("kernel", "bias")[: 1 + use_bias]])
    expected = layer(x, memory, attention_mask=mask, return_attention_scores=True)
    query, key, *_ = attention.project(part, config, x, memory)
    output, weights = (
        attention.multi_head_attention(part, config, x, memory, Attending(mask[:, None])),
        attention.attention_weights(query, key, mask[:, None]),
    )
    assert_allclose(output, expected[0].numpy(), **EXACT)
    assert_allclose(weights, expected[1].numpy(), **EXACT)
    causal = attention.multi_head_attention(part, config, x, x, Attending(scores=Scores(causal=True)))
    assert_allclose(causal, layer(x, x, use_causal_mask=True).numpy(), **EXACT)


def test_keras_grouped_query_attention() -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    config = CONFIG.replace(heads=6, key_value_heads=2)
    part, x, memory = tree(config, 32, "multi_head_attention"), vectors(TARGET, 33), vectors(SOURCE, 34)
    layer = keras.layers.GroupQueryAttention(4, 6, 2, dtype="float64")
    layer.build(x.shape, memory.shape)
    layer.set_weights([part[side][kind] for side in ("query", "key", "value", "output") for kind in ("kernel", "bias")])
    assert_allclose(attention.multi_head_attention(part, config, x, memory), layer(x, memory).numpy(), **EXACT)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("groups", [3, 1])
def test_flax_multi_head_attention(groups: int, use_bias: bool) -> None:
    jax, nnx = pytest.importorskip("jax"), pytest.importorskip("flax.nnx")
    config = CONFIG.replace(key_value_heads=groups, attention_bias=use_bias)
    part, x, memory = tree(config, 37, "multi_head_attention"), vectors(TARGET, 38), vectors(SOURCE, 39)
    mask = pair_mask(BATCH, 1, TARGET, SOURCE, seed=40)
    with jax.enable_x64(True):
        float64 = {"dtype": jax.numpy.float64, "param_dtype": jax.numpy.float64}
        # with a dropout rate of 0 Flax calls jax.nn.dot_product_attention, which keeps logits in float32 in every dtype
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
    assert_allclose(attention.multi_head_attention(part, config, x, memory, Attending(mask)), expected, **EXACT)
