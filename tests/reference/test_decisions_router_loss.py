"""The loss of routers (docs/decisions.md, BALANCE), token by token with plain numbers, and its gradients."""

import math
from typing import Any

import numpy as np
import pytest
from messages import mentions
from strategies import tree
from test_decisions_experts import CONFIG, DEEPSEEK, GPT_OSS
from test_reference_gradients import prove

from reference_numpy import loss, parameters, preset, transformer
from reference_numpy.recipe import PAPER
from reference_numpy.training import Trainer

WEIGHTS = {"router_aux_weight": 0.7, "router_z_weight": 0.03}
LOGITS = np.random.default_rng(5).normal(size=(2, 3, 4, 6))
MASK = np.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]], bool)
PADDED = np.array([[0, 0, 3, 4, 2, 5], [3, 4, 5, 1, 2, 7], [0, 6, 2, 8, 0, 0]])  # on both sides
KINDS = {
    "two layers": CONFIG.replace(padding_id=0),
    "a layer without experts": CONFIG.replace(padding_id=0, decoder_layers=3, expert_pattern=(True, False, True)),
    "deepseek": DEEPSEEK.replace(padding_id=0, shared_width=4),
    "gpt-oss": GPT_OSS.replace(padding_id=0),
}


def by_hand(logits: np.ndarray, mask: np.ndarray, per_token: int, aux: float, z: float) -> float:
    tokens = [logits[place].tolist() for place in np.ndindex(logits.shape[:3]) if mask[place[1:]]]
    count = logits.shape[3]
    total = [math.fsum(math.exp(one) for one in token) for token in tokens]
    p = [
        math.fsum(math.exp(token[expert]) / own for token, own in zip(tokens, total, strict=True)) / len(tokens) for expert in range(count)
    ]
    chosen = [set(sorted(range(count), key=lambda expert: -token[expert])[:per_token]) for token in tokens]
    f = [sum(expert in own for own in chosen) / len(tokens) for expert in range(count)]
    balance = count * math.fsum(one * other for one, other in zip(f, p, strict=True))
    return aux * balance + z * math.fsum(math.log(own) ** 2 for own in total) / len(tokens)


@pytest.mark.parametrize("per_token", [1, 2, 6])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, 0.03)])
def test_BALANCE_is_that_of_plain_numbers(per_token: int, weights: tuple[float, float]) -> None:
    found = loss.router_loss(LOGITS, per_token, MASK, *weights)
    np.testing.assert_allclose(found, by_hand(LOGITS, MASK, per_token, *weights), rtol=1e-13)
    full = np.ones_like(MASK)
    np.testing.assert_allclose(loss.router_loss(LOGITS, per_token, None, *weights), by_hand(LOGITS, full, per_token, *weights), rtol=1e-13)


def test_of_equal_logits_the_lower_experts_count_and_tokens_that_do_not_count_may_hold_anything() -> None:
    equal = np.zeros((1, 1, 2, 4))
    assert loss.router_loss(equal, 2, None, 1.0) == 4 * 2 / 4  # f = 1, 1, 0, 0 and p = 1/4
    g = loss.router_loss_vjp(equal, 2, None, 1.0, cotangent=np.ones(()))["logits_lbtx"]
    np.testing.assert_allclose(g[0, 0], [[0.25, 0.25, -0.25, -0.25]] * 2)
    hidden = np.where(MASK[..., None], LOGITS, np.inf)
    assert loss.router_loss(hidden, 2, MASK, 0.7, 0.1) == loss.router_loss(LOGITS, 2, MASK, 0.7, 0.1)
    g = loss.router_loss_vjp(hidden, 2, MASK, 0.7, 0.1, cotangent=np.ones(()))["logits_lbtx"]
    assert np.isfinite(g).all() and not g[:, ~MASK].any()
    assert loss.router_loss(LOGITS, 2, np.zeros_like(MASK), 0.7, 0.1) == 0


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "some"])
def test_gradients_of_the_loss_are_those_of_differences(mask: Any) -> None:
    prove(loss.router_loss, loss.router_loss_vjp, logits_lbtx=LOGITS, per_token=2, mask_bt=mask, **WEIGHTS)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_gradients_of_a_whole_model_are_those_of_differences(config: Any) -> None:
    """Along a random direction for each parameter."""
    held, given = parameters.flatten(tree(config, 3, "transformer")), (config, None, PADDED, 0.1, 20)
    rng, vjp = np.random.default_rng(6), transformer.training_loss_vjp

    def moved(name: str, change: np.ndarray) -> float:
        return float(transformer.training_loss(parameters.nest(held | {name: held[name] + change}), *given, **WEIGHTS))

    gradients = [
        parameters.flatten(vjp(parameters.nest(held), *given, **more, cotangent=np.ones(()))["parameters"]) for more in (WEIGHTS, {})
    ]
    for name, value in held.items():
        step = 1e-5 * rng.choice([-1.0, 1.0], value.shape)
        found = (moved(name, step) - moved(name, -step)) / 2
        np.testing.assert_allclose((gradients[0][name] * step).sum(), found, rtol=1e-5, atol=1e-14, err_msg=name)
        if "router" in name and "selection_bias" not in name:
            assert not np.allclose(gradients[0][name], gradients[1][name]), name


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_layers_are_pooled_and_padding_does_not_count(config: Any) -> None:
    """A real token without a label does not count."""
    own = tree(config, 3, "transformer")
    routed: list[np.ndarray] = []
    transformer.decode(own, config, PADDED[:, :-1], routed=routed)
    assert len(routed) == sum(map(config.has_experts, range(config.decoder_layers)))
    term = by_hand(np.stack(routed), (PADDED[:, :-1] != 0) & (PADDED[:, 1:] != 0), config.experts_per_token, *WEIGHTS.values())
    plain = transformer.training_loss(own, config, None, PADDED, 0.1)
    np.testing.assert_allclose(transformer.training_loss(own, config, None, PADDED, 0.1, **WEIGHTS), plain + term, rtol=1e-13)
    more = np.concatenate([PADDED, np.zeros((3, 2), int)], axis=1)
    np.testing.assert_allclose(transformer.training_loss(own, config, None, more, 0.1, **WEIGHTS), plain + term, rtol=1e-13)


def test_microbatches_weigh_their_own_terms_by_their_share_of_the_labels() -> None:
    config, target = KINDS["two layers"], np.concatenate([PADDED, PADDED[:1]])
    held = parameters.flatten(tree(config, 3, "transformer"))
    run = Trainer(config, PAPER.replace(microbatches=2, beta_1=0.0, **WEIGHTS), held)
    first = run.train_step(None, target)
    own, counts = parameters.nest(held), [int((rows[:, 1:] != 0).sum()) for rows in (target[:2], target[2:])]
    values = [transformer.training_loss(own, config, None, rows, 0.1, **WEIGHTS) for rows in (target[:2], target[2:])]
    np.testing.assert_allclose(first, np.average(values, weights=counts), rtol=1e-13)
    assert abs(first - transformer.training_loss(own, config, None, target, 0.1, **WEIGHTS)) > 1e-6
    right = np.array([[3, 4, 2, 5, 0, 0], [3, 4, 5, 1, 2, 7], [6, 2, 8, 0, 0, 0], [1, 2, 0, 0, 0, 0]])
    z = [transformer.training_loss(own, config, None, rows, total=11, router_z_weight=0.5) for rows in (right[:2], right[2:])]
    np.testing.assert_allclose(sum(z), transformer.training_loss(own, config, None, right, router_z_weight=0.5), rtol=1e-13)
    whole = Trainer(config, PAPER.replace(**WEIGHTS), held)
    assert whole.loss(None, target) == Trainer(config, PAPER, held).loss(None, target)


def test_weights_without_routers_are_refused() -> None:
    dense = preset("tiny")
    for config in (dense, CONFIG.replace(experts=0), CONFIG.replace(expert_pattern=(False,))):
        with pytest.raises(ValueError, match="experts"):
            Trainer(config, PAPER.replace(**WEIGHTS), {})
    with pytest.raises(ValueError, match="experts"):
        transformer.training_loss({}, dense, PADDED, PADDED, router_z_weight=0.1)
    for bad in ({"router_aux_weight": -1.0}, {"router_z_weight": math.inf}):
        with pytest.raises(ValueError) as error:
            loss.router_loss(LOGITS, 2, **bad)
        assert mentions(str(error.value), *bad)
    with pytest.raises(ValueError):
        loss.router_loss(LOGITS, 7)
    with pytest.raises(ValueError):
        loss.router_loss(LOGITS[0], 2)
    with pytest.raises(ValueError):
        PAPER.replace(router_aux_weight=-0.1)
