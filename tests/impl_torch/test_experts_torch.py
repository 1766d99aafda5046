"""Mixtures of experts, sinks, limited gates and multipliers of the PyTorch port: eager, compiled, exported, in half precision."""

from typing import Any

import numpy as np
import pytest
import torch
from backends import random_parameters
from kinds import every
from test_modern_torch import SEARCHES, SIZES, ids, model_of, same_model, same_steps, searched
from torch._dynamo.testing import CompileCounterWithBackend

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.experts import MixtureOfExperts
from impl_torch.port import components
from impl_torch.programs import unpadding
from impl_torch.projection import initialise
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, experts, parameters, preset
from reference_numpy.parameters import flatten, nest
from rosettaformer.judge.expectation.orders import ORDERS, order
from rosettaformer.judge.expectation.tolerance import expectation

EXPERTS: dict[str, Any] = {"value_size": 8, "experts": 5, "experts_per_token": 2, "expert_width": 7}
GROUPS: dict[str, Any] = {"experts": 12, "experts_per_token": 3, "router_groups": 4, "router_groups_kept": 2}
CONFIGS = {name: preset(base, **SIZES | EXPERTS | changes) for name, (base, changes) in {
    "mixtral": ("mixtral_8x7b", {"padding_id": 0}),
    "gpt_oss": ("gpt_oss_20b", {"experts": 11, "expert_width": 8, "window": 3, "gate_limit": 1.0, "padding_id": 0}),
    "deepseek": ("llama2_7b", GROUPS | {"router_scores": "sigmoid", "selection_bias": True, "router_group_score": "best_two",
                                        "router_scale": 2.5, "router_epsilon": 1e-20, "shared_width": 5, "expert_pattern": (False, True)}),
    "best": ("llama2_7b", GROUPS | {"router_group_mask": "minus_infinity", "router_normalize": False, "router_product_dtype": "float32"}),
    "llama4": ("llama2_7b", {"experts_per_token": 1, "router_scores": "chosen_sigmoid", "expert_weighted": "input", "shared_width": 6,
                             "router_normalize": False, "feed_forward_bias": True}),
    "qwen2": ("llama2_7b", {"shared_width": 6, "shared_gate": True, "router_normalize": False, "router_score_dtype": "model"}),
    "ungated": ("tiny", {"encoder_layers": 1, "feed_forward_bias": True, "router_bias": True, "padding_id": 0, "attention_sinks": "all"}),
    "sinks": ("llama2_7b", {"experts": 0, "attention_sinks": "local", "layer_pattern": ("local", "global"), "window": 3}),
    "granite": ("llama2_7b", {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_sinks": "all", "score_cap": 2.0,
                              "scale_embedding": True, "router_scores": "chosen_softmax", "expert_width": 8}),
}.items()}  # fmt: skip
NAMED = pytest.mark.parametrize("config", [pytest.param(config, id=name) for name, config in CONFIGS.items()])


@NAMED
def test_a_model_its_gradients_and_its_states_are_the_reference_s(config: TransformerConfig) -> None:
    same_model(config, random_parameters(config))


@NAMED
def test_steps_are_the_reference_s(config: TransformerConfig) -> None:
    for snapshot in (False, True):
        same_steps(config, random_parameters(config), snapshot)


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek"])
@pytest.mark.parametrize("search", every(3, SEARCHES))
def test_a_search_is_the_reference_s(search: str, name: str) -> None:
    values = random_parameters(CONFIGS[name])
    searched(CONFIGS[name], Searcher(model_of(CONFIGS[name], values)), values, search)


def mixture(config: TransformerConfig, dtype: str = "float64") -> tuple[Any, Any]:
    """Returns a mixture of experts and its parameters."""
    shapes, rng = parameters.shapes(config, "mixture_of_experts"), np.random.default_rng(0)
    values = {name: (0.6 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
    module = MixtureOfExperts(config).to(getattr(torch, dtype)).eval()
    weights.load(module, values, config, "mixture_of_experts")
    return module, nest(values)


X = np.random.default_rng(1).standard_normal((2, 5, 12))


def test_the_lower_of_equal_experts_is_chosen_and_nobody_may_be() -> None:
    config = CONFIGS["gpt_oss"]
    module, values = mixture(config)
    equal_x = np.array([0, 1, 1, 0, 1, 1, -1, 1, 1, 1, 1.0])
    values["router"] = {"kernel": 0 * values["router"]["kernel"], "bias": equal_x}
    weights.load(module, flatten(values), config, "mixture_of_experts")
    weight_btx = module.router(torch.from_numpy(X))
    assert weight_btx[0, 0].nonzero()[:, 0].tolist() == [1, 2]
    for x_btd in (X, X[:0]):
        found = module(torch.from_numpy(x_btd)).detach()
        np.testing.assert_allclose(found, experts.mixture_of_experts(values, config, x_btd), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["gpt_oss", "llama4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_graphs_and_functions_compute_the_same(dtype: torch.dtype, name: str) -> None:
    """gpt_oss in float32 has sizes for torch's grouped products."""
    config = CONFIGS[name].replace(model_width=16, expert_width=8)
    module = mixture(config)[0].to(dtype)
    given, near = dict(module.named_parameters()), {"rtol": 1e-5, "atol": 1e-4 if dtype == torch.float32 else 1e-11}
    x_btd = torch.randn(2, 5, 16, dtype=dtype, generator=torch.Generator().manual_seed(0))
    counter, counts = CompileCounterWithBackend("aot_eager"), set()
    graph = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    free: dict[str, Any] = {"x_btd": {0: torch.export.Dim("b", min=2), 1: torch.export.Dim("t", min=2)}}
    exported = torch.export.export(module, (x_btd,), dynamic_shapes=free).module()

    def gradients(run: Any, x_btd: Any) -> tuple[Any, ...]:
        return torch.autograd.grad(run(x_btd).square().sum(), [*given.values()])

    for one_btd in (x_btd, x_btd[:, :3].clone(), x_btd.repeat(2, 1, 1)):
        for run in (graph, exported, lambda x_btd: torch.vmap(module)(x_btd[:, None])[:, 0]):
            torch.testing.assert_close(run(one_btd), module(one_btd), **near)
        torch.testing.assert_close(gradients(graph, one_btd), gradients(module, one_btd), **near)
        counts.add(counter.frame_count)
    of_function = torch.func.grad(lambda given: torch.func.functional_call(module, given, x_btd).square().sum())(given)
    torch.testing.assert_close((*of_function.values(),), gradients(module, x_btd), **near)
    assert len(counts) == 1


@pytest.mark.parametrize("name", ["gpt_oss", "llama4", "qwen2"])
def test_bfloat16_is_as_close_as_the_reference_s(name: str) -> None:
    """The choice is that of float64."""
    import ml_dtypes

    config = CONFIGS[name].replace(model_width=16, expert_width=8)
    module, values = mixture(config)
    x_btd = np.random.default_rng(1).standard_normal((2, 5, 16))

    def narrow(tree: Any, dtype: Any) -> Any:
        return {name: narrow(value, dtype) for name, value in tree.items()} if isinstance(tree, dict) else tree.astype(dtype)

    half = narrow({"x": x_btd, "values": values}, ml_dtypes.bfloat16)
    wide, runs = narrow(half, np.float64), []
    for replacements in ORDERS.values():
        with order(replacements):
            runs.append(experts.mixture_of_experts(half["values"], config, half["x"]))
    expected = expectation(experts.mixture_of_experts(wide["values"], config, wide["x"]), runs)
    chosen = [experts.router(one["values"]["router"], config, one["x"]) > 0 for one in (half, wide)]
    assert np.array_equal(*chosen)
    found = module.bfloat16()(torch.from_numpy(wide["x"]).bfloat16()).detach().double().numpy()
    assert np.abs(found - expected.reference).max() <= expected.bound


def test_a_loss_without_padding_is_the_same() -> None:
    config = CONFIGS["gpt_oss"]
    model, target = model_of(config, random_parameters(config)), ids(3, 9)
    target[0, 4:] = target[1, 7:] = 0
    gradients = []
    for run in (model.training_loss, unpadding.unpadded(model.training_loss, 0)):
        loss = run(None, target)
        gradients.append([loss, *torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek"])
def test_a_new_model_begins_like_the_reference_also_from_no_device(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        model = Transformer(config)
    for one in (model.to_empty(device="cpu").apply(initialise), Transformer(config)):
        found, expected = weights.export(one, config), parameters.initialise(config, 0)
        for key, array in expected.items():
            assert array.any() == found[key].any()
            if key.endswith("kernel"):
                assert np.isclose(np.abs(found[key]).max(), np.abs(array).max(), rtol=0.5)


def test_the_judge_s_components_are_modules() -> None:
    router = components["router"](CONFIGS["mixtral"], torch.float32)
    assert router(torch.randn(2, 3, 12)).count_nonzero(-1).eq(2).all()
