"""The PyTorch port in use: torch's transforms, exporters, wrappers and copies work with it, or are rejected."""

import importlib.util
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch_models import CONFIG, SOURCE, TARGET, close, encoder_config, model_of, tokens

from impl_torch import attention, training, weights
from impl_torch.programs.compiled import compiled
from impl_torch.programs.unpadding import unpadded
from impl_torch.transformer import Transformer
from impl_torch.values import Heads, Text
from reference_numpy import transformer as reference
from reference_numpy.parameters import nest
from reference_numpy.scores import Scores

F = torch.nn.functional


@pytest.mark.conformance
@pytest.mark.parametrize("padding_id", [0, None])
def test_one_graph_serves_every_batch_and_every_length(padding_id: int | None) -> None:
    torch.compiler.reset()
    traced, model = CompileCounter(), model_of(CONFIG.replace(padding_id=padding_id))
    graph = torch.compile(model, backend=traced, fullgraph=True, dynamic=True)
    for batch, source, target in ((3, 7, 5), (5, 9, 6), (2, 2, 2), (4, 4, 4), (7, 3, 30), (6, 5, 5), (8, 6, 6), (9, 7, 7)):
        given = tokens(batch, source), tokens(batch, target)
        close(graph(*given), model(*given))
    assert traced.frame_count == 1
    run, (source, target) = compiled(model), given
    with pytest.raises(ValueError, match=r"token ids.*0.*18; got 19"):
        run(source + 1, target)
    with pytest.raises(ValueError, match="source mask"):
        run(Text(source, source), target)


def test_causal_attention_of_two_dynamic_lengths_is_one_graph() -> None:
    torch.compiler.reset()
    traced = CompileCounter()
    graph = torch.compile(attention.scaled_dot_product_attention, backend=traced, fullgraph=True, dynamic=True)
    for target, source in ((5, 7), (4, 6), (9, 5)):
        query, key = torch.randn(2, target, 4, 8), torch.randn(2, source, 2, 8)
        given = Heads(query, key, key), None, Scores(causal=True)
        close(graph(*given), attention.scaled_dot_product_attention(*given))
    assert traced.frame_count == 1


def _minus_infinity(query: Any, key: Any, value: Any, attn_mask: Any, *_: Any, **options: Any) -> Any:
    """Textbook attention: NaN for a row without keys."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores + _bias(attn_mask, query.dtype)).softmax(-1) @ value


def _lowest_number(query: Any, key: Any, value: Any, attn_mask: Any, *_: Any, **options: Any) -> Any:
    """Attention that fills masked scores with the lowest number: the mean of all values for a row without keys."""
    return _minus_infinity(query, key, value, _bias(attn_mask, query.dtype).clamp(min=torch.finfo(query.dtype).min))


def _bias(attn_mask: Any, dtype: Any) -> Any:
    return torch.zeros(attn_mask.shape, dtype=dtype).masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else attn_mask


KERNELS = [_minus_infinity, _lowest_number]


@pytest.mark.conformance
@pytest.mark.parametrize("kernel", KERNELS)
def test_an_exported_graph_needs_no_kernel_that_zeroes_empty_rows(kernel: Callable[..., Any]) -> None:
    class Elsewhere(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            attends = target is torch.ops.aten.scaled_dot_product_attention.default
            return kernel(*args, **kwargs) if attends else super().call_function(target, args, kwargs)

    model, source, target = model_of(), SOURCE.clone(), TARGET.clone()
    source[1], target[0, :2] = 0, 0
    graph = torch.export.export(model, (source, target)).module(check_guards=False)
    assert any(node.target is torch.ops.aten.scaled_dot_product_attention.default for node in graph.graph.nodes)
    expected = reference.transformer(nest(weights.export(model, CONFIG)), CONFIG, source.numpy(), target.numpy())
    with torch.no_grad():
        close(Elsewhere(graph).run(source, target), torch.from_numpy(expected))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("extra", ["mask", "bias", "both", "causal"])
def test_where_a_kernel_is_not_known_empty_rows_are_zero_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, extra: str, kernel: Callable[..., Any]
) -> None:
    given = [torch.randn(2, length, 4, 8, dtype=torch.float64, requires_grad=True) for length in (6, 5, 5)]
    mask = torch.ones(2, 1, 6, 5, dtype=torch.bool)
    mask[0, :, 1] = False
    bias = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    options: dict[str, Any] = {
        "mask": {"mask_bhts": mask},
        "bias": {"mask_bhts": torch.where(mask, 0.0, -torch.inf).double()},
        "both": {"mask_bhts": torch.where(mask, bias, -torch.inf)},
        "causal": {"mask_bhts": mask, "scores": Scores(causal=True)},
    }[extra]

    def run(*given: Any) -> tuple[Any, ...]:
        output = attention.scaled_dot_product_attention(Heads(*given), **options)
        return output, *torch.autograd.grad(output.square().sum(), given)

    expected = run(*given)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    for found, wanted in zip(make_fx(run)(*given)(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_bias_has_the_dtype_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda query, *_, attn_mask, **__: given.append(attn_mask) or query)
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    attention.scaled_dot_product_attention(Heads(query, query, query), torch.zeros(1, 1, 2, 2))
    assert given[0].dtype == torch.bfloat16


def test_parameters_without_values_are_neither_loaded_nor_exported() -> None:
    with torch.device("meta"):
        model = Transformer(CONFIG)
    with pytest.raises(ValueError, match="meta device"):
        weights.load(model, weights.export(model_of(), CONFIG), CONFIG)
    with pytest.raises(ValueError, match="meta device"):
        weights.export(model, CONFIG)


def test_ids_without_values_are_not_read() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model_of().training_loss(mode.from_tensor(SOURCE), mode.from_tensor(TARGET)).shape == ()


def test_the_training_loss_is_that_of_a_call_with_hooks_before_which_the_ids_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    model = model_of()
    model.register_forward_hook(lambda *_: calls.append("forward"))
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: calls.append("read") or tolist(tensor))
    model.training_loss(SOURCE, TARGET)
    assert calls == ["read", "read", "forward"]
    calls.clear()
    unpadded(model.training_loss, 0)(SOURCE, TARGET)
    assert calls == ["read", "read", "forward"]


def encoder(**changes: Any) -> Any:
    return model_of(encoder_config(**{"masked_language_head": False} | changes))


def test_an_encoder_alone_is_called_as_any_module() -> None:
    for model, expected in (
        (encoder(classes=3), Transformer.classify),
        (encoder(masked_language_head=True), Transformer.masked_language_logits),
        (encoder(), Transformer.encode),
    ):
        wanted = expected(model, SOURCE)
        assert torch.equal(model(SOURCE), wanted)
        padded = SOURCE.masked_fill(SOURCE > 9, 0)
        close(unpadded(model, 0)(source=padded), expected(model, padded))
    with pytest.raises(ValueError, match="`classify` or `masked_language_logits`"):
        encoder(classes=3, masked_language_head=True)(SOURCE)
    with pytest.raises(ValueError, match="encoder-only"):
        encoder()(SOURCE, TARGET)


def test_importing_the_trainer_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    spec: Any = importlib.util.spec_from_file_location("impl_torch.training_again", training.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_steps_of_trainers_in_two_threads_wait_for_each_other() -> None:
    """torch has one deterministic mode: a step that ends would disable it for another, or leave it enabled."""
    inside, both = [], []

    def step() -> None:
        with training._deterministic():
            inside.append(1)
            time.sleep(0.02)
            both.append(len(inside))
            assert torch.are_deterministic_algorithms_enabled()
            inside.pop()

    threads = [threading.Thread(target=step) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert both == [1, 1, 1]
    assert not torch.are_deterministic_algorithms_enabled()
