"""The decisions on mixtures of experts, sinks and limited gates (docs/decisions.md), token by token with plain numbers."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import tree
from test_reference_gradients import prove

from reference_numpy import attention, experts, feed_forward, parameters, preset, transformer
from reference_numpy.gate import Gate
from reference_numpy.scores import Scores
from reference_numpy.values import Heads

WIDTH, EXPERTS = 5, 6
CONFIG = preset("mixtral_8x7b", source_vocabulary=9, target_vocabulary=9, model_width=WIDTH, heads=4, key_value_heads=2, key_size=2,
                value_size=3, feed_forward_width=4, decoder_layers=2, experts=EXPERTS, experts_per_token=3, expert_width=3)  # fmt: skip
DEEPSEEK = CONFIG.replace(router_scores="sigmoid", selection_bias=True, router_groups=3, router_groups_kept=2,
                          router_group_score="best_two", router_scale=2.5, router_epsilon=0.1)  # fmt: skip
GPT_OSS = CONFIG.replace(router_scores="chosen_softmax", router_bias=True, router_normalize=False, feed_forward_bias=True,
                         activation="gelu_sigmoid", gate_limit=0.5, hidden_offset=1.0)  # fmt: skip
KINDS = {
    "mixtral": CONFIG,
    "not normalized": CONFIG.replace(router_normalize=False, router_scale=1.5),
    "deepseek": DEEPSEEK,
    "masked with zero": DEEPSEEK.replace(router_group_mask="minus_infinity", router_group_score="best"),
    "gpt-oss": GPT_OSS,
    "llama 4": CONFIG.replace(router_scores="chosen_sigmoid", router_normalize=False, expert_weighted="input"),
    "qwen 2": CONFIG.replace(shared_width=4, shared_gate=True),
    "shared, not gated": CONFIG.replace(shared_width=4, gated_feed_forward=False, activation="relu"),
}
X = np.random.default_rng(1).normal(size=(2, 4, WIDTH))


def drawn(config: Any, component: str) -> Any:
    return tree(config, 3, component)


def chosen_of(scores: list[float], config: Any) -> list[int]:
    """The experts of one token, by sorting; of equal ones the lower."""
    size = len(scores) // config.router_groups
    groups = [scores[start : start + size] for start in range(0, len(scores), size)]
    best = 2 if config.router_group_score == "best_two" else 1
    order = sorted(range(len(groups)), key=lambda group: -sum(sorted(groups[group])[-best:]))
    kept = order[: config.router_groups_kept] if config.router_groups > 1 else order
    hidden = 0.0 if config.router_group_mask == "zero" else -math.inf
    open_ = [score if expert // size in kept else hidden for expert, score in enumerate(scores)]
    return sorted(range(len(scores)), key=lambda expert: -open_[expert])[: config.experts_per_token]


def weights_of(logits: list[float], bias: list[float], config: Any) -> dict[int, float]:
    """The weight of each chosen expert of one token."""
    sigmoid = [1 / (1 + math.exp(-one)) for one in logits]
    total = math.fsum(map(math.exp, logits))
    scores = {"softmax": [math.exp(one) / total for one in logits], "sigmoid": sigmoid}.get(config.router_scores, logits)
    chosen = chosen_of([score + own for score, own in zip(scores, bias, strict=True)], config)
    if config.router_scores == "chosen_softmax":
        total = math.fsum(math.exp(logits[one]) for one in chosen)
        found = {one: math.exp(logits[one]) / total for one in chosen}
    else:
        found = {one: (sigmoid if config.router_scores == "chosen_sigmoid" else scores)[one] for one in chosen}
    divisor = sum(found.values()) + config.router_epsilon if config.router_normalize else 1.0
    return {one: weight / divisor * config.router_scale for one, weight in found.items()}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_EXPERTS_of_every_token_are_those_of_plain_numbers(config: Any) -> None:
    own = drawn(config, "mixture_of_experts")
    dense = experts.router(own["router"], config, X)
    y = experts.mixture_of_experts(own, config, X)
    for row, place in np.ndindex(X.shape[:2]):
        x = X[row, place]
        logits = x @ own["router"]["kernel"] + own["router"].get("bias", 0)
        found = weights_of(logits.tolist(), np.asarray(own["router"].get("selection_bias", [0.0] * EXPERTS)).tolist(), config)
        assert_allclose(dense[row, place], [found.get(expert, 0.0) for expert in range(EXPERTS)], rtol=1e-12, atol=1e-15)
        expected = np.zeros(WIDTH)
        for expert, weight in found.items():
            part = {name: {leaf: array[expert] for leaf, array in layer.items()} for name, layer in own["experts"].items()}
            network = network_of(part, config)
            expected += network(weight * x) if config.expert_weighted == "input" else weight * network(x)
        if "shared" in own:
            gate = 1 / (1 + math.exp(-float(x @ own["shared_gate"]["kernel"]))) if "shared_gate" in own else 1.0
            expected += gate * network_of(own["shared"], config)(x)
        assert_allclose(y[row, place], expected, rtol=1e-12)


def network_of(own: Any, config: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: feed_forward.feed_forward(own, x[None, None], config.activation, gate=config.gate)[0, 0]


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("component", ["router", "mixture_of_experts"])
def test_EXPERTS_gradients_equal_differences(config: Any, component: str) -> None:
    def forward(**given: Any) -> np.ndarray:
        return getattr(experts, component)(config=config, **given)

    def vjp(**given: Any) -> Any:
        return getattr(experts, f"{component}_vjp")(config=config, **given)

    own = drawn(config, component)
    gradients = prove(forward, vjp, parameters=own, x_btd=X[:1, :2])
    for name in ("parameters.selection_bias", "parameters.router.selection_bias"):
        assert not np.any(gradients.get(name, 0))


def test_EXPERTS_of_equal_scores_are_the_lower_ones() -> None:
    assert_array_equal(experts.choice(CONFIG, np.zeros((1, 1, EXPERTS)))[0, 0], [True] * 3 + [False] * 3)


def test_EXPERTS_a_negative_score_loses_to_experts_of_other_groups_that_count_as_zero() -> None:
    """With the mask 0 an expert outside the chosen groups wins against a negative score inside."""
    scores = np.array([[[-1.0, -2.0, -3.0, -4.0, -8.0, -9.0]]])
    config = DEEPSEEK.replace(experts_per_token=2, router_groups_kept=1)
    assert_array_equal(experts.choice(config, scores)[0, 0], [False, False, True, True, False, False])
    strict = config.replace(router_group_mask="minus_infinity")
    assert_array_equal(experts.choice(strict, scores)[0, 0], [True, True, False, False, False, False])


@pytest.mark.parametrize(("dtype", "expert"), [("model", 0), ("float32", 1)])
def test_EXPERTS_by_a_product_in_float32_see_what_half_precision_rounds_away(dtype: str, expert: int) -> None:
    config = CONFIG.replace(router_product_dtype=dtype, experts_per_token=1)
    kernel = np.zeros((WIDTH, EXPERTS))
    kernel[0], kernel[1, 1] = 1.0, 2.0**-12
    x = np.ones((1, 1, WIDTH), ml_dtypes.bfloat16)
    weight = experts.router({"kernel": kernel.astype(ml_dtypes.bfloat16)}, config, x)
    assert weight[0, 0].argmax() == expert


def test_EXPERTS_need_sizes_and_groups_that_divide() -> None:
    sizes: tuple[dict[str, Any], ...] = ({"experts_per_token": 0}, {"expert_width": 0}, {"router_groups": 4}, {"experts_per_token": 7})
    groups: dict[str, Any] = {"router_groups": 6, "router_groups_kept": 6, "router_group_score": "best_two"}
    for changes in (*sizes, groups, {"router_groups": 3, "router_groups_kept": 1}):
        with pytest.raises(ValueError):
            CONFIG.replace(**changes)


def test_SINK_takes_a_share_of_the_softmax_and_nothing_else() -> None:
    rng = np.random.default_rng(5)
    query, key, value = rng.normal(size=(1, 3, 4, 2)), rng.normal(size=(1, 3, 2, 2)), rng.normal(size=(1, 3, 2, 2))
    sink, hidden = np.array([0.3, -2.0, 900.0, -900.0]), np.array([True, True, False])
    scores = np.einsum("bthk,bshk->bhts", query, np.repeat(key, 2, axis=2)) / math.sqrt(2)
    exponential = np.exp(scores) * hidden
    with np.errstate(over="ignore"):
        expected = exponential / (exponential.sum(-1, keepdims=True) + np.exp(sink)[:, None, None])
    given = query, key, hidden[None, None, None], Scores()
    assert_allclose(attention.attention_weights(*given, sink), expected, rtol=1e-12, atol=1e-300)
    assert_allclose(attention.attention_weights(*given, sink)[0, 3], attention.attention_weights(*given)[0, 3], rtol=1e-12)
    nothing = attention.scaled_dot_product_attention(Heads(query, key, value, sink), np.zeros((1, 1, 1, 1), bool))
    assert not nothing.any()
    with pytest.raises(ValueError):
        attention.attention_weights(*given, sink[:2])


def test_SINK_gradients_equal_differences() -> None:
    config = CONFIG.replace(experts=0, attention_sinks="local", layer_pattern=("global", "local"), window=2, residual_multiplier=0.4,
                            embedding_multiplier=3.0)  # fmt: skip
    own = drawn(config, "transformer")
    assert [name for name in parameters.flatten(own) if name.endswith("sink")] == ["decoder.layers.1.self_attention.sink"]
    target = np.array([[1, 4, 2, 8]])
    prove(
        lambda **given: transformer.transformer(config=config, source=None, target=target, **given),
        lambda **given: transformer.transformer_vjp(config=config, source=None, target=target, **given),
        parameters=own,
    )


def test_GATE_limits_before_the_activation_and_offsets_after() -> None:
    gate, linear = np.array([-9.0, 1.0, 9.0]), np.array([-9.0, 1.0, 9.0])
    for found, at in zip(feed_forward.gated(gate, linear, "silu", Gate(7.0, 1.0)), [(-9.0, -7.0), (1.0, 1.0), (7.0, 7.0)], strict=True):
        assert_allclose(found, at[0] / (1 + math.exp(-at[0])) * (at[1] + 1), rtol=1e-12)
