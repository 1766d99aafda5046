"""Mixtures of experts, attention sinks, limited gates and multipliers in the JAX port: components and whole decoders."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backends import Backend
from jax.sharding import AxisType
from kinds import every

from impl_jax import weights
from impl_jax.decoding import Searcher
from impl_jax.kernels.experts import BLOCK
from impl_jax.programs.compiled import compiled
from impl_jax.training import Trainer
from reference_numpy import TransformerConfig, decoding, parameters, preset
from reference_numpy import experts as reference
from reference_numpy import states as reference_states
from reference_numpy import transformer as whole
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from reference_numpy.training import Trainer as Reference

BACKEND = Backend("jax")
SIZES = {"model_width": 6, "feed_forward_width": 7, "expert_width": 5, "experts": 4, "experts_per_token": 2, "gated_feed_forward": True,
         "feed_forward_bias": False, "activation": "silu", "encoder_layers": 0, "decoder_layers": 2,
         "share_embeddings": False, "target_vocabulary": 13,
         "heads": 4, "key_value_heads": 2, "key_size": 3, "value_size": 2, "tie_logits": False, "dropout_rate": 0.0,
         "attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0}  # fmt: skip
GROUPS = {"experts": 6, "router_scores": "sigmoid", "selection_bias": True, "router_groups": 3, "router_groups_kept": 2}
CHOICES: dict[str, dict[str, Any]] = {
    "softmax": {"router_scale": 1.5},
    "groups": GROUPS | {"router_group_score": "best_two", "router_epsilon": 1e-3, "router_scale": 2.5, "shared_width": 4},
    "best groups": GROUPS | {"router_group_mask": "minus_infinity", "shared_width": 4, "shared_gate": True},
    "limits": {"router_scores": "chosen_softmax", "router_bias": True, "router_normalize": False, "gate_limit": 0.7, "hidden_offset": 1.0,
               "activation": "gelu_sigmoid", "feed_forward_bias": True, "attention_sinks": "local", "window": 3, "attention_bias": True,
               "layer_pattern": ("local", "global")},
    "input": {"router_scores": "chosen_sigmoid", "experts_per_token": 1, "router_normalize": False, "expert_weighted": "input",
              "feed_forward_bias": True, "shared_width": 4, "expert_pattern": (False, True)},
    "ungated": {"gated_feed_forward": False, "activation": "gelu_tanh", "feed_forward_bias": True, "router_normalize": False,
                "expert_pattern": (True, False), "residual_multiplier": 0.3, "embedding_multiplier": 7.0, "scale_embedding": True},
    "many": {"experts": 12, "experts_per_token": 3, "attention_sinks": "all", "norm_placement": "pre", "query_key_norm": "head"},
    "dense": {"experts": 0, "gate_limit": 0.5, "hidden_offset": -0.5, "attention_sinks": "all", "score_cap": 2.0,
              "residual_multiplier": 0.5},
}  # fmt: skip
CONFIGS = {name: preset("tiny", **(SIZES | choices)) for name, choices in CHOICES.items()}
EXPERTS = {name: config for name, config in CONFIGS.items() if config.experts}
TARGET = np.array([[0, 0, 5, 6, 7, 9, 1], [3, 4, 8, 9, 2, 2, 5]])
NAMES = every(len(CONFIGS), CONFIGS)


@pytest.fixture(autouse=True)
def wide() -> Any:
    with BACKEND.wide():
        yield


def arrays(config: TransformerConfig, component: str = "transformer") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    found = {name: 0.6 * rng.standard_normal(shape) for name, shape in parameters.shapes(config, component).items()}
    if component == "mixture_of_experts" and config.experts > 10:  # no token chooses expert 1
        found["router.kernel"][:, 1] = 0
        found["router.kernel"][0, 1] = -50.0
    return found


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max(initial=1e-3))


def tokens(shape: tuple[int, ...], width: int = 6) -> np.ndarray:
    x = np.random.default_rng(5).standard_normal((*shape, width))
    x[..., 0] = np.abs(x[..., 0])
    return x


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_and_router_equal_the_reference_and_its_gradients(name: str) -> None:
    """With more tokens than fit into a block."""
    config, x_btd, component = EXPERTS[name], tokens((2, BLOCK)), "mixture_of_experts"
    held, module = arrays(config, component), BACKEND.build(component, config, "float64")
    weights.load(module, held, config, component)
    tree, g = parameters.nest(held), np.random.default_rng(6).standard_normal(x_btd.shape)

    def call(module: Any, x_btd: Any) -> Any:
        output, back = jax.vjp(lambda module, x_btd: module(x_btd), module, x_btd)
        return output, back(jnp.asarray(g))

    output, (of_module, of_x) = jax.jit(call)(module, x_btd)
    close(output, reference.mixture_of_experts(tree, config, x_btd))
    close(module(x_btd), output)
    close(module.router(x_btd), reference.router(tree["router"], config, x_btd))
    pulled, found = reference.mixture_of_experts_vjp(tree, config, x_btd, cotangent=g), weights.export(of_module, config, component)
    close(of_x, pulled["x_btd"])
    for path, gradient in parameters.flatten(pulled["parameters"]).items():
        close(found[path], gradient)
    assert name != "many" or not found["experts.hidden.kernel"][1].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_its_loss_and_its_states_equal_the_reference(name: str) -> None:
    config, held = CONFIGS[name], arrays(CONFIGS[name])
    model, tree = BACKEND.loaded(config, held), parameters.nest(held)
    wanted = whole.transformer(tree, config, None, TARGET)
    close(model(None, TARGET), wanted)
    rows = compiled(model, least=0)(None, TARGET, skip_padding=True)
    close(rows, np.where((TARGET != 0)[..., None], wanted, 0))
    found = BACKEND.parameter_gradients(model, config, lambda model: model.training_loss(None, TARGET))
    pulled = whole.training_loss_vjp(tree, config, None, TARGET, cotangent=1.0)
    for path, gradient in parameters.flatten(pulled["parameters"]).items():
        close(found[1][path], gradient)
    states, own = reference_states.states(tree, config, target=TARGET), model.states(target=TARGET)
    for path, array in parameters.flatten(states).items():
        close(parameters.flatten(own)[path], array)


@pytest.mark.parametrize("name", NAMES)
def test_steps_and_searches_equal_the_reference(name: str) -> None:
    config, held = CONFIGS[name], arrays(CONFIGS[name])
    wanted = whole.transformer(parameters.nest(held), config, None, TARGET)
    in_steps = BACKEND.port.components["decode_in_steps"](config, np.dtype("float64"))
    weights.load(in_steps.args[0], held, config)
    in_steps.args[0].eval()
    for own in (True, False):
        close(in_steps(target=jnp.asarray(TARGET), memory_bsd=None, splits=(3, 1, 1, 2), compiled=own), wanted)
    strategy = {"start_id": None, "end_id": 2, "max_new_tokens": 5, "beam_size": 3, "n_best": 2}
    searcher, given = Searcher(BACKEND.loaded(config, held)), (parameters.nest(held), config, None, strategy)
    greedy = searcher.greedy_search(None, strategy, TARGET)
    close(greedy["log_p_bn"], decoding.greedy_search(*given, TARGET)["log_p_bn"])
    beams = searcher.beam_search(None, strategy, TARGET)
    close(beams["score_bw"], decoding.beam_search(*given, TARGET)["score_bw"])


SETTINGS: dict[str, dict[str, Any]] = {"plain": {}, "recompute": {"recompute": True}, "explicit axes": {"mesh": Mesh(data=1)}}


@pytest.mark.parametrize("setting", every(2, SETTINGS))
def test_a_training_step_equals_the_reference(setting: str) -> None:
    kind = type("OnAxes", (Trainer,), {"axes": AxisType.Explicit})
    config, held = CONFIGS["limits"], arrays(CONFIGS["limits"])
    run, wanted = kind(config, PAPER, held, **SETTINGS[setting]), Reference(config, PAPER, held)
    for one in (run, wanted):
        one.train_step(None, TARGET)
    for path, array in wanted.state().items():
        close(run.state()[path], array)


def test_each_expert_starts_with_its_own_kernel_and_the_fans_of_one_expert() -> None:
    config = CONFIGS["best groups"].replace(model_width=64, expert_width=32)
    found = BACKEND.port.components["initialise"](config, np.dtype("float64"))(seed=0)
    for path, array in parameters.initialise(config, 0).items():
        assert np.abs(found[path]).max() == pytest.approx(np.abs(array).max(), rel=0.1, abs=0.2 if "table" in path else 0), path
    kernel_xdm = np.asarray(found["decoder.layers.0.feed_forward.experts.gate.kernel"])
    assert len(np.unique(kernel_xdm[:, 0, 0])) == config.experts
