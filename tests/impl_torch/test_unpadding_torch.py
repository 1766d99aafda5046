"""The PyTorch port computes nothing for padding (PADDING), and compiles one graph for every number of tokens."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from backends import Backend
from strategies import draw_parameters
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from impl_torch.programs import unpadding
from impl_torch.programs.compiled import compiled
from impl_torch.programs.unpadding import real_logits, unpadded
from reference_numpy import preset

CONFIG = preset("tiny").replace(padding_id=0, dropout_rate=0.0)


@pytest.fixture
def model() -> Any:
    return Backend("torch").loaded(CONFIG, draw_parameters(CONFIG, 0))


def ragged(seed: int, lengths: tuple[int, ...], longest: int = 16) -> np.ndarray:
    """Returns ids of rows with these lengths, padded at the end."""
    token = np.random.default_rng(seed).integers(1, CONFIG.source_vocabulary, (len(lengths), longest))
    return np.where(np.arange(longest) < np.array(lengths)[:, None], token, 0)


def flops(call: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return sum(number for operation, number in counter.get_flop_counts()["Global"].items() if "attention" not in str(operation))


@pytest.mark.parametrize("lengths", [(16, 8, 4, 4), (16, 16, 1, 1)])
def test_products_are_of_real_tokens_alone(model: Any, lengths: tuple[int, ...]) -> None:
    source, target = (torch.from_numpy(ragged(seed, lengths)) for seed in (0, 1))
    flat = flops(lambda: unpadded(partial(real_logits, model), 0)(source, target))
    assert flat / flops(lambda: model(source, target)) == pytest.approx(sum(lengths) / (16 * len(lengths)))
    side = {"source": source, "target": target}
    flat = flops(lambda: unpadding.training_loss(model, unpadding.find(model.training_loss, 0, **side), **side))
    assert flat < flops(lambda: model.training_loss(source, target))
    flat = flops(lambda: unpadding.memory(model, source, least=0))
    assert flat / flops(lambda: model.encode(source)) == pytest.approx(sum(lengths) / (16 * len(lengths)))


def test_what_is_computed_is_what_the_loss_depends_on(model: Any) -> None:
    target = torch.tensor([[1, 5, 6, 2, 0, 0], [0, 1, 5, 2, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 5, 0, 2, 0]])
    found = unpadding.find(model.training_loss, 0, source=target, target=target)
    assert found is not None
    rows = ["11100", "11100", "10000", "11110"]  # the input is the target without its last token; an empty row keeps its first place
    assert ["".join(str(int(place)) for place in row) for row in found.target.mask_bt] == rows


def test_rows_stay_where_hooks_see_them(model: Any) -> None:
    seen: list[torch.Size] = []
    model.encoder.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    half = torch.from_numpy(ragged(0, (16, 4)))
    unpadded(model, 0)(half, half)
    assert seen == [(2, 16, CONFIG.model_width)]


@pytest.mark.conformance
@pytest.mark.parametrize(
    "batches", [((16, 8, 3), (16, 1, 1), (9, 9, 9), (16, 12, 0)), ((1,), (5,), (1, 16))], ids=["many", "one token first"]
)
def test_one_graph_serves_every_number_of_tokens(model: Any, batches: tuple[tuple[int, ...], ...]) -> None:
    """A graph first called with a single token does not specialize to it."""
    counters.clear()
    real = partial(real_logits, model)
    graph = compiled(real, 0)
    with torch.no_grad():
        for lengths in batches:
            source, target = (torch.from_numpy(ragged(seed, lengths)) for seed in (0, 1))
            torch.testing.assert_close(graph(source, target), real(source, target))
    assert len(batches) == 3 or counters["stats"]["unique_graphs"] == 1
