"""Every forward component in float64 against its formula in 50 digits, written with scalar loops over nested lists.

The bound is derived. A backward stable computation returns the exact result for inputs that are off by a few roundings, so its error is
at most a few roundings times the condition: how far the exact result moves per relative change of its inputs. The
condition is measured in 50 digits, by moving every input and parameter randomly up or down by 1e-25 of itself.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from strategies import draw_parameters

from reference_numpy import (
    TransformerConfig,
    attention,
    embedding,
    feed_forward,
    normalization,
    parameters,
    positional_encoding,
    preset,
    transformer,
)
from reference_numpy.dropout import dropout
from reference_numpy.scores import Scores
from reference_numpy.softmax import softmax
from reference_numpy.values import Heads

EPS = float(np.finfo(np.float64).eps)
# Sums here have at most 7 terms, so at most 7 roundings in series; as their signs are random, about sqrt(7) of them remain, and the
# random moves measure the condition to within a similar factor. Several components measure between 0.5 and 1.
ROUNDINGS = 4
SMALL = preset("tiny", source_vocabulary=6, target_vocabulary=6, model_width=4, heads=4, key_value_heads=2, key_size=3, value_size=2,
               feed_forward_width=7, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True)  # fmt: skip

Rows = Any  # numbers in nested lists


@pytest.fixture(autouse=True)
def fifty_digits() -> Any:
    with mpmath.workdps(50):
        yield


def matrix(x: Rows, kernel: Rows, bias: Rows | None = None) -> Rows:
    columns = range(len(kernel[0]))
    return [[sum((a * kernel[i][j] for i, a in enumerate(row)), mpf(0)) + (bias[j] if bias else 0) for j in columns] for row in x]


def naive_softmax(row: Rows, seen: Rows) -> Rows:
    terms = [mpmath.exp(x) if see else mpf(0) for x, see in zip(row, seen, strict=True)]
    return [term / sum(terms) for term in terms] if any(seen) else terms


def naive_attention(query: Rows, key: Rows, value: Rows, seen: Rows, bias: Rows | None = None) -> tuple[Rows, Rows]:
    """Computes one sequence and one head: rows `t k`, `s k`, `s e`, and the mask and bias `t s`; returns the output and the weights."""
    output, weights = [], []
    for t, q in enumerate(query):
        scores = [
            sum(a * b for a, b in zip(q, k, strict=True)) / mpmath.sqrt(len(q)) + (bias[t][s] if bias else 0) for s, k in enumerate(key)
        ]
        weights.append(naive_softmax(scores, seen[t]))
        output.append([sum(w * value[s][e] for s, w in enumerate(weights[t])) for e in range(len(value[0]))])
    return output, weights


def heads_of(part: Rows, x: Rows) -> Rows:
    """Returns the projections of rows x, one list of rows per head."""
    kernel, bias = part["kernel"], part["bias"]
    return [matrix(x, [rows[h] for rows in kernel], bias[h]) for h in range(len(kernel[0]))]


def naive_multi_head(part: Rows, x: Rows, memory: Rows, seen: Rows) -> Rows:
    query, key, value = heads_of(part["query"], x), heads_of(part["key"], memory), heads_of(part["value"], memory)
    total = [list(part["output"]["bias"]) for _ in x]
    for h, rows in enumerate(query):
        served = h // (len(query) // len(key))
        head, _ = naive_attention(rows, key[served], value[served], seen)
        mixed = matrix(head, part["output"]["kernel"][h])
        total = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(total, mixed, strict=True)]
    return total


def naive_activation(x: Any, name: str) -> Any:
    if name == "relu":
        return x if x > 0 else mpf(0)
    if name == "gelu_erf":
        return x * (1 + mpmath.erf(x / mpmath.sqrt(2))) / 2
    if name == "gelu_sigmoid":
        return x / (1 + mpmath.exp(-mpf("1.702") * x))
    return x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3))) / 2


def naive_feed_forward(part: Rows, x: Rows, name: str) -> Rows:
    hidden = matrix(x, part["hidden"]["kernel"], part["hidden"]["bias"])
    return matrix([[naive_activation(h, name) for h in row] for row in hidden], part["output"]["kernel"], part["output"]["bias"])


def naive_norm(part: Rows, x: Rows, epsilon: float) -> Rows:
    result = []
    for row in x:
        mean = sum(row) / len(row)
        root = mpmath.sqrt(sum((a - mean) ** 2 for a in row) / len(row) + mpf(epsilon))
        result.append([g * (a - mean) / root + o for a, g, o in zip(row, part["scale"], part["offset"], strict=True)])
    return result


def naive_residual(part: Rows, name: str, config: TransformerConfig, x: Rows, sublayer: Callable[[Rows], Rows]) -> Rows:
    pre = config.norm_placement == "pre"
    y = sublayer(naive_norm(part[f"{name}_norm"], x, config.epsilon) if pre else x)
    total = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(x, y, strict=True)]
    return total if pre else naive_norm(part[f"{name}_norm"], total, config.epsilon)


def naive_layer(part: Rows, config: TransformerConfig, x: Rows, seen: Rows, memory: Rows = None, cross_seen: Rows = None) -> Rows:
    """Computes an encoder layer, or with a memory a decoder layer whose mask `seen` is already causal."""
    x = naive_residual(part, "self_attention", config, x, lambda y: naive_multi_head(part["self_attention"], y, y, seen))
    if memory is not None:
        x = naive_residual(part, "cross_attention", config, x, lambda y: naive_multi_head(part["cross_attention"], y, memory, cross_seen))
    return naive_residual(part, "feed_forward", config, x, lambda y: naive_feed_forward(part["feed_forward"], y, config.activation))


def naive_position(p: int, width: int) -> Rows:
    angles = [p / mpf(10000) ** (mpf(2 * (j // 2)) / width) for j in range(width)]
    return [mpmath.cos(angle) if j % 2 else mpmath.sin(angle) for j, angle in enumerate(angles)]


def naive_embed(table: Rows, ids: list[int]) -> Rows:
    width = len(table[0])
    rows = enumerate(ids)
    return [[mpmath.sqrt(width) * a + b for a, b in zip(table[id_], naive_position(p, width), strict=True)] for p, id_ in rows]


def naive_transformer(part: Rows, config: TransformerConfig, source: list[int], target: list[int]) -> Rows:
    """Computes one source and one target of one layer each, without padding; final norms, tied logits."""
    seen = [[True] * len(source)] * len(source)
    memory = naive_layer(part["encoder"]["layers"]["0"], config, naive_embed(part["source_embedding"]["table"], source), seen)
    memory = naive_norm(part["encoder"]["final_norm"], memory, config.epsilon)
    causal, cross = [[j <= i for j in range(len(target))] for i in range(len(target))], [[True] * len(source)] * len(target)
    x = naive_embed(part["source_embedding"]["table"], target)
    x = naive_layer(part["decoder"]["layers"]["0"], config, x, causal, memory, cross)
    x = naive_norm(part["decoder"]["final_norm"], x, config.epsilon)
    return matrix(x, list(zip(*part["source_embedding"]["table"], strict=True)), part["logits"]["bias"])


def lists(value: Any, rng: np.random.Generator | None = None) -> Any:
    """Converts arrays, also in mappings, to nested lists of mpf; with rng, moves each number up or down by 1e-25 of itself."""
    if isinstance(value, dict):
        return {name: lists(part, rng) for name, part in value.items()}
    if isinstance(value, (np.ndarray, list)):
        return [lists(part, rng) for part in value]
    exact = mpf(float(value))
    return exact * (1 + mpf("1e-25") * int(rng.choice([-1, 1]))) if rng else exact


def flat(rows: Rows) -> list[Any]:
    return [number for row in rows for number in flat(row)] if isinstance(rows, list) else [rows]


def prove(actual: np.ndarray, oracle: Callable[..., Rows], *inputs: Any, between: float = 0.0) -> None:
    """Asserts that the reference's result differs from oracle(*inputs) by at most the bound of the module's docstring.

    between: the largest intermediate number that is rounded, if it exceeds the result's size and no input moves it.
    """
    expected = flat(oracle(*(lists(value) for value in inputs)))
    condition = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        moved = flat(oracle(*(lists(value, rng) for value in inputs)))
        condition = max(condition, *(float(abs(a - b) / mpf("1e-25")) for a, b in zip(moved, expected, strict=True)))
    assert actual.dtype == np.float64
    assert actual.size == len(expected)
    error = max(float(abs(mpf(float(a)) - b)) for a, b in zip(actual.ravel(), expected, strict=True))
    largest = max(between, *(float(abs(number)) for number in expected))
    assert error <= ROUNDINGS * EPS * max(condition, largest), (error / EPS, condition, largest)


def normal(*shape: int, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, shape)


@pytest.mark.parametrize("scale", [True, False])
def test_embedding_of_ids_and_of_mixtures(scale: bool) -> None:
    table, soft = normal(5, 3), np.random.default_rng(1).dirichlet(np.ones(5), (1, 2))
    root = mpmath.sqrt(3) if scale else mpf(1)
    prove(
        embedding.embedding({"table": table}, np.array([[4, 0]]), scale),
        lambda t: [[root * x for x in t[4]], [root * x for x in t[0]]],
        table,
    )
    mixed = embedding.embedding({"table": table}, soft, scale)
    prove(mixed, lambda t, p: [[root * x for x in row] for row in matrix(p[0], t)], table, soft)


@pytest.mark.parametrize("width", [1, 2, 7, 512])
def test_positional_encoding(width: int) -> None:
    positions = [0, 1, 63, 1_000, 1_000_000]
    actual = positional_encoding.positional_encoding(np.array([positions]), width)[0]
    for row, p in zip(actual, positions, strict=True):
        for j, (number, exact) in enumerate(zip(row, naive_position(p, width), strict=True)):
            # rounding of the exponent times ln 10000 < 9.3, plus two more roundings, moves the angle by less than 11 relative roundings
            angle = p / 10000 ** (2 * (j // 2) / width)
            assert abs(mpf(float(number)) - exact) <= EPS * (1 + 11 * angle), (p, j)


@pytest.mark.parametrize("large", [1.0, 50.0, 300.0])
def test_softmax_with_masks(large: float) -> None:
    logits = large * normal(4, 6)
    seen = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]], bool)
    prove(softmax(logits), lambda x: [naive_softmax(row, [True] * 6) for row in x], logits)
    prove(softmax(logits, seen), lambda x: [naive_softmax(*pair) for pair in zip(x, seen.tolist(), strict=True)], logits)


def test_attention_with_mask_bias_causal_and_shared_heads() -> None:
    query, key, value, bias = normal(1, 3, 4, 2), normal(1, 5, 2, 2, seed=1), normal(1, 5, 2, 3, seed=2), normal(1, 4, 3, 5, seed=3)
    mask = np.random.default_rng(4).random((1, 4, 3, 5)) < 0.6
    mask[0, 1, 2] = False
    given = np.where(mask, bias, -np.inf), Scores(causal=True)
    result = attention.scaled_dot_product_attention(Heads(query, key, value), *given), attention.attention_weights(query, key, *given)
    seen = [[[bool(mask[0, h, t, s]) and s <= t + 2 for s in range(5)] for t in range(3)] for h in range(4)]

    def oracle(which: int, q: Rows, k: Rows, v: Rows, b: Rows) -> Rows:
        def head(rows: Rows, h: int) -> Rows:
            return [row[h] for row in rows[0]]

        return [naive_attention(head(q, h), head(k, h // 2), head(v, h // 2), seen[h], b[0][h])[which] for h in range(4)]

    prove(result[0].swapaxes(1, 2), lambda *x: oracle(0, *x), query, key, value, bias)
    prove(result[1], lambda *x: oracle(1, *x), query, key, value, bias)


@pytest.mark.parametrize("name", ["relu", "gelu_erf", "gelu_tanh", "gelu_sigmoid"])
def test_activation(name: str) -> None:
    x = np.concatenate([np.linspace(-6, 6, 49), [-40.0, -1e-9, 1e-9, 40.0, 1e30, -1e30]])
    actual = feed_forward.activation(x, name)
    for a, number in zip(actual, x, strict=True):
        # 1 + gate is rounded at 1, so the error is relative to x rather than to the small result of a negative x
        assert abs(mpf(float(a)) - naive_activation(mpf(float(number)), name)) <= 4 * EPS * abs(number), number


ROWS = {
    "ordinary": normal(1, 3, 7, seed=11),
    "constant": np.full((1, 2, 7), 0.1),
    "mean 100, small variance": 100 + 1e-3 * normal(1, 3, 7, seed=12),
    "mean 1e8": 1e8 + normal(1, 3, 7, seed=13),
    "tiny": 1e-30 * normal(1, 3, 7, seed=14),
    "huge": 1e100 * normal(1, 3, 7, seed=15),
}


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("rows", ROWS)
def test_layer_norm(rows: str, epsilon: float) -> None:
    part = {"scale": normal(7, seed=16), "offset": normal(7, seed=17)}
    prove(normalization.layer_norm(part, ROWS[rows], epsilon), lambda p, x: naive_norm(p, x[0], epsilon), part, ROWS[rows])


def test_dropped_numbers_are_divided_by_the_share_kept() -> None:
    x, keep = normal(20), np.arange(20) % 3 > 0
    prove(dropout(x, keep, 0.3), lambda x: [a / (1 - mpf(0.3)) if k else mpf(0) for a, k in zip(x, keep, strict=True)], x)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_transformer_of_one_and_one_layer(placement: str) -> None:
    config = SMALL.replace(norm_placement=placement, final_norm=True, activation="gelu_tanh")
    part = parameters.nest(draw_parameters(config, 23))
    source, target = [3, 1, 5], [2, 4]
    actual = transformer.transformer(part, config, np.array([source]), np.array([target]))
    prove(actual, lambda p: naive_transformer(p, config, source, target), part)


def test_the_bound_catches_an_error_of_1e_12() -> None:
    x, part = normal(1, 3, 7), {"scale": np.ones(7), "offset": np.zeros(7)}
    with pytest.raises(AssertionError):
        prove(normalization.layer_norm(part, x, 1e-5 + 1e-12), lambda p, x: naive_norm(p, x[0], 1e-5), part, x)
