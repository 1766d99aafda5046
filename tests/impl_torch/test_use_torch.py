"""Everyday use of the PyTorch port: copies, files, training and precision."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import safetensors.torch
import torch
from kinds import conformance
from torch.utils.checkpoint import checkpoint
from user_models import CONFIG, SOURCE, TARGET, Models

from impl_torch.programs.unpadding import unpadded

MODELS = Models("torch")
loaded, right = MODELS.loaded, MODELS.right
IDS = torch.from_numpy(SOURCE), torch.from_numpy(TARGET)
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def trained(model: Any, optimizer: Any = None, loss: Any = None, steps: int = 2) -> Any:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss() if loss else model.training_loss(*IDS, 0.1)).backward()
        optimizer.step()
    return model


def through_file(model: Any, kind: str, path: str) -> Any:
    """Returns another model that loaded this one's file."""
    other = loaded(seed=1)
    if kind == "state":
        torch.save(model.state_dict(), path)
        other.load_state_dict(torch.load(path, weights_only=True))
    elif kind == "save_model":
        safetensors.torch.save_model(model, path)
        safetensors.torch.load_model(other, path)
    else:
        safetensors.torch.save_file(model.state_dict(), path)
        other.load_state_dict(safetensors.torch.load_file(path))
    return other


@pytest.mark.parametrize("kind", ["deepcopy", "pickle", "state", "save_model", "save_file"])
def test_a_copy_is_trained_alone_and_keeps_its_ties(kind: str, tmp_path: Any) -> None:
    model = loaded()
    before = model(*IDS)
    copies = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}
    other = copies[kind](model) if kind in copies else through_file(model, kind, f"{tmp_path}/file")
    close(other(*IDS), before)
    right(trained(other))
    assert other.logits.weight is other.source_embedding.weight
    close(model(*IDS), before)


OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "AdamW, fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "Adam, foreach": partial(torch.optim.Adam, lr=1e-2, foreach=True),
    "Adafactor": partial(torch.optim.Adafactor, lr=1e-2),
}


@pytest.mark.parametrize("name", ["AdamW, fused", *map(conformance, ("SGD", "Adam, foreach", "Adafactor"))])
def test_optimizers_train_a_tied_model_and_its_average(name: str) -> None:
    model = loaded()
    average = torch.optim.swa_utils.AveragedModel(model)
    before = model.training_loss(*IDS)
    for _ in range(2):
        average.update_parameters(trained(model, OPTIMIZERS[name](model.parameters()), steps=1))
    assert model.training_loss(*IDS) < before
    for each in (model, average.module):
        right(each)
        assert each.logits.weight is each.source_embedding.weight


def test_optimizers_of_parts_find_the_tied_table() -> None:
    model = loaded()
    before = model.source_embedding.weight.detach().clone()
    right(trained(model, torch.optim.AdamW(model.logits.parameters(), 1e-2)))
    assert not torch.equal(model.target_embedding.weight, before)
    before = model.source_embedding.weight.detach().clone()
    model.target_embedding.requires_grad_(False)
    right(trained(model))
    assert torch.equal(model.logits.weight, before)


def test_recomputed_activations_give_the_same_gradients() -> None:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    model, other, wrapped = loaded(), loaded(), loaded()
    model(*IDS).square().sum().backward()
    checkpoint(other, *IDS, use_reentrant=False).square().sum().backward()
    layers = type(wrapped.encoder.layers[0])
    checkpoint_wrapper.apply_activation_checkpointing(wrapped, check_fn=lambda x: isinstance(x, layers))
    found = unpadded(wrapped, 0)(*IDS)
    close(found, model(*IDS))
    found.square().sum().backward()
    for each in (other, wrapped):
        close(each.source_embedding.weight.grad, model.source_embedding.weight.grad)


def test_the_loss_of_autocast_is_float32() -> None:
    model = loaded(dtype="float32")
    expected = model.training_loss(*IDS)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            loss = model.training_loss(*IDS)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, expected, rtol=0, atol=0.1)


def test_one_model_serves_several_threads_and_trains_after_inference_mode() -> None:
    model = loaded()
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: model(*IDS), range(4))]
    with torch.inference_mode():
        right(model, lambda *_: results[-1])
    right(trained(model))


def test_what_a_library_writes_into_the_config_is_no_field_of_the_model() -> None:
    model = loaded()
    for name, value in {"use_cache": False, "num_beams": 4, "pad_token_id": 0}.items():
        setattr(model.config, name, value)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert each.config.num_beams == 4 and each.config.to_dict() == CONFIG.to_dict()
        assert each.config == CONFIG and hash(each.config) == hash(CONFIG)
        assert not hasattr(CONFIG, "use_cache") and not hasattr(type(model)(each.config).config, "use_cache")
        right(each)
        MODELS.searched(each)
    with pytest.raises(AttributeError, match="dropout_rate"):
        model.config.dropout_rate = 0.5


def test_ids_that_are_not_dense_are_refused() -> None:
    rows = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged)
    with pytest.raises(ValueError, match="dense"):
        loaded()(rows, IDS[1][:2])
    with pytest.raises(ValueError, match="target"):
        loaded()(IDS[0])
