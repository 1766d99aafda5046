"""GPU readiness of the PyTorch port, shown without a GPU: it creates no CPU tensor if its inputs are elsewhere.

The meta device replaces the GPU: its tensors have no values, so nothing can be read from them. (A fake CUDA tensor cannot be
indexed if torch is built without CUDA.) `tests/backends/test_gpu.py` has the rest: kernels and values.
"""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from expectations import suite
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from impl_torch import port
from impl_torch.beams import Beams
from impl_torch.decoding import Searcher, start
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, preset
from reference_numpy.parameters import flatten, nest
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports.adapters import submodules

SIZES: dict[str, Any] = {"source_vocabulary": 19, "target_vocabulary": 19, "output_bias": True}
MODELS = {
    "both stacks": preset("tiny", encoder_layers=1, decoder_layers=1, **SIZES),
    "without a padding id": preset("tiny", encoder_layers=1, decoder_layers=1, padding_id=None, **SIZES),
    "decoder alone": preset("tiny", encoder_layers=0, decoder_layers=1, positions="learned", max_positions=9, **SIZES),
    "encoder alone": preset("tiny", encoder_layers=1, decoder_layers=0, pooler=True, classes=3, segments=2, **SIZES),
}
# They seed a device's generator, return a host number, or loop until they have read a value; `test_gpu` covers them.
ELSEWHERE = {"initialise", "random_dropout", "noam", "greedy_search", "sample", "beam_search"}
FIRST: dict[str, Case] = {}
for each in suite():
    if each.core and each.component in port.components and each.component not in ELSEWHERE:
        FIRST.setdefault(each.component, each)


class Elsewhere(TorchDispatchMode):
    """A mode in which creating a CPU tensor is an error."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        assert "cpu" not in devices(outputs), f"{function} made a tensor on the CPU"
        return outputs


def moved(value: Any) -> Any:
    """Moves a module, or the array of an input, to the meta device."""
    if isinstance(value, torch.nn.Module):
        return value.to("meta")
    if hasattr(value, "dtype"):
        tensor = torch.as_tensor(value)
        return torch.empty(tensor.shape, dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, device="meta")
    return value


def devices(outputs: Any) -> set[str]:
    return {leaf.device.type for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)}


@pytest.mark.parametrize("component", FIRST)
def test_a_component_computes_where_its_inputs_are(component: str) -> None:
    case = FIRST[component]
    function = port.components[component](case.config, torch.float32)
    if isinstance(module := submodules.owner(function), torch.nn.Module):
        moved(module.eval())
    inputs = nest({name: moved(value) for name, value in flatten(dict(case.inputs)).items()})
    with Elsewhere(), torch.device("cpu" if any(map(devices, flatten(inputs).values())) else "meta"):
        assert devices(function(**inputs)) == {"meta"}


def given(config: TransformerConfig) -> tuple[Any, ...]:
    """Returns a source and a target, if the config has them."""
    both = (5, config.encoder_layers), (4, config.decoder_layers)
    return tuple(torch.ones(3, length, dtype=torch.int64, device="meta") if layers else None for length, layers in both)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_model_and_a_training_step_compute_where_the_parameters_are(config: TransformerConfig) -> None:
    with torch.device("meta"):
        model = Transformer(config)
    optimizer, (source, target) = torch.optim.AdamW(model.parameters()), given(config)
    with Elsewhere():
        assert devices(model.eval()(source, target)) == {"meta"}
        model.train()
        if config.decoder_layers:
            model.training_loss(source, target, 0.1).backward()
        else:
            model.classification_loss(source, source[:, 0], 0.1).backward()
    optimizer.step()  # its step counts are on the CPU
    assert all(devices(parameter.grad) == {"meta"} for parameter in model.parameters())


@pytest.mark.parametrize("search", ["greedy", "sample", "beams"])
@pytest.mark.parametrize("name", ["both stacks", "without a padding id", "decoder alone"])
def test_a_step_of_a_search_computes_where_the_model_is(name: str, search: str) -> None:
    searcher, count = Searcher(Transformer(MODELS[name])).to("meta"), 2 if search == "beams" else 1
    strategy = {"start_id": 1, "end_id": 2, "max_new_tokens": 5, "beam_size": count, "repetition_penalty": 1.5, "top_k": 3}
    read = mock.patch.object(torch.Tensor, "tolist", lambda x: np.ones(x.shape, int).tolist())  # the ends of the prefix
    with torch.inference_mode(), Elsewhere():
        with read:
            reading = start(searcher, strategy, *given(MODELS[name]), None, None, count)
        if search == "beams":
            scores_bv = reading.penalised(reading.next.scores_bv)
            beams = Beams(reading.strategy, reading.rows, scores_bv.dtype, scores_bv.device)
            token_bt, row_b = beams.advance(scores_bv.unflatten(0, (reading.rows, count)))
        else:
            uniform_b = torch.empty(3, device="meta")
            token_b, _ = reading.likeliest() if search == "greedy" else reading.drawn(uniform_b)
            token_bt, row_b = token_b[:, None], torch.zeros_like(token_b)
        reading.read(token_bt, row_b)
        assert devices(tuple(reading.next)) == {"meta"}


def test_a_tensor_of_the_cpu_is_seen() -> None:
    with Elsewhere(), pytest.raises(AssertionError, match="made a tensor on the CPU"):
        torch.ones(3, device="meta") + torch.arange(3)
