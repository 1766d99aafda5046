"""Comparison and tolerance: what passes, what does not, and that nothing slips through."""

import numpy as np
import pytest

from rosettaformer.conformance import tolerance, truth
from rosettaformer.conformance.case import numpy_dtype
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.tolerance import Expectation, ulp


def _expectation(reference: np.ndarray, dtype: str = "float32", noise: float = 1e-6) -> Expectation:
    return Expectation(reference, numpy_dtype(dtype), noise, noise / 2, ulp(float(np.abs(reference).max()), dtype))


REFERENCE = np.linspace(-1, 1, 24).reshape(2, 3, 4)


def test_the_rounded_reference_passes_with_a_ratio_below_one() -> None:
    result = compare(_expectation(REFERENCE), REFERENCE.astype(np.float32))
    assert result.excess < 1
    assert result.ratio < 1
    assert result.message == ""


def test_the_largest_error_is_bounded_by_four_times_the_noise_and_one_ulp() -> None:
    expectation = _expectation(REFERENCE)
    assert expectation.bound == 4e-6 + 2.0**-23
    for factor, passes in ((0.9, True), (1.2, False)):
        got = REFERENCE.astype(np.float32)
        got[1, 2, 3] += np.float32(factor * expectation.bound)
        result = compare(expectation, got)
        assert (result.excess <= 1) is passes
        assert result.worst == (1, 2, 3)
        assert ("at [1, 2, 3]" in result.message) is not passes


def test_the_root_mean_square_error_is_bounded_apart() -> None:
    expectation = _expectation(REFERENCE)
    got = (REFERENCE + 0.9 * expectation.bound).astype(np.float32)
    result = compare(expectation, got)
    assert result.excess > 1
    assert "root mean square" in result.message


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (REFERENCE.astype(np.float32)[:1], "must have shape (2, 3, 4); got (1, 3, 4)"),
        (REFERENCE.astype(np.float32).transpose(0, 2, 1), "must have shape (2, 3, 4); got (2, 4, 3)"),
        (REFERENCE, "must be float32; got float64"),
        (
            np.where(REFERENCE > 0.9, np.nan, REFERENCE).astype(np.float32),
            "2 of 24 elements are NaN where the truth is not, or the reverse",
        ),
        (
            np.where(REFERENCE > 0.9, np.inf, REFERENCE).astype(np.float32),
            "2 of 24 elements are infinite where the truth is not, or the reverse",
        ),
        ([1.0], "must be an array; got list"),
    ],
)
def test_another_shape_dtype_or_nan_never_passes(got: object, message: str) -> None:
    result = compare(_expectation(REFERENCE), got)
    assert result.excess == np.inf
    assert result.message == message


def test_booleans_are_compared_exactly_and_integers_of_any_width() -> None:
    mask = np.array([[True, False]])
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), mask).excess == 0
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), ~mask).message == "2 of 2 elements differ"
    assert compare(Expectation(mask, mask.dtype, 0, 0, 0), mask.astype(np.int8)).excess == np.inf
    ids = np.array([1, 2])
    assert compare(Expectation(ids, ids.dtype, 0, 0, 0), ids.astype(np.int32)).excess == 0


@pytest.mark.parametrize("case", [case for case in all_cases() if case.component == "transformer"], ids=lambda case: case.name)
def test_noise_is_positive_and_of_the_size_of_the_dtype(case) -> None:
    previous = 0.0
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        noise = tolerance.expect(case.at(dtype))["output"].noise
        assert noise > 2 * previous
        previous = noise


@pytest.mark.parametrize("name", tolerance.ORDERS | tolerance.TF32_ORDERS)
def test_every_order_computes_the_same_function(name: str) -> None:
    order = (tolerance.ORDERS | tolerance.TF32_ORDERS)[name]
    bound = 1e-13 if name in tolerance.ORDERS else 0
    for case in all_cases():
        reference = truth.answer(case)
        with tolerance.order(order):
            got = truth.answer(case)
        for output, value in reference.items():
            if value.dtype.kind == "f" and value.size and case.id != "positional_encoding/far" and "large" not in case.name:
                finite = np.isfinite(value)
                np.testing.assert_array_equal(got[output][~finite], value[~finite])
                error = np.abs(got[output][finite] - value[finite]).max(initial=0.0)
                assert error <= bound * np.abs(value[finite]).max(initial=1.0) * 100, case.id


def test_tf32_noise_is_that_of_ten_bits() -> None:
    case = next(case for case in all_cases() if case.id == "feed_forward/relu")
    plain = tolerance.expect(case.at("float32", "cuda"))["output"].noise
    tf32 = tolerance.expect(case.at("float32", "cuda-tf32"))["output"].noise
    assert 100 * plain < tf32 < 0.05
