"""Specifics of training in the PyTorch port: its graphs, its kernels, and the origin of random keep masks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import Backend
from test_training import FULL, batch, begin
from torch._dynamo.testing import CompileCounter

from impl_torch.attention import attention_weights, scaled_dot_product_attention
from impl_torch.values import Drop, Heads
from reference_numpy.scores import Scores

BACKEND = Backend("torch")


@pytest.mark.parametrize("scores", [Scores(), Scores(cap=1.0)], ids=["fused", "weights"])
def test_random_masks_of_attention_weights_are_independent(scores: Scores) -> None:
    """Zero queries attend to all keys alike, and identity values show the weights after dropout.

    The rate, and the correlation of neighbors along every axis, are within five standard deviations of a fair draw.
    """
    torch.manual_seed(0)
    rate, query, value = 0.3, torch.zeros(8, 20, 4, 3, dtype=torch.float64), torch.eye(16, dtype=torch.float64)
    value_bsge, key = value[None, :, None].expand(8, 16, 4, 16), torch.zeros(8, 16, 4, 3, dtype=torch.float64)
    dropped_bhts = scaled_dot_product_attention(Heads(query, key, value_bsge), scores=scores, drop=Drop(rate=rate)).transpose(1, 2)
    torch.testing.assert_close(dropped_bhts.unique(), torch.tensor([0, 1 / 16 / (1 - rate)], dtype=torch.float64))
    centred, variance = (dropped_bhts != 0).double() - (1 - rate), rate * (1 - rate)
    assert abs(centred.mean()) < 5 * (variance / centred.numel()) ** 0.5
    for axis, size in enumerate(centred.shape):
        product = centred.narrow(axis, 0, size - 1) * centred.narrow(axis, 1, size - 1)
        assert abs(product.mean()) < 5 * variance / product.numel() ** 0.5, f"axis {axis}"
    assert (attention_weights(query, key, scores=scores) == 1 / 16).all()


def test_a_step_has_its_own_random_numbers_and_leaves_torch_s_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run, fill, during = begin(BACKEND), torch.utils.deterministic.fill_uninitialized_memory, []
    backward, before = torch.Tensor.backward, torch.get_rng_state()
    monkeypatch.setattr(
        torch.Tensor, "backward", lambda loss: during.append(torch.are_deterministic_algorithms_enabled()) or backward(loss)
    )
    loss = float(run.train_step(*batch()))
    assert during == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory is fill
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert float(begin(BACKEND).train_step(*batch())) == loss


@pytest.mark.conformance
def test_more_shapes_than_torch_keeps_by_itself_have_a_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_: Callable[..., Any] = torch.compile
    traced = CompileCounter()
    monkeypatch.setattr(torch, "compile", lambda model, fullgraph, dynamic, options: compile_(
        model, fullgraph=fullgraph, dynamic=dynamic, backend=traced))  # fmt: skip
    torch.compiler.reset()
    run = begin(BACKEND, compiled=True)
    lengths = range(4, 5 + torch._dynamo.config.recompile_limit)
    for length in [*lengths, *lengths]:
        run.train_step(*batch(length, length=length))
    assert traced.frame_count == len(lengths)
    with pytest.raises(ValueError, match=r"token ids.*0.*22; got 3\d"):
        run.train_step(*(token + 16 for token in batch()))


def test_one_fused_kernel_updates() -> None:
    run = begin(BACKEND, recipe=FULL)
    with torch.profiler.profile() as seen:
        run.train_step(*batch())
    assert sum(event.count for event in seen.key_averages() if "_fused_adam" in event.key) == 2  # with and without decay
