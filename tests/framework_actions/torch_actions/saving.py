"""State dicts, copies and files."""

import copy
import io
import pickle

import safetensors.torch
import torch

from impl_torch.projection import initialise
from impl_torch.transformer import Transformer

from .common import CONFIG, SOURCE, TARGET, UNTIED, expected, model_of, right, same, topic

TOPIC = topic("States, copies and files")


@TOPIC.works("`load_state_dict(state)`, strict", sample=True)
def _(model, other) -> None:
    other.load_state_dict(model.state_dict())
    same(other(SOURCE, TARGET), expected(model))


@TOPIC.works("`load_state_dict(state, assign=True)` of a model made on the meta device", sample=True)
def _(model) -> None:
    with torch.device("meta"):
        other = Transformer(CONFIG).eval()
    other.load_state_dict(model.state_dict(), assign=True)
    assert other.logits.weight is other.source_embedding.weight
    same(other(SOURCE, TARGET), expected(model))


def trained_once(model: Transformer) -> Transformer:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.training_loss(SOURCE, TARGET).backward()
    optimizer.step()
    return model


@TOPIC.works("meta device, `to_empty`, `apply(impl_torch.projection.initialise)`")
def _() -> None:
    with torch.device("meta"):
        model = Transformer(CONFIG).eval()
    right(model.to_empty(device="cpu").apply(initialise))


@TOPIC.works("`load_state_dict(strict=False)` without a layer")
def _(model) -> None:
    state = {name: tensor for name, tensor in model.state_dict().items() if "layers.1" not in name}
    other = model_of(seed=1)
    assert not other.load_state_dict(state, strict=False).unexpected_keys
    right(other)


@TOPIC.works("`copy.deepcopy`, then training of the copy", sample=True)
def _(model) -> None:
    before = expected(model)
    right(trained_once(copy.deepcopy(model)))
    same(model(SOURCE, TARGET), before)


TOPIC.works("`pickle`", lambda model: right(trained_once(pickle.loads(pickle.dumps(model)))), sample=True)


@TOPIC.works("`torch.save` of the state, `torch.load(weights_only=True)`")
def _(model, other) -> None:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    same(other(SOURCE, TARGET), expected(model))


@TOPIC.works("`safetensors.torch.save_model` and `load_model`", sample=True)
def _(model, other, folder) -> None:
    safetensors.torch.save_model(model, f"{folder}/a.safetensors")
    safetensors.torch.load_model(other, f"{folder}/a.safetensors")
    same(other(SOURCE, TARGET), expected(model))


@TOPIC.works("`safetensors.torch.save_file(model.state_dict())`")
def _(model, other, folder) -> None:
    path = folder / "a.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    other.load_state_dict(safetensors.torch.load_file(path))
    same(other(SOURCE, TARGET), expected(model))


@TOPIC.works("`copy.deepcopy` of a model without ties, `state_dict` of every parameter")
def _() -> None:
    model = copy.deepcopy(model_of(UNTIED))
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    right(model, UNTIED)
