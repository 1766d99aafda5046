"""What a GPU asks of the PyTorch port is shown without one: it makes no tensor on the CPU where what it is given is elsewhere.

The meta device stands for the GPU: its tensors have no values, so that nothing is read from them either. (A fake CUDA tensor cannot be
indexed in a torch that is built without CUDA.) What this cannot show, the kernels and the values, is in `tests/test_gpu.py`.
"""

from typing import Any

import pytest

from reference_numpy import TransformerConfig, preset
from reference_numpy.parameters import flatten, nest
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from impl_torch import port  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.fast import search  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

SIZES: dict[str, Any] = {"source_vocabulary": 19, "target_vocabulary": 19, "output_bias": True}
MODELS = {
    "both stacks": preset("tiny", encoder_layers=1, decoder_layers=1, **SIZES),
    "decoder alone": preset("tiny", encoder_layers=0, decoder_layers=1, positions="learned", max_positions=9, **SIZES),
    "encoder alone": preset("tiny", encoder_layers=1, decoder_layers=0, pooler=True, classes=3, segments=2, **SIZES),
}
# They seed the generator of a device, give a number of the host, or loop until they have read a value; `test_gpu` has them.
ELSEWHERE = {"initialise", "random_dropout", "noam", "greedy_search", "sample", "beam_search"}
FIRST: dict[str, Case] = {}
for each in all_cases():
    if each.core and each.component in port.components and each.component not in ELSEWHERE:
        FIRST.setdefault(each.component, each)


class Elsewhere(TorchDispatchMode):
    """In here an operation that gives a tensor of the CPU is an error."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        assert "cpu" not in devices(outputs), f"{function} made a tensor on the CPU"
        return outputs


def moved(value: Any) -> Any:
    """On the meta device: a module, or an array of an input."""
    if isinstance(value, torch.nn.Module):
        return value.to("meta")
    if hasattr(value, "dtype"):
        tensor = torch.as_tensor(value)
        return torch.empty(tensor.shape, dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, device="meta")
    return value


def owner(function: Any) -> Any:
    """The module that a component is, or whose method it is."""
    while hasattr(function, "func"):
        function = function.args[0] if function.args and isinstance(function.args[0], torch.nn.Module) else function.func
    return getattr(function, "__self__", function)


def devices(outputs: Any) -> set[str]:
    if isinstance(outputs, dict):
        return {device for item in outputs.values() for device in devices(item)}
    if isinstance(outputs, (tuple, list)):
        return {device for item in outputs for device in devices(item)}
    return {outputs.device.type} if isinstance(outputs, torch.Tensor) else set()


@pytest.mark.parametrize("component", FIRST)
def test_a_component_computes_where_its_inputs_are(component: str) -> None:
    case = FIRST[component]
    function = port.components[component](case.config, torch.float32)
    if isinstance(module := owner(function), torch.nn.Module):
        moved(module.eval())
    inputs = nest({name: moved(value) for name, value in flatten(dict(case.inputs)).items()})
    with Elsewhere(), torch.device("cpu" if any(map(devices, flatten(inputs).values())) else "meta"):
        assert devices(function(**inputs)) == {"meta"}


def given(config: TransformerConfig) -> tuple[Any, ...]:
    """A source and a target, where the config has them."""
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
    optimizer.step()  # its counts of steps are on the CPU
    assert all(devices(parameter.grad) == {"meta"} for parameter in model.parameters())


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", ["both stacks", "decoder alone"])
def test_a_step_of_a_search_computes_where_the_model_is(name: str, beams: int) -> None:
    searcher, (source, target) = (
        Searcher(Transformer(MODELS[name])),
        (None if x is None else torch.ones_like(x, device="cpu") for x in given(MODELS[name])),
    )
    strategy = {"start_id": 1, "end_id": 2, "max_new_tokens": 5, "beam_size": beams, "repetition_penalty": 1.5}
    asked = searcher._request(strategy, source, target, None, None)  # which reads the prefix
    asked = asked._replace(**{name: moved(x) for name, x in asked._asdict().items() if isinstance(x, torch.Tensor)})
    with torch.inference_mode(), Elsewhere():
        reading = search.Reading(searcher.to("meta").model, searcher.step, asked, beams)
        token_b, _ = reading.likeliest()
        reading.read(token_b[:, None], torch.zeros_like(token_b))
        assert devices(tuple(reading.next)) == {"meta"}


def test_a_tensor_of_the_cpu_is_seen() -> None:
    with Elsewhere(), pytest.raises(AssertionError, match="made a tensor on the CPU"):
        torch.ones(3, device="meta") + torch.arange(3)
