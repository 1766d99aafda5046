"""The truth's gradients and updates equal those of torch's autograd through its stock functions, of its AdamW and of optax, in float64."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from strategies import tree
from test_truth_stock_layers import BATCH, CONFIG, EXACT, TARGET, pair_mask, torch_backward, vectors

from reference_numpy import attention, embedding, feed_forward, loss, normalization, optimizer


def torch_gradients(function: Any, g: np.ndarray, *inputs: np.ndarray, **arguments: Any) -> list[np.ndarray]:
    """The gradients of `<g, function(*inputs)>` by torch's autograd."""
    return torch_backward(function, g, *inputs, **arguments)[1]


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
        settings: dict[str, Any] = {"bias_bhts": bias}
        output, (*expected, of_bias) = torch_backward(
            lambda q, k, v, b: attend(q, k, v, attn_mask=b, **options), g.swapaxes(1, 2), *swapped, bias
        )
    else:
        settings = {"mask_bhts": mask if hidden == "mask" else None, "causal": hidden == "causal"}
        options |= {"attn_mask": mask} if hidden == "mask" else {}
        output, expected = torch_backward(attend, g.swapaxes(1, 2), *swapped, **options)
    assert_allclose(attention.scaled_dot_product_attention(*ours, **settings), output.detach().swapaxes(1, 2), **EXACT)
    gradients = attention.scaled_dot_product_attention_vjp(*ours, **settings, cotangent=g)
    if hidden == "bias":
        assert_allclose(gradients.pop("bias_bhts"), of_bias, **EXACT)
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
