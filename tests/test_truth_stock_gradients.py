"""The truth's gradients and updates equal those of torch's autograd through its stock functions, of its AdamW and of optax, in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from strategies import tree
from test_truth_stock_layers import (
    BATCH,
    CONFIG,
    EXACT,
    SOURCE,
    TARGET,
    activations,
    pair_mask,
    placements,
    token_mask,
    torch_attention,
    torch_layer,
    torch_load,
    torch_norm,
    torch_options,
    vectors,
)

from reference_numpy import attention, embedding, feed_forward, layers, loss, normalization, optimizer, stacks


def torch_gradients(function: Any, g: np.ndarray, *inputs: np.ndarray, **arguments: Any) -> list[np.ndarray]:
    """The gradients of `<g, function(*inputs)>` by torch's autograd."""
    import torch

    tensors: list[Any] = [torch.tensor(array, requires_grad=True) for array in inputs]
    function(*tensors, **arguments).backward(torch.tensor(g))
    return [tensor.grad.numpy() for tensor in tensors]


@pytest.mark.parametrize("hidden", ["mask", "bias", "causal"])
def test_torch_scaled_dot_product_attention(hidden: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(2, 5, 6, 4)), rng.normal(size=(2, 5, 2, 4)), rng.normal(size=(2, 5, 2, 3))
    g, mask, bias = rng.normal(size=(2, 5, 6, 3)), pair_mask(2, 6, 5, 5), rng.normal(size=(1, 6, 5, 5))
    swapped = [x.swapaxes(1, 2) for x in (query, key, value)]
    options: dict[str, Any] = {"enable_gqa": True, "is_causal": hidden == "causal"}
    attend, ours = torch.nn.functional.scaled_dot_product_attention, (query, key, value)
    if hidden == "bias":
        *expected, of_bias = torch_gradients(lambda q, k, v, b: attend(q, k, v, attn_mask=b, **options), g.swapaxes(1, 2), *swapped, bias)
        gradients = attention.scaled_dot_product_attention_vjp(*ours, None, bias, cotangent=g)
        assert_allclose(gradients.pop("bias_bhts"), of_bias, **EXACT)
    else:
        options |= {"attn_mask": torch.tensor(mask)} if hidden == "mask" else {}
        expected = torch_gradients(attend, g.swapaxes(1, 2), *swapped, **options)
        settings: dict[str, Any] = {"mask_bhts": mask if hidden == "mask" else None, "causal": hidden == "causal"}
        gradients = attention.scaled_dot_product_attention_vjp(*ours, **settings, cotangent=g)
    for actual, wanted in zip(gradients.values(), expected, strict=True):
        assert_allclose(actual, wanted.swapaxes(1, 2), **EXACT)


def test_torch_layer_norm_gelu_and_embedding() -> None:
    torch = pytest.importorskip("torch")
    functional, rng = torch.nn.functional, np.random.default_rng(2)
    part, x, g = tree(CONFIG, 3, "layer_norm"), vectors(TARGET, 4) + 3, vectors(TARGET, 5)
    expected = torch_gradients(lambda *t: functional.layer_norm(t[0], (12,), *t[1:], eps=1e-5), g, x, part["scale"], part["offset"])
    gradients = normalization.layer_norm_vjp(part, x, 1e-5, cotangent=g)
    for actual, wanted in zip((gradients["x_btd"], *gradients["parameters"].values()), expected, strict=True):
        assert_allclose(actual, wanted, **EXACT)
    for name, approximate in (("gelu_erf", "none"), ("gelu_tanh", "tanh")):
        (wanted,) = torch_gradients(functional.gelu, g, 3 * x - 9, approximate=approximate)
        assert_allclose(feed_forward.activation_vjp(3 * x - 9, name, cotangent=g)["x"], wanted, **EXACT)
    (wanted,) = torch_gradients(functional.relu, g, x - 3)
    assert_allclose(feed_forward.activation_vjp(x - 3, "relu", cotangent=g)["x"], wanted, **EXACT)
    assert feed_forward.activation_vjp(np.zeros(1), "relu", cotangent=np.ones(1))["x"] == torch_gradients(
        functional.relu, np.ones(1), np.zeros(1)
    )
    table, ids = rng.normal(size=(6, 12)), rng.integers(0, 6, (BATCH, TARGET))
    (wanted,) = torch_gradients(lambda t: functional.embedding(torch.tensor(ids), t), g, table)
    assert_allclose(embedding.embedding_vjp({"table": table}, ids, False, cotangent=g)["parameters"]["table"], wanted, **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_torch_cross_entropy(smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    logits, label = 3 * rng.normal(size=(3, 5, 7)), rng.integers(0, 7, (3, 5))
    label[1, 3:] = label[2] = 0

    def torch_loss(x: Any) -> Any:
        return torch.nn.functional.cross_entropy(x.mT, torch.tensor(label), ignore_index=0, label_smoothing=smoothing)

    assert_allclose(loss.cross_entropy(logits, label, label != 0, smoothing), torch_loss(torch.tensor(logits)).item(), **EXACT)
    (wanted,) = torch_gradients(torch_loss, np.array(1.5), logits)
    gradient = loss.cross_entropy_vjp(logits, label, label != 0, smoothing, cotangent=np.array(1.5))["logits_btv"]
    assert_allclose(gradient, wanted, **EXACT)


def assert_module(module: Any, wanted: Mapping[str, np.ndarray]) -> None:
    """The gradients of a module's parameters, in its own layout: relayouts are linear, so they carry gradients as they carry weights."""
    grads = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    assert set(grads) == set(wanted)
    for name, gradient in grads.items():
        assert_allclose(wanted[name], gradient, **EXACT, err_msg=name)


@pytest.mark.parametrize("memory", ["self", "cross"])
def test_torch_multihead_attention(memory: str) -> None:
    torch = pytest.importorskip("torch")
    part, x, g = tree(CONFIG, 7, "multi_head_attention"), vectors(TARGET, 8), vectors(TARGET, 9)
    m, pairs = x if memory == "self" else vectors(SOURCE, 10), pair_mask(TARGET, TARGET if memory == "self" else SOURCE)
    module = torch_load(torch.nn.MultiheadAttention(12, 3, batch_first=True), torch_attention(part))
    query, keys = (torch.tensor(array, requires_grad=True) for array in (x, m))
    module(query, keys, keys, attn_mask=torch.tensor(~pairs), need_weights=False)[0].backward(torch.tensor(g))
    gradients = attention.multi_head_attention_vjp(part, x, m, pairs[None, None], cotangent=g)
    assert_module(module, torch_attention(gradients["parameters"]))
    assert_allclose(gradients["query_btd"], query.grad.numpy(), **EXACT)
    assert_allclose(gradients["memory_bsd"], keys.grad.numpy(), **EXACT)


@placements
@activations
def test_torch_encoder_layer(placement: str, activation: str) -> None:
    torch = pytest.importorskip("torch")
    config = CONFIG.replace(norm_placement=placement, activation=activation)
    part, x, g, real = tree(config, 11, "encoder_layer"), vectors(SOURCE, 12), vectors(SOURCE, 13), token_mask(SOURCE, 14)
    module = torch_load(torch.nn.TransformerEncoderLayer(**torch_options(config)), torch_layer(part))
    x_tensor = torch.tensor(x, requires_grad=True)
    module(x_tensor, src_key_padding_mask=torch.tensor(~real)).backward(torch.tensor(g))
    gradients = layers.encoder_layer_vjp(part, config, x, real[:, None, None], cotangent=g)
    assert_module(module, torch_layer(gradients["parameters"]))
    assert_allclose(gradients["x_btd"], x_tensor.grad.numpy(), **EXACT)


@placements
@activations
def test_torch_transformer(placement: str, activation: str) -> None:
    torch = pytest.importorskip("torch")
    config = CONFIG.replace(norm_placement=placement, activation=activation)
    part, source, target, g = tree(config, 15), vectors(SOURCE, 16), vectors(TARGET, 17), vectors(TARGET, 18)
    source_real, target_real = token_mask(SOURCE, 19), token_mask(TARGET, 20)

    def state(stacks: Mapping[str, Any]) -> dict[str, np.ndarray]:
        result: dict[str, np.ndarray] = {}
        for stack in ("encoder", "decoder"):
            result |= torch_norm(stacks[stack]["final_norm"], f"{stack}.norm")
            for index, layer in stacks[stack]["layers"].items():
                result |= torch_layer(layer, f"{stack}.layers.{index}.")
        return result

    options = torch_options(config)
    encoder_layer = torch.nn.TransformerEncoderLayer(**options)
    stack = torch.nn.TransformerEncoder(encoder_layer, 2, torch.nn.LayerNorm(12, config.epsilon), enable_nested_tensor=False)
    module = torch_load(torch.nn.Transformer(custom_encoder=stack, num_decoder_layers=3, **options), state(part))
    tensors = [torch.tensor(array, requires_grad=True) for array in (source, target)]
    masks = {"tgt_mask": np.triu(np.ones((TARGET, TARGET), bool), 1), "tgt_key_padding_mask": ~target_real}
    masks |= {"src_key_padding_mask": ~source_real, "memory_key_padding_mask": ~source_real}
    module(*tensors, **{name: torch.tensor(mask) for name, mask in masks.items()}).backward(torch.tensor(g))
    self_mask, cross_mask = target_real[:, None, None], source_real[:, None, None]
    memory = stacks.encoder(part["encoder"], config, source, cross_mask)
    second = stacks.decoder_vjp(part["decoder"], config, target, memory, self_mask, cross_mask, cotangent=g)
    first = stacks.encoder_vjp(part["encoder"], config, source, cross_mask, cotangent=second["memory_bsd"])
    assert_module(module, state({"encoder": first["parameters"], "decoder": second["parameters"]}))
    assert_allclose(first["x_bsd"], tensors[0].grad.numpy(), **EXACT)
    assert_allclose(second["x_btd"], tensors[1].grad.numpy(), **EXACT)


STEPS, RATES, DECAY = 5, (1e-2, 2e-2, 3e-2, 1e-2, 5e-3), 0.1
HYPER: dict[str, Any] = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
Arrays = dict[str, np.ndarray]


def run() -> tuple[Arrays, list[Arrays], Arrays]:
    """Parameters, the gradients of every step, and the parameters after our steps, each of its own rate."""
    rng = np.random.default_rng(21)
    first: Arrays = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
    gradients = [{name: 10.0**power * rng.normal(size=p.shape) for name, p in first.items()} for power in (0, -3, 2, -8, 0)]
    zeros = {name: np.zeros_like(p) for name, p in first.items()}
    state: dict[str, Any] = {"parameters": first, "first_moment": zeros, "second_moment": zeros}
    for step, (g, rate) in enumerate(zip(gradients, RATES, strict=True), start=1):
        moments = (state["first_moment"], state["second_moment"])
        state = optimizer.adam(state["parameters"], g, *moments, step, rate, **HYPER, weight_decay=DECAY)
    return first, gradients, state["parameters"]


def test_torch_adamw() -> None:
    torch = pytest.importorskip("torch")
    first, gradients, ours = run()
    tensors = {name: torch.tensor(p, requires_grad=True) for name, p in first.items()}
    groups = [{"params": [tensors["kernel"]], "weight_decay": DECAY}, {"params": [tensors["bias"]], "weight_decay": 0.0}]
    stock = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)
    for g, rate in zip(gradients, RATES, strict=True):
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(g[name])
        for group in stock.param_groups:
            group["lr"] = rate
        stock.step()
    for name, tensor in tensors.items():
        assert_allclose(ours[name], tensor.detach().numpy(), **EXACT)


def test_optax_adamw() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    first, gradients, ours = run()
    with jax.enable_x64(True):
        stock = optax.adamw(
            lambda count: jax.numpy.asarray(RATES)[count], b1=0.9, b2=0.98, eps=1e-9, weight_decay=DECAY, mask=optimizer.decay_mask(first)
        )
        theirs = {name: jax.numpy.asarray(p) for name, p in first.items()}
        state = stock.init(theirs)
        for g in gradients:
            updates, state = stock.update({name: jax.numpy.asarray(value) for name, value in g.items()}, state, theirs)
            theirs = optax.apply_updates(theirs, updates)
        for name, value in theirs.items():
            assert value.dtype == np.float64
            assert_allclose(ours[name], np.asarray(value), **EXACT)


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_optax_clip_by_global_norm(limit: float) -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    first = run()[0]
    with jax.enable_x64(True):
        stock = optax.clip_by_global_norm(limit)
        theirs, _ = stock.update({name: jax.numpy.asarray(value) for name, value in first.items()}, stock.init(first))
        for name, value in optimizer.clip_global_norm(first, limit).items():
            assert_allclose(value, np.asarray(theirs[name]), **EXACT)
