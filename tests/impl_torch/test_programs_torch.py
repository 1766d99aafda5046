"""Users' programs of the PyTorch port: torch.func, torch.compile, torch.export and ONNX."""

import io
from functools import partial
from typing import Any

import pytest
import torch
from test_use_torch import IDS, close, loaded, right, trained
from torch.export import Dim, export
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from user_models import CONFIG, SOURCE, TARGET

from impl_torch.programs.static_cache import decode_step, start_cache

SHORTER: dict[str, Any] = {"source": SOURCE[:3, :6], "target": TARGET[:3, :4]}


def squares(model: Any, given: Any, *ids: Any) -> Any:
    return functional_call(model, given, ids or IDS).square().sum()


def test_a_functional_call_has_other_parameters_and_leaves_the_model() -> None:
    model, other = loaded(), loaded(seed=1)
    before = model(*IDS)
    right(other, lambda *ids: functional_call(model, dict(other.named_parameters()), ids))
    close(model(*IDS), before)
    assert model.logits.weight is model.source_embedding.weight


def test_functional_gradients_of_a_batch_and_of_each_row() -> None:
    model = loaded()
    given = dict(model.named_parameters())
    model(*IDS).square().sum().backward()
    whole = grad(partial(squares, model))(given)
    of_row = grad(lambda given, *row: squares(model, given, *(x[None] for x in row)))
    rows = vmap(of_row, in_dims=(None, 0, 0))(given, *IDS)
    for name, parameter in given.items():
        close(whole[name], parameter.grad)
        close(rows[name].sum(0), parameter.grad)


def test_vmap_over_batches_and_over_models() -> None:
    models = [loaded(seed=seed) for seed in (0, 1)]
    two = vmap(lambda source: models[0](source, IDS[1]))(torch.stack([IDS[0].flip(0), IDS[0]]))
    right(models[0], lambda *_: two[1])
    states = stack_module_state(models)
    found = vmap(lambda *state: functional_call(models[0], state, IDS))(*states)
    for one, model in zip(found, models, strict=True):
        right(model, lambda *_, one=one: one)


def test_forward_and_second_derivatives_are_difference_quotients() -> None:
    model, x = loaded(), torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    given = dict(model.named_parameters())
    along = {name: torch.randn_like(each) for name, each in given.items()}

    def call(given: Any) -> Any:
        return functional_call(model, given, IDS)

    def slope(step: float) -> Any:
        return torch.autograd.grad(model.encoder.layers[0](x + step).sum(), x, create_graph=True)[0].sum()

    with sdpa_kernel(SDPBackend.MATH):
        _, found = jvp(call, (given,), (along,))
        moved = [call({name: p + step * along[name] for name, p in given.items()}) for step in (1e-6, -1e-6)]
        (second,) = torch.autograd.grad(slope(0), x)
        quotient = (slope(1e-5) - slope(-1e-5)) / 2e-5
    torch.testing.assert_close(found, (moved[0] - moved[1]) / 2e-6, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second.sum(), quotient, rtol=1e-4, atol=1e-4)
    soft = torch.rand(1, 3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda soft: model(soft, IDS[1][:1]).sum(), soft, fast_mode=True)


@pytest.mark.conformance
def test_compiled_layers_train() -> None:
    torch.compiler.reset()
    model = loaded()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(backend="aot_eager")
    right(trained(model))


def exported(model: Any) -> Any:
    """Exports for any batch and lengths, saves and loads."""
    batch, source, target = (Dim(name, min=2) for name in ("batch", "source", "target"))
    shapes = {"source": {0: batch, 1: source}, "target": {0: batch, 1: target}}
    torch.export.save(export(model, IDS, dynamic_shapes=shapes), file := io.BytesIO())
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.conformance
@pytest.mark.parametrize("padding_id", [0, None])
def test_an_exported_model_serves_every_shape(padding_id: int | None) -> None:
    model = loaded(CONFIG.replace(padding_id=padding_id))
    run = exported(model)
    right(model, run)
    right(model, run, **SHORTER)


@pytest.mark.conformance
@torch.no_grad()
def test_one_exported_step_serves_every_position() -> None:
    class Step(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, token_b1: Any, cache: Any) -> Any:
            return decode_step(self.model, token_b1, cache)

    model = loaded(CONFIG.replace(padding_id=None))
    cache = start_cache(model, model.encode(IDS[0]), length=6)
    first, cache = decode_step(model, IDS[1][:, :1], cache)
    shapes = tree_map(lambda _: None, cache) | {"read": Dim.DYNAMIC}
    step = export(Step(model), (IDS[1][:, :1], cache | {"read": 3}), dynamic_shapes=(None, shapes)).module()
    logits = [first]
    for token_b1 in IDS[1][:, 1:].split(1, dim=1):
        logits_b1v, cache = step(token_b1, cache)
        logits.append(logits_b1v)
    right(model, lambda *_: torch.cat(logits, dim=1))
