"""Gradients, loss and update in float64 against 50 digits, within the bound that `test_reference_precision` derives.

The oracle is not a handwritten derivative but the central difference, in 50 digits, of the forward formula.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from test_reference_precision import (
    EPS,
    ROWS,
    Rows,
    fifty_digits,
    flat,
    naive_activation,
    naive_attention,
    naive_norm,
    naive_softmax,
    normal,
    prove,
)

from reference_numpy import attention, feed_forward, loss, normalization, optimizer, parameters, schedule
from reference_numpy.scores import Scores
from reference_numpy.softmax import softmax_vjp
from reference_numpy.values import Heads

__all__ = ["fifty_digits"]  # imports the fixture into this module

STEP = mpf("1e-18")  # relative step, at least 1e-18: the difference's error is 1e-36 of the third derivative, the rounding's 1e-32


def derivative(function: Callable[..., Rows], place: int) -> Callable[..., Rows]:
    """Returns the gradient of `<last argument, function(the others)>` with respect to the argument at that index, as flat numbers."""

    def moved(rows: Rows, index: int, h: Any) -> tuple[Rows, int]:
        """Returns the rows with h added to the number at that flat index, which counts down."""
        if not isinstance(rows, list):
            return (rows + h if index == 0 else rows), index - 1
        result = []
        for row in rows:
            row, index = moved(row, index, h)
            result.append(row)
        return result, index

    def oracle(*inputs: Rows) -> Rows:
        def scalar(index: int, h: Any) -> Any:
            changed = [*inputs[:place], moved(inputs[place], index, h)[0], *inputs[place + 1 : -1]]
            return mpmath.fdot(flat(inputs[-1]), flat(function(*changed)))

        steps = [STEP * max(abs(number), 1) for number in flat(inputs[place])]
        return [(scalar(index, h) - scalar(index, -h)) / (2 * h) for index, h in enumerate(steps)]

    return oracle


@pytest.mark.parametrize("large", [1.0, 50.0])
def test_softmax(large: float) -> None:
    logits, g = large * normal(2, 5), normal(2, 5, seed=1)
    seen = np.array([[1, 1, 1, 0, 1], [0, 0, 0, 0, 0]], bool)

    def oracle(x: Rows) -> Rows:
        return [naive_softmax(*pair) for pair in zip(x, seen.tolist(), strict=True)]

    # for a probability near 1, g cancels against the mean of g, in which that probability is rounded
    prove(softmax_vjp(logits, seen, cotangent=g)["logits"], derivative(oracle, 0), logits, g, between=float(np.abs(g).max()))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("rows", ROWS)
def test_layer_norm(rows: str, epsilon: float) -> None:
    x, scale, offset = ROWS[rows], normal(7, seed=16), normal(7, seed=17)
    g = normal(*x.shape, seed=18)
    gradients = normalization.layer_norm_vjp({"scale": scale, "offset": offset}, x, epsilon, cotangent=g)

    def oracle(x: Rows, scale: Rows, offset: Rows) -> Rows:
        return naive_norm({"scale": scale, "offset": offset}, x[0], epsilon)

    for place, gradient in enumerate((gradients["x_btd"], gradients["parameters"]["scale"], gradients["parameters"]["offset"])):
        prove(gradient, derivative(oracle, place), x, scale, offset, g)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_mask_bias_and_a_shared_head(causal: bool) -> None:
    inputs = normal(1, 2, 2, 2), normal(1, 3, 1, 2, seed=1), normal(1, 3, 1, 2, seed=2), normal(1, 2, 2, 3, seed=3)
    g, mask = normal(1, 2, 2, 2, seed=4), np.array([[1, 0, 1], [1, 1, 1]], bool)[None, None]
    given = Heads(*inputs[:3]), np.where(mask, inputs[3], -np.inf), Scores(causal=causal)
    gradients = attention.scaled_dot_product_attention_vjp(*given, cotangent=g)
    seen = [[bool(mask[0, 0, t, s]) and (s <= t + 1 or not causal) for s in range(3)] for t in range(2)]

    def oracle(q: Rows, k: Rows, v: Rows, b: Rows) -> Rows:
        heads = [
            naive_attention([row[h] for row in q[0]], [row[0] for row in k[0]], [row[0] for row in v[0]], seen, b[0][h])[0] for h in (0, 1)
        ]
        return [[heads[h][t] for h in (0, 1)] for t in (0, 1)]

    for place, gradient in enumerate(gradients.values()):
        prove(gradient, derivative(oracle, place), *inputs, g)


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh", "gelu_sigmoid"])
def test_activation(name: str) -> None:
    x = np.concatenate([np.linspace(-7, 7, 57), [-40.0, -1e-9, 1e-9, 40.0]])
    slope = feed_forward.activation_vjp(x, name, cotangent=np.ones(len(x)))["x"]
    for actual, number in zip(slope, x, strict=True):
        exact = mpmath.diff(lambda y: naive_activation(y, name), mpf(float(number)), h=STEP)
        # 1 + gate and 1 - gate^2 are rounded at 1; the latter is multiplied by x u' / 2, until the gate is exactly 1 beyond 7
        inner = abs(number) * (1 + 3 * 0.044715 * number**2) if name == "gelu_tanh" and abs(number) <= 7 else 0.0
        assert abs(mpf(float(actual)) - exact) <= 4 * EPS * (1 + inner), number


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("large", [1.0, 50.0])
def test_cross_entropy(smoothing: float, large: float) -> None:
    logits, label, mask = large * normal(1, 3, 4), np.array([[3, 0, 2]]), np.array([[True, False, True]])

    def oracle(x: Rows) -> Rows:
        total = mpf(0)
        for t in (0, 2):
            logs = [mpmath.log(p) for p in naive_softmax(x[0][t], [True] * 4)]
            total -= (1 - mpf(smoothing)) * logs[int(label[0, t])] + mpf(smoothing) * sum(logs) / 4
        return [total / 5]

    settings: tuple[Any, ...] = (label, mask, smoothing, 5)
    prove(loss.cross_entropy(logits, *settings), oracle, logits)
    g = np.array([1.7])
    gradient = loss.cross_entropy_vjp(logits, *settings, cotangent=g[0])["logits_btv"]
    # likewise p of a nearly certain label cancels against 1
    prove(gradient, derivative(oracle, 0), logits, g, between=1.7 / 5)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_three_steps_of_adam(decay: float) -> None:
    """The rates are perturbed as well, as 1 - b^n loses digits for b near 1."""
    kernel, gradients = normal(4), [normal(4, seed=seed) for seed in (1, 2, 3)]
    rates = np.array([1e-3, 0.9, 0.98, 1e-9, decay])

    def oracle(part: int, p: Rows, g: Rows, hyper: Rows) -> Rows:
        rate, b1, b2, epsilon, shrink = hyper
        m, v = [mpf(0)] * 4, [mpf(0)] * 4
        for n, now in enumerate(g, start=1):
            m = [b1 * a + (1 - b1) * b for a, b in zip(m, now, strict=True)]
            v = [b2 * a + (1 - b2) * b * b for a, b in zip(v, now, strict=True)]
            root = [mpmath.sqrt(a / (1 - b2**n)) + epsilon for a in v]
            p = [a - rate * (b / (1 - b1**n) / c + shrink * a) for a, b, c in zip(p, m, root, strict=True)]
        return (p, m, v)[part]

    state: dict[str, Any] = {"parameters": {"kernel": kernel}} | {
        kind: {"kernel": np.zeros(4)} for kind in ("first_moment", "second_moment")
    }
    for step, g in enumerate(gradients, start=1):
        state = optimizer.adam(*(state["parameters"], {"kernel": g}, state["first_moment"], state["second_moment"], step), *rates.tolist())
    for place, value in enumerate(state.values()):
        prove(value["kernel"], lambda *inputs, place=place: oracle(place, *inputs), kernel, np.array(gradients), rates)


@pytest.mark.parametrize("step", [1, 3999, 4000, 4001, 10**7])
def test_noam(step: int) -> None:
    exact = min(mpf(step) ** mpf(-0.5), step * mpf(4000) ** mpf(-1.5)) / mpmath.sqrt(512)
    # two powers and two products are rounded by at most one ulp each
    assert abs(mpf(float(schedule.noam(step, 512, 4000))) - exact) <= 4 * EPS * exact


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clip_global_norm(limit: float) -> None:
    flat_gradients = {"a.kernel": normal(3, 4), "a.bias": normal(5, seed=1)}
    clipped = parameters.flatten(optimizer.clip_global_norm(parameters.nest(flat_gradients), limit))

    def oracle(kernel: Rows, bias: Rows) -> Rows:
        norm = mpmath.sqrt(sum(a * a for a in flat(kernel) + flat(bias)))
        return [a * min(mpf(1), limit / norm) for a in flat(kernel) + flat(bias)]

    prove(np.concatenate([value.ravel() for value in clipped.values()]), oracle, *flat_gradients.values())
