"""Attention, losses, norms and updates of the reference equal the frameworks' stock functions in float64; torch's with gradients."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_reference_stock_layers import EXACT, pair_mask

from reference_numpy import attention, loss, normalization, optimizer
from reference_numpy.scores import Scores
from reference_numpy.values import Heads


def torch_backward(function: Any, g: np.ndarray, *inputs: np.ndarray, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """Returns the function's output and the gradients of `<g, output>` with respect to the inputs."""
    import torch

    tensors = [torch.tensor(array, requires_grad=True) for array in inputs]
    result = function(*tensors, **{name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()})
    result.backward(torch.tensor(g))
    return result, [tensor.grad.numpy() for tensor in tensors]


@pytest.mark.parametrize("hidden", ["mask", "bias", "causal"])
def test_torch_scaled_dot_product_attention(hidden: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(2, 5, 6, 4)), rng.normal(size=(2, 5, 2, 4)), rng.normal(size=(2, 5, 2, 3))
    g, mask, bias = rng.normal(size=(2, 5, 6, 3)), pair_mask(2, 6, 5, 5), rng.normal(size=(1, 6, 5, 5))
    swapped = [x.swapaxes(1, 2) for x in (query, key, value)]
    options: dict[str, Any] = {"enable_gqa": True, "is_causal": hidden == "causal"}
    attend, ours = torch.nn.functional.scaled_dot_product_attention, Heads(query, key, value)
    if hidden == "bias":
        settings: dict[str, Any] = {"mask_bhts": bias}
        output, (*expected, of_bias) = torch_backward(
            lambda q, k, v, b: attend(q, k, v, attn_mask=b, **options), g.swapaxes(1, 2), *swapped, bias
        )
    else:
        settings = {"mask_bhts": mask if hidden == "mask" else None, "scores": Scores(causal=hidden == "causal")}
        options |= {"attn_mask": mask} if hidden == "mask" else {}
        output, expected = torch_backward(attend, g.swapaxes(1, 2), *swapped, **options)
    assert_allclose(attention.scaled_dot_product_attention(ours, **settings), output.detach().swapaxes(1, 2), **EXACT)
    gradients = attention.scaled_dot_product_attention_vjp(ours, **settings, cotangent=g)
    if hidden == "bias":
        assert_allclose(gradients.pop("mask_bhts"), of_bias, **EXACT)
    for actual, wanted in zip(gradients.values(), expected, strict=True):
        assert_allclose(actual, wanted.swapaxes(1, 2), **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_torch_cross_entropy(smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    logits, label = 3 * rng.normal(size=(3, 5, 7)), rng.integers(0, 7, (3, 5))
    label[1, 3:] = label[2] = 0

    def torch_loss(x: Any) -> Any:
        return torch.nn.functional.cross_entropy(x.mT, torch.tensor(label), ignore_index=0, label_smoothing=smoothing)

    assert_allclose(loss.cross_entropy(logits, label, label != 0, smoothing), torch_loss(torch.tensor(logits)).item(), **EXACT)
    _, (wanted,) = torch_backward(torch_loss, np.array(1.5), logits)
    gradient = loss.cross_entropy_vjp(logits, label, label != 0, smoothing, cotangent=np.array(1.5))["logits_btv"]
    assert_allclose(gradient, wanted, **EXACT)


def test_torch_adamw() -> None:
    torch = pytest.importorskip("torch")
    rng, decay = np.random.default_rng(21), 0.1
    first = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
    tensors = {name: torch.tensor(p, requires_grad=True) for name, p in first.items()}
    groups = [{"params": [tensors["kernel"]], "weight_decay": decay}, {"params": [tensors["bias"]], "weight_decay": 0.0}]
    stock, zeros = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9), {name: np.zeros_like(p) for name, p in first.items()}
    ours: dict[str, Any] = {"parameters": first, "first_moment": zeros, "second_moment": zeros}
    for step, (rate, power) in enumerate(zip((1e-2, 2e-2, 3e-2, 1e-2, 5e-3), (0, -3, 2, -8, 0), strict=True), start=1):
        g = {name: 10.0**power * rng.normal(size=p.shape) for name, p in first.items()}
        ours = optimizer.adam(ours["parameters"], g, ours["first_moment"], ours["second_moment"], step, rate, 0.9, 0.98, 1e-9, decay)
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(g[name])
        for group in stock.param_groups:
            group["lr"] = rate
        stock.step()
    for name, tensor in tensors.items():
        assert_allclose(ours["parameters"][name], tensor.detach().numpy(), **EXACT)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6])
def test_norms_of_keras_and_flax(epsilon: float) -> None:
    keras, jax, nnx = (pytest.importorskip(name) for name in ("keras", "jax", "flax.nnx"))
    scale, offset, x = (np.random.default_rng(3).normal(size=shape) + 3 for shape in ((12,), (12,), (2, 5, 12)))
    layer = keras.layers.LayerNormalization(epsilon=epsilon, dtype="float64")
    layer.build(x.shape)
    layer.set_weights([scale, offset])
    assert_allclose(normalization.layer_norm({"scale": scale, "offset": offset}, x, epsilon), np.asarray(layer(x)), **EXACT)
    with jax.enable_x64(True):
        norm = nnx.RMSNorm(12, epsilon=epsilon, param_dtype=np.float64, rngs=nnx.Rngs(0))
        norm.scale[...] = scale
        assert_allclose(normalization.rms_norm({"scale": scale}, x, epsilon), np.asarray(norm(x)), **EXACT)
