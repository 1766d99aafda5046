"""The PyTorch port computes nothing for padding, and gives what it gives with the rows (PADDING)."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import configs, draw_parameters, draw_tokens, seeds
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from impl_torch import weights
from impl_torch.programs import unpadding
from impl_torch.programs.compiled import compiled
from impl_torch.programs.unpadding import unpadded
from impl_torch.training import Trainer
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, mask, parameters, preset, sites, transformer
from reference_numpy.recipe import PAPER

LENGTH = 6
WORDS = {
    "all": "111111", "none": "000000", "left": "000111", "right": "111100", "inside": "110011", "one": "000100", "first": "100000",
    "holes": "010101",
}  # fmt: skip
patterns = st.lists(st.sampled_from([*WORDS.values(), ""]), min_size=1, max_size=5)  # "": drawn


def padded(rng: np.random.Generator, vocabulary: int, padding_id: int | None, rows: list[str]) -> np.ndarray:
    """Ids that are the padding id where a row's pattern has a 0."""
    real = np.array([[char == "1" for char in row] if row else rng.integers(2, size=LENGTH) > 0 for row in rows])
    token = draw_tokens(rng, vocabulary, real.shape, padding_id)
    return token if padding_id is None else np.where(real, token, padding_id)


def model_of(config: TransformerConfig, tensors: dict[str, np.ndarray]) -> Transformer:
    model = Transformer(config).double().eval()
    weights.load(model, tensors, config)
    return model


@settings(max_examples=60, deadline=None)
@given(config=configs(), seed=seeds, source=patterns, soft=st.booleans(), dropped=st.booleans(), data=st.data())
def test_logits_loss_and_gradients_are_those_of_the_rows(
    config: TransformerConfig, seed: int, source: list[str], soft: bool, dropped: bool, data: st.DataObject
) -> None:
    target = data.draw(st.lists(st.sampled_from([*WORDS.values(), ""]), min_size=len(source), max_size=len(source)))
    rng, tensors = np.random.default_rng(seed), draw_parameters(config, seed)
    tree, model = parameters.nest(tensors), model_of(config, tensors)
    tokens = {
        "source": padded(rng, config.source_vocabulary, config.padding_id, source),
        "target": padded(rng, config.target_vocabulary, config.padding_id, target),
    }
    masks: dict[str, Any] = {}
    if soft:  # padding by masks alone
        tokens["source"] = rng.dirichlet(np.ones(config.source_vocabulary), tokens["source"].shape)
        masks = {f"{side}_mask_b{side[0]}": rng.integers(2, size=(len(source), LENGTH)) > 0 for side in ("source", "target")}
    keep = sites.draw(config, len(source), LENGTH, LENGTH, rng) if dropped else None
    expected = transformer.transformer(tree, config, **tokens, **masks, keep=keep)
    given_tokens = {name: weights.from_numpy(array) for name, array in (tokens | masks).items()}
    given_keep = parameters.nest({name: weights.from_numpy(array) for name, array in parameters.flatten(keep or {}).items()})

    real_bt = masks.get("target_mask_bt", mask.token_mask(tokens["target"], config.padding_id))
    call = unpadded(model, 0)
    skipped = call(**given_tokens, keep=given_keep, skip_padding=True)
    np.testing.assert_allclose(weights.to_numpy(skipped), np.where(real_bt[..., None], expected, 0), rtol=1e-9, atol=1e-9)
    whole = call(**given_tokens, keep=given_keep)
    np.testing.assert_allclose(weights.to_numpy(whole), expected, rtol=1e-9, atol=1e-9)

    tokens["target"] = np.concatenate([tokens["target"], tokens["target"][:, :1]], axis=1)  # its input has the length of the keep masks
    inputs = {name: weights.from_numpy(array).requires_grad_(array.dtype.kind == "f") for name, array in tokens.items()}
    loss = unpadded(model.training_loss, 0)(**inputs, smoothing=0.1, keep=given_keep)
    one = np.ones(())
    gradients = transformer.training_loss_vjp(tree, config, **tokens, smoothing=0.1, keep=keep, cotangent=one)
    np.testing.assert_allclose(
        loss.item(), transformer.training_loss(tree, config, **tokens, smoothing=0.1, keep=keep), rtol=1e-10, atol=1e-12
    )
    if not loss.requires_grad:
        return
    loss.backward()
    found = {name: tensor.grad for name, tensor in weights.tensors(model, config).items()}
    grads = model_of(config, {name: np.zeros_like(array) for name, array in tensors.items()})
    for name, tensor in weights.tensors(grads, config).items():
        tensor.data = torch.zeros_like(tensor) if found[name] is None else found[name]
    for name, array in weights.export(grads, config).items():
        expected_gradient = parameters.flatten(gradients["parameters"]).get(name, np.zeros_like(array))
        np.testing.assert_allclose(array, expected_gradient, rtol=1e-7, atol=1e-10, err_msg=name)
    if soft:
        np.testing.assert_allclose(inputs["source"].grad.numpy(), gradients["source"], rtol=1e-7, atol=1e-10)


CONFIG = preset("tiny").replace(padding_id=0, dropout_rate=0.0)


def ragged(seed: int, lengths: tuple[int, ...], longest: int = 16) -> np.ndarray:
    """Ids with padding at the end of rows of these lengths."""
    token = np.random.default_rng(seed).integers(1, CONFIG.source_vocabulary, (len(lengths), longest))
    return np.where(np.arange(longest) < np.array(lengths)[:, None], token, 0)


def flops(call: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return sum(number for operation, number in counter.get_flop_counts()["Global"].items() if "attention" not in str(operation))


@pytest.mark.parametrize("lengths", [(16, 8, 4, 4), (16, 16, 1, 1)])
def test_products_are_of_real_tokens_alone(lengths: tuple[int, ...]) -> None:
    model = model_of(CONFIG, draw_parameters(CONFIG, 0))
    source, target = (torch.from_numpy(ragged(seed, lengths)) for seed in (0, 1))
    flat = flops(lambda: unpadded(model, 0)(source, target, skip_padding=True))
    assert flat / flops(lambda: model(source, target)) == pytest.approx(sum(lengths) / (16 * len(lengths)))
    side = {"source": source, "target": target}
    flat = flops(lambda: unpadding.training_loss(model, unpadding.find(model.training_loss, 0, **side), **side))
    assert flat < flops(lambda: model.training_loss(source, target))
    flat = flops(lambda: unpadding.memory(model, source, least=0))
    assert flat / flops(lambda: model.encode(source)) == pytest.approx(sum(lengths) / (16 * len(lengths)))


def test_what_is_computed_is_what_the_loss_depends_on() -> None:
    model = model_of(CONFIG, draw_parameters(CONFIG, 0))
    target = torch.tensor([[1, 5, 6, 2, 0, 0], [0, 1, 5, 2, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 5, 0, 2, 0]])
    found = unpadding.find(model.training_loss, 0, source=target, target=target)
    assert found is not None
    rows = ["11100", "11100", "10000", "11110"]  # the input is the target without its last token; an empty row keeps its first place
    assert ["".join(str(int(place)) for place in row) for row in found.target.mask_bt] == rows


def test_rows_stay_without_padding_or_where_hooks_see_them() -> None:
    model = model_of(CONFIG, draw_parameters(CONFIG, 0))
    full, half = (torch.from_numpy(ragged(0, lengths)) for lengths in ((16, 16), (16, 4)))
    assert unpadding.find(model, 0, source=full, target=full, skip_padding=True) is None
    found = unpadding.find(model, 0, source=half, target=half)
    assert found is not None
    assert [found.source.number, found.target.number] == [20, 32]
    assert unpadding.find(model, source=half, target=half) is None  # too few
    seen: list[torch.Size] = []
    model.encoder.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    unpadded(model, 0)(half, half)
    assert seen == [(2, 16, CONFIG.model_width)]


@pytest.mark.second
def test_one_graph_serves_every_number_of_tokens() -> None:
    model = model_of(CONFIG, draw_parameters(CONFIG, 0))
    counters.clear()
    graph = compiled(model, 0)
    with torch.no_grad():
        for lengths in ((16, 8, 3), (16, 1, 1), (9, 9, 9), (16, 12, 0)):
            source, target = (torch.from_numpy(ragged(seed, lengths)) for seed in (0, 1))
            torch.testing.assert_close(graph(source, target, skip_padding=True), model(source, target, skip_padding=True))
    assert counters["stats"]["unique_graphs"] == 1


CUDA = [pytest.param("cuda", compiles, marks=pytest.mark.gpu) for compiles in (False, True)]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(("device", "compiles"), [("cpu", False), pytest.param("cpu", True, marks=pytest.mark.second), *CUDA])
def test_a_run_is_the_same_with_and_without_padding(device: str, compiles: bool, microbatches: int) -> None:
    """On a GPU: tokens that the host finds and the device is given, and its kernels forward and backward."""
    recipe, states = PAPER.replace(warmup=10, microbatches=microbatches), []
    for least in (0, 1 << 60):
        trainer = Trainer(CONFIG, recipe, draw_parameters(CONFIG, 0), device=device, compiled=compiles)
        trainer._least = least
        for seed in range(3):
            source, target = ragged(seed, (16, 3, 4, 9)), ragged(seed + 9, (3, 12, 16, 0))
            keep = sites.draw(CONFIG.replace(dropout_rate=0.1), 4, 16, 15, np.random.default_rng(seed))
            trainer.train_step(source, target, keep)
        states.append(trainer.state())
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.second)])
def test_random_masks_of_flat_tokens_follow_from_seed_and_step(compiles: bool) -> None:
    config, runs = CONFIG.replace(dropout_rate=0.3), []
    batches = [(ragged(seed, (16, 3)), ragged(seed, lengths)) for seed, lengths in enumerate([(4, 9), (16, 1), (0, 0), (16, 12)])]
    counters.clear()
    for _ in range(2):
        trainer = Trainer(config, PAPER, draw_parameters(config, 0), seed=5, compiled=compiles)
        trainer._least = 0
        runs.append([float(trainer.train_step(*batch)) for batch in batches])
    assert runs[0] == runs[1]
    assert runs[0][0] != pytest.approx(trainer.loss(*batches[0])[0])
    assert counters["stats"]["unique_graphs"] == int(compiles)


@pytest.mark.second
def test_one_graph_does_not_take_a_single_token_for_all_numbers() -> None:
    model = model_of(CONFIG, draw_parameters(CONFIG, 0))
    graph = compiled(model, 0)
    for lengths in ((1,), (5,), (1, 16)):
        source = torch.from_numpy(ragged(0, lengths))
        torch.testing.assert_close(graph(source, source, skip_padding=True), model(source, source, skip_padding=True))
