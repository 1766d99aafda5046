"""`torch.func` and autograd."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .common import CONFIG, SOURCE, TARGET, expected, model_of, right, same, topic, trained

TOPIC = topic("torch.func and autograd")


@TOPIC.works("`functional_call` with other parameters, tied; the model stays as it was", sample=True)
def _(model, other) -> None:
    before = expected(model)
    same(functional_call(model, dict(other.named_parameters()), (SOURCE, TARGET)), expected(other))
    same(model(SOURCE, TARGET), before)
    assert model.logits.weight is model.source_embedding.weight and isinstance(model.logits.weight, torch.nn.Parameter)


@TOPIC.works("`torch.func.grad` of `functional_call` is what `backward` gives")
def _(model) -> None:
    gradients = grad(lambda given: functional_call(model, given, (SOURCE, TARGET)).square().sum())(dict(model.named_parameters()))
    model(SOURCE, TARGET).square().sum().backward()
    for name, parameter in model.named_parameters():
        same(gradients[name], parameter.grad)


@TOPIC.works("`vmap` over batches of ids")
def _(model) -> None:
    found = vmap(lambda source: model(source, TARGET))(torch.stack([SOURCE, SOURCE.flip(0)]))
    same(found[1], expected(model, source=SOURCE.flip(0)))


@TOPIC.works("an ensemble: `stack_module_state`, `vmap`")
def _() -> None:
    models = [model_of(seed=seed) for seed in (0, 1)]
    parameters, buffers = stack_module_state(models)
    found = vmap(lambda *state: functional_call(models[0], state, (SOURCE, TARGET)))(parameters, buffers)
    for one, model in zip(found, models, strict=True):
        same(one, expected(model))


@TOPIC.works("gradients of every row: `vmap(grad(...))`")
def _(model) -> None:
    def of_row(given: dict[str, torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional_call(model, given, (source[None], target[None])).square().sum()

    rows = vmap(grad(of_row), in_dims=(None, 0, 0))(dict(model.named_parameters()), SOURCE, TARGET)
    model(SOURCE, TARGET).square().sum().backward()
    same(rows["logits.bias"].sum(0), model.logits.bias.grad)


@TOPIC.works("`jvp` under `sdpa_kernel(SDPBackend.MATH)` is the difference quotient")
def _(model) -> None:
    parameters = dict(model.named_parameters())
    along = {name: torch.randn_like(x) for name, x in parameters.items()}

    def call(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, given, (SOURCE, TARGET))

    with sdpa_kernel(SDPBackend.MATH):
        _, found = jvp(call, (parameters,), (along,))
        moved = [call({name: x + step * along[name] for name, x in parameters.items()}) for step in (1e-6, -1e-6)]
    same(found, (moved[0] - moved[1]) / 2e-6, 1e-5)


def layers_alike(model: Any) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """The port's layer and a stock attention."""
    stock = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    return [model.encoder.layers[0], lambda x: stock(x, x, x, need_weights=False)[0]]


@TOPIC.stock("`jvp` with the CPU's default attention kernel", "it has no forward derivative")
def _(model) -> None:
    x = torch.randn(2, 3, 32, dtype=torch.float64)
    for call in layers_alike(model):
        with pytest.raises((NotImplementedError, RuntimeError)):
            jvp(call, (x,), (x,))


@TOPIC.stock("a second derivative with the CPU's default attention kernel", "it has none")
def _(model) -> None:
    x = torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    for call in layers_alike(model):
        (slope,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="flash_attention_for_cpu_backward is not implemented"):
            torch.autograd.grad(slope.square().sum(), x)


@TOPIC.works("a second derivative under `sdpa_kernel(SDPBackend.MATH)` is the difference quotient")
def _() -> None:
    layer, x = model_of().encoder.layers[0], torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        slopes = [torch.autograd.grad(layer(x + step).sum(), x, create_graph=True)[0].sum() for step in (0, 1e-5, -1e-5)]
        (second,) = torch.autograd.grad(slopes[0], x)
    same(second.sum(), (slopes[1] - slopes[2]) / 2e-5, 1e-4)


@TOPIC.works("`gradcheck` through soft one-hot rows")
def _(model) -> None:
    soft = torch.rand(1, 3, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda soft: model(soft, TARGET[:1]).sum(), soft, fast_mode=True)


@TOPIC.works("calls from four threads")
def _(model) -> None:
    with ThreadPoolExecutor(4) as pool:
        for each in pool.map(lambda _: model(SOURCE, TARGET), range(4)):
            same(each, expected(model))


@TOPIC.works("`torch.inference_mode` after training, then training again")
def _() -> None:
    model = trained(model_of())
    with torch.inference_mode():
        right(model)
    right(trained(model))
    assert model.config == CONFIG
