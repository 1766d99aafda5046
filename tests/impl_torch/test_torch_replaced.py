"""What users put in the place of a part of the PyTorch port is used as it is, by layers, unpadded runs, searches and the export."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402
from torch_models import CONFIG, SOURCE, TARGET, Doubled, close, model_of  # noqa: E402

from impl_torch import weights  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.dropout import Dropout  # noqa: E402
from impl_torch.programs.unpadding import unpadded  # noqa: E402

SEARCH = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}


class Shifted(torch.nn.Module):
    """A layer of a user, which looks at the token before, around one of ours."""

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
    """As tensor parallelism leaves them: each process has some of the heads."""
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


class AllDropped(Dropout):
    """A dropout with a `forward` of its own."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros_like(x)


def test_a_hook_on_the_dropout_of_the_weights_is_given_them() -> None:
    model, given = model_of(), []
    expected = model(SOURCE, TARGET)
    weights_of = model.states(SOURCE, TARGET)["encoder"]["self_attention_lbhts"][0]
    model.encoder.layers[0].self_attention.weights_dropout.register_forward_hook(lambda _, args, output: given.append(args[0]))
    close(model(SOURCE, TARGET), expected)
    close(given[0], weights_of)
    for all_dropped in (torch.nn.Dropout(1.0), AllDropped(0.0)):
        model.encoder.layers[0].self_attention.weights_dropout = all_dropped
        assert not torch.allclose(model(SOURCE, TARGET), expected)


def found(model: Any) -> Any:
    return Searcher(model).greedy_search(SOURCE, SEARCH)["token_bn"].tolist()


def test_searches_use_what_libraries_make_of_a_projection() -> None:
    model = model_of()
    expected = found(model)
    pruned = copy.deepcopy(model)
    prune.l1_unstructured(pruned.decoder.layers[0].feed_forward.hidden, "weight", 1)
    pruned(SOURCE, TARGET)
    assert found(pruned) == expected
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for name in ("query", "key", "value", "output"):
            setattr(layer.self_attention, name, Wrapped(getattr(layer.self_attention, name)))
        layer.feed_forward.hidden = Wrapped(layer.feed_forward.hidden)
    model.logits = Wrapped(model.logits)
    assert found(model) == expected
    assert model(SOURCE, TARGET).shape == (3, 4, 19)


class Wrapped(torch.nn.Module):
    """What has neither the weight nor the sizes of the linear layer that it calls."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Scaled(torch.nn.Parameter):
    """A parameter whose class computes in its own way, as those of quantised models do."""


def test_a_projection_whose_weight_is_of_another_class_is_not_fused() -> None:
    model = model_of()
    hidden = model.decoder.layers[0].feed_forward.hidden
    hidden.weight = Scaled(hidden.weight.detach())
    kept = Searcher(model).model.decoder.layers[0].feed_forward
    assert type(kept.hidden.weight) is Scaled
    assert type(kept.output) is not torch.nn.Linear


def test_a_searcher_is_moved_as_a_whole() -> None:
    searcher = Searcher(model_of())
    assert searcher.to("cpu").greedy_search(SOURCE, SEARCH)["token_bn"].tolist() == found(model_of())
    moved = searcher.to("meta").model
    tensors = [
        x for part in moved.modules() for x in (*part.parameters(recurse=False), *vars(part).values()) if isinstance(x, torch.Tensor)
    ]
    assert {x.device.type for x in tensors} == {"meta"}
    with pytest.raises(ValueError, match="int8 needs a CPU"):
        Searcher(model_of(), "int8").to("meta")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantisers_find_the_projections() -> None:
    model = model_of()
    kinds = [type(module) for module in model.encoder.modules() if isinstance(module, torch.nn.Linear)]
    assert kinds == [torch.nn.Linear] * 6  # `torch.export` writes down the class, and torch's quantisers look for this one
    found = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not any(type(module) is torch.nn.Linear for module in found.modules())
    torch.testing.assert_close(found(SOURCE, TARGET), model(SOURCE, TARGET), rtol=0, atol=0.3)


class LowRank(torch.nn.Module):
    """What users put in the place of a linear layer; it looks like one."""

    def __init__(self, base: Any, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)

    weight, bias, in_features = (property(lambda self, name=name: getattr(self.base, name)) for name in ("weight", "bias", "in_features"))

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def test_export_leaves_out_no_parameter() -> None:
    model = model_of()
    arrays = weights.export(model, CONFIG)
    model.logits = torch.nn.Linear(32, 19)
    with pytest.raises(ValueError, match=r"no array would hold the module's logits\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    model.encoder.layers[0].feed_forward.hidden = LowRank(model.encoder.layers[0].feed_forward.hidden)
    with pytest.raises(ValueError, match=r"hidden\.down\.weight\n.*hidden\.up\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    torch.nn.utils.parametrize.register_parametrization(model.encoder.layers[0].feed_forward.hidden, "weight", Doubled())
    name = "encoder.layers.0.feed_forward.hidden.kernel"
    np.testing.assert_array_equal(weights.export(model, CONFIG)[name], 2 * arrays[name])
