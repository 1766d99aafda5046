"""Replaced parts of the PyTorch port are used as they are, by layers, unpadded runs, searches and exports."""

import copy
from typing import Any

import pytest
import torch
from torch_models import CONFIG, SOURCE, TARGET, close, model_of

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.programs.unpadding import unpadded


class Shifted(torch.nn.Module):
    """A user's layer that reads the previous token, around one of ours."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.layer(x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1], mask)


@pytest.mark.parametrize("replaced", ["layer", "sub-layer", "forward of a layer", "forward of the stack", "projection"])
def test_what_may_look_at_neighbours_is_given_rows(replaced: str) -> None:
    model = model_of()
    encoder = model.encoder
    if replaced == "layer":
        encoder.layers[0] = Shifted(encoder.layers[0])
    elif replaced == "sub-layer":
        encoder.layers[0].feed_forward = Shifted(torch.nn.Sequential(encoder.layers[0].feed_forward))
        encoder.layers[0].feed_forward.forward = lambda x, keep=None: encoder.layers[0].feed_forward.layer(x.roll(1, 1))
    elif replaced == "projection":
        encoder.layers[0].self_attention.query = torch.nn.Sequential(encoder.layers[0].self_attention.query, Rolled())
    else:
        module = encoder if "stack" in replaced else encoder.layers[0]
        original = module.forward
        module.forward = lambda x, *rest, **named: original(x.roll(1, 1), *rest, **named)
    source = SOURCE.clone()
    source[0, 2:] = 0
    expected = model(source, TARGET)
    torch.testing.assert_close(unpadded(model, 0)(source, TARGET), expected, rtol=0, atol=0)


class Rolled(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.roll(1, 1)


def test_attention_finds_its_heads_in_what_its_projections_give() -> None:
    """As under tensor parallelism: each process has some of the heads."""
    model = model_of().encoder.layers[0].self_attention
    expected, halves = model(x := torch.randn(2, 5, 32), x), []
    size = model.query.out_features // 2
    for half in range(2):
        part = copy.deepcopy(model)
        chosen = slice(half * size, (half + 1) * size)
        for name in ("query", "key", "value"):
            linear = getattr(part, name)
            linear.weight = torch.nn.Parameter(linear.weight[chosen])
        part.output.weight = torch.nn.Parameter(part.output.weight[:, chosen])
        halves.append(part(x, x))
    close(halves[0] + halves[1], expected)


class Scaled(torch.nn.Parameter):
    """A parameter whose class computes in its own way, as in quantized models."""


def test_a_projection_whose_weight_is_of_another_class_is_not_fused() -> None:
    model = model_of()
    hidden = model.decoder.layers[0].feed_forward.hidden
    hidden.weight = Scaled(hidden.weight.detach())
    kept = Searcher(model).model.decoder.layers[0].feed_forward
    assert type(kept.hidden.weight) is Scaled
    assert type(kept.output) is not torch.nn.Linear


def test_export_leaves_out_no_parameter() -> None:
    model = model_of()
    feed_forward = model.encoder.layers[0].feed_forward
    feed_forward.hidden = torch.nn.Sequential(feed_forward.hidden, torch.nn.Linear(64, 64))
    with pytest.raises(ValueError, match=r"(?s)hidden\.0\.weight\n.*hidden\.1\.weight"):
        weights.export(model, CONFIG)
