"""Comparison and tolerance: what passes, what fails, and that nothing is skipped unnoticed."""

import functools
import itertools

import numpy as np
import pytest
from expectations import all_by_id, expect, suite
from kinds import every
from messages import mentions

from rosettaformer.judge.case import Case, numpy_dtype
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, near_ties, tolerance
from rosettaformer.judge.expectation.orders import shuffled
from rosettaformer.judge.expectation.tolerance import Expectation, ulp
from rosettaformer.judge.result import Result, judge


def _expectation(reference: np.ndarray, dtype: str = "float32", noise: float = 1e-6) -> Expectation:
    return Expectation(reference, numpy_dtype(dtype), noise, noise / 2, ulp(float(np.abs(reference).max()), dtype))


REFERENCE = np.linspace(-1, 1, 24).reshape(2, 3, 4)


def test_the_largest_error_and_the_root_mean_square_are_bounded_apart() -> None:
    result = compare(_expectation(REFERENCE), REFERENCE.astype(np.float32))
    assert result.excess < 1 and result.ratio < 1 and not result.message
    expectation = _expectation(REFERENCE)
    assert expectation.bound == 4e-6 + 2.0**-23
    for factor, passes in ((0.9, True), (1.2, False)):
        got = REFERENCE.astype(np.float32)
        got[1, 2, 3] += np.float32(factor * expectation.bound)
        result = compare(expectation, got)
        assert (result.excess <= 1) is passes
        assert result.worst == (1, 2, 3)
        assert ("at [1, 2, 3]" in result.message) is not passes
    got = (REFERENCE + 0.9 * expectation.bound).astype(np.float32)
    result = compare(expectation, got)
    assert result.excess > 1
    assert "root mean square" in result.message


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (REFERENCE.astype(np.float32)[:1], "must have shape (2, 3, 4); got (1, 3, 4)"),
        (1.1 * REFERENCE, "must be float32; got float64"),
        (np.where(REFERENCE > 0.9, np.nan, REFERENCE).astype(np.float32), "2 of 24 … NaN"),
        (np.where(REFERENCE > 0.9, np.inf, REFERENCE).astype(np.float32), "2 of 24 … inf"),
        ([1.0], "array; got list"),
    ],
)
def test_another_shape_dtype_or_nan_never_passes(got: object, message: str) -> None:
    result = compare(_expectation(REFERENCE), got)
    assert result.excess == np.inf
    assert mentions(result.message, message)


def test_infinity_of_the_other_sign_never_passes() -> None:
    reference = np.where(REFERENCE > 0.9, -np.inf, REFERENCE)
    got = np.where(REFERENCE > 0.9, np.inf, REFERENCE).astype(np.float32)
    assert compare(_expectation(reference), got).excess == np.inf
    assert compare(_expectation(reference), reference.astype(np.float32)).excess <= 1


def test_booleans_are_compared_exactly_and_integers_of_any_width() -> None:
    mask = np.array([[True, False]])
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), mask).excess == 0
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), ~mask).message == "2 of 2 elements differ"
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), mask.astype(np.int8)).excess == np.inf
    ids = np.array([1, 2])
    assert compare(Expectation(ids, ids.dtype, 0, 0, 0), ids.astype(np.int32)).excess == 0


MODELS = [case for case in suite() if case.component == "transformer"]


@pytest.mark.parametrize("case", every(12, MODELS), ids=lambda case: case.name)
def test_noise_is_positive_and_of_the_size_of_the_dtype(case) -> None:
    previous = 0.0
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        found = expect(case.at(dtype))["output"]
        assert found.noise > 2 * previous or (found.noise == 0 and not found.reference.any())  # zeros are exact in every dtype
        previous = found.noise


@functools.cache
def _reference() -> list[tuple[Case, dict[str, np.ndarray]]]:
    return [(case, components.answer(case)) for case in suite() if case.id != "positional_encoding/far" and "large" not in case.name]


@pytest.mark.parametrize("name", every(6, tolerance.ORDERS | tolerance.TF32_ORDERS))
def test_every_order_computes_the_same_function(name: str) -> None:
    order = (tolerance.ORDERS | tolerance.TF32_ORDERS)[name]
    bound = 1e-13 if name in tolerance.ORDERS else 0
    for case, reference in _reference():
        with tolerance.order(order):
            got = components.answer(case)
        for output, value in reference.items():
            if value.dtype.kind == "f" and value.size:
                finite = np.isfinite(value)
                np.testing.assert_array_equal(got[output][~finite], value[~finite])
                error = np.abs(got[output][finite] - value[finite]).max(initial=0.0)
                assert error <= bound * np.abs(value[finite]).max(initial=1.0) * 100, case.id


def test_tf32_noise_is_that_of_ten_bits() -> None:
    case = all_by_id()["feed_forward/relu"]
    plain = expect(case.at("float32", "cuda"))["output"].noise
    tf32 = expect(case.at("float32", "cuda-tf32"))["output"].noise
    assert 100 * plain < tf32 < 0.05


def _judged(expected: dict[str, Expectation], **outputs: np.ndarray) -> Result:
    row = {"case": "c/n", "component": "c", "port": "p", "dtype": "float16", "device": "cpu", "mode": ""}
    return judge(row, "outputs", outputs, expected)


def _half(reference: np.ndarray, *runs: np.ndarray) -> Expectation:
    return tolerance.expectation(reference, [np.asarray(run, np.float16) for run in runs])


def _answers(size: int) -> list[np.ndarray]:
    return [np.full(size, value, np.float16) for value in (0.0, 1.0, np.nan, np.inf)]


def test_where_the_dtype_overflows_nothing_passes_and_nothing_fails() -> None:
    reference = np.array([1e3, 1e5])
    for runs in ([[1e3, np.inf]], [[1e3, np.nan]], [[1e3, 6e4], [1e3, np.nan]], [[np.nan, 6e4], [1e3, 6e4]]):
        expected = {"output": _half(reference, *map(np.array, runs))}
        for got in _answers(2):
            result = _judged(expected, output=got)
            assert (result.status, result.message) == ("not comparable", "output: plain arithmetic in float16 overflows")


def test_a_bound_that_zeros_are_within_and_outputs_of_nan_show_nothing() -> None:
    reference = np.array([1.0, 2.0])
    expected = {"output": _half(reference, np.array([0.0, 0.0]), np.array([1.75, 2.5]))}
    assert {_judged(expected, output=got).status for got in _answers(2)[:2]} == {"not comparable"}
    assert mentions(_judged(expected, output=_answers(2)[0]).message, "bound 8 … value 2")
    assert _judged(expected, output=np.full(2, np.nan, np.float16)).status == "differs"  # none of the orders gives NaN
    near = {"output": _half(reference, np.array([1.0, 2.25]))}
    assert _judged(near, output=np.zeros(2, np.float16)).status == "differs"
    assert _judged(near, output=reference.astype(np.float16)).status == "pass"
    reference = np.array([*[1.0] * 64, 1.5])
    run = reference.copy()
    run[-1] = 2.0
    expected = {"output": _half(reference, run)}
    assert expected["output"].bound >= 1.5
    assert _judged(expected, output=np.zeros(65, np.float16)).status == "differs"
    expected = {"output": _half(np.full(3, np.nan), np.full(3, np.nan))}
    assert _judged(expected, output=np.full(3, np.nan, np.float16)).status == "not comparable"


def test_exact_zeros_are_compared_and_of_empty_outputs_shape_and_dtype() -> None:
    expected = {"output": _half(np.zeros(3), np.zeros(3))}
    assert _judged(expected, output=np.zeros(3, np.float16)).status == "pass"
    assert _judged(expected, output=np.full(3, 1e-3, np.float16)).status == "differs"
    expected = {"output": _half(np.zeros((0, 3)), np.zeros((0, 3)))}
    assert _judged(expected, output=np.zeros((0, 3), np.float16)).status == "empty"
    assert _judged(expected, output=np.zeros((0, 4), np.float16)).status == "differs"
    assert _judged(expected, output=np.zeros((0, 3), np.float32)).status == "differs"
    good, wide = np.array([1.0, 2.0]), {"wide": _half(np.array([1.0]), np.array([np.inf]))}
    expected = {"good": _half(good, good)} | wide
    passes = _judged(expected, good=good.astype(np.float16), wide=np.zeros(1, np.float16))
    assert (passes.status, list(passes.incomparable)) == ("pass", ["wide"])
    assert _judged(expected, good=np.zeros(2, np.float16), wide=np.ones(1, np.float16)).status == "differs"
    assert _judged(expected, good=good.astype(np.float16), wide=np.ones(2, np.float16)).status == "differs"  # another shape


EMPTY = ("embedding/batch_0", "scaled_dot_product_attention/batch_0", "scaled_dot_product_attention_vjp/batch_0", "layer_norm/batch_0")
OF_SMALL_TABLES = {"source_segment_embedding.table.largest"}
EVERY = [pytest.param(case, id=case.id, marks=() if case.core else pytest.mark.conformance) for case in all_by_id().values()]


@pytest.mark.parametrize("case", every(30, EVERY))
def test_every_case_of_the_suite_is_comparable_and_zeros_do_not_pass_where_they_are_wrong(case: Case) -> None:
    """Batches of no rows are empty. Parts of gradients in half-precision dtypes may show nothing, and so may the largest number of a small
    random table; every output of a forward component is comparable.

    Cases outside the core are evaluated only in float64 and float32.
    """
    for dtype in case.dtypes if case.core else case.dtypes[:2]:
        expected = expect(case.at(dtype))
        zeros = {name: np.zeros(one.reference.shape, one.dtype) for name, one in expected.items()}
        result = _judged(expected, **zeros)
        assert result.status != "not comparable"
        assert (result.status == "empty") == (case.id in EMPTY)
        assert not result.incomparable or case.component.endswith("_vjp") or set(result.incomparable) <= OF_SMALL_TABLES


HALF_TOO = ("transformer_vjp/nn_transformer", "encoder_vjp/pre_norm_no_final_norm", "training_loss_vjp/keep")


@pytest.mark.parametrize("case", every(6, [each for each in EVERY if each.values[0].component.endswith("_vjp")]))
def test_the_reference_in_an_order_that_the_tolerance_does_not_know_passes(case: Case) -> None:
    """The tolerance of gradients is made from random orders, so another order passes; in half precision three models represent all."""
    dtypes = [dtype for dtype in case.dtypes if case.id in HALF_TOO or dtype in ("float64", "float32")]
    for dtype, seed in itertools.product(dtypes, (1001, 1002)):
        cast = case.at(dtype)
        with tolerance.order(shuffled(seed)):
            got = components.answer(cast)
        expected = near_ties.followed(cast, expect(cast), got)
        assert max(compare(expected[name], got[name]).excess for name in expected) <= 1, (dtype, seed)
        assert not any(one.note for one in expected.values()), (dtype, seed)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_part_of_a_gradient_that_is_zero_is_compared_at_the_size_of_the_gradient(dtype: str) -> None:
    """Softmax is invariant to the key bias, and with a single key also to query and key."""
    for case_id, name in (
        ("multi_head_attention_vjp/ragged", "parameters.key.bias"),
        ("scaled_dot_product_attention_vjp/one_position", "key_bsgk"),
    ):
        case = all_by_id()[case_id].at(dtype)
        expected, answer = expect(case), components.answer(case)
        zero = expected[name]
        assert zero.largest <= zero.bound < zero.whole
        assert not zero.incomparable
        assert _judged(expected, **answer | {name: np.zeros_like(answer[name])}).status == "pass"
        for share, status in ((0.9, "pass"), (1.1, "differs")):
            off = (zero.reference + share * zero.bound).astype(zero.dtype)
            assert _judged(expected, **answer | {name: off}).status == status
        assert _judged(expected, **answer | {name: np.full_like(answer[name], zero.whole)}).status == "differs"


def test_a_statistic_that_is_zero_is_compared_at_the_size_of_the_array() -> None:
    case = all_by_id()["random_dropout/weights"].at("float32")
    expected = expect(case)
    correlated = {name: one.reference.astype(one.dtype) for name, one in expected.items()}
    assert not [one for one in expected.values() if one.incomparable]
    assert _judged(expected, **correlated).status == "pass"
    assert _judged(expected, **correlated | {"correlation_0": np.float32(1.0)[...]}).status == "differs"
