"""The judge's own proof: every defect of the catalogue, put into the truth, fails the cases that claim to catch it."""

from functools import cache

import numpy as np
import pytest

from rosettaformer.conformance import tolerance, truth
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.defects import Defect, all_defects, injected

REQUIRED = (  # noqa: SIM905 - a long list of short names reads better in lines
    "EMB1 PE1 PE2 PE3 PE4 PE5 PE7 PE8 PE10 PE11 ATT1 ATT2 ATT3 ATT4 ATT5 ATT6 ATT7 ATT8 ATT10 ATT12 ATT13 ATT15 ATT16 ATT17 ATT19 "
    "CAU1 CAU2 CAU3 MHA1 MHA2 MHA5 MHA6 MHA7 MHA8 MHA9 MHA11 NRM1 NRM2 NRM3 NRM4 NRM5 NRM7 NRM8 NRM9 NRM10"
).split()
RAISING = ("PE8", "PE10", "MHA9")  # defects that show as an error: an odd width, a table of another length, a reshape
DEFECTS, CASES = all_defects(), {case.id: case for case in all_cases()}
CLAIMS = [(case.id, id_) for case in CASES.values() for id_ in case.catches]


@cache
def _expected(case_id: str, dtype: str) -> tuple[Case, dict[str, tolerance.Expectation]]:
    case = CASES[case_id].at(dtype)
    return case, tolerance.expect(case)


def _excess(case_id: str, defect: Defect) -> float:
    """By how much the altered truth misses the tolerance of a case, in the dtype where that shows most; a failure is infinite."""
    excesses = []
    for dtype in defect.dtypes:
        case, expected = _expected(case_id, dtype)
        try:
            with injected(defect), np.errstate(all="ignore"):
                got = truth.answer(case)
        except ValueError:
            if defect.id not in RAISING:
                raise
            return np.inf
        excesses.append(max(compare(expected[name], got[name]).excess for name in expected))
    return max(excesses)


@pytest.mark.parametrize("id_", REQUIRED)
def test_the_catalogue_holds_the_defect_and_a_case_claims_it(id_: str) -> None:
    assert DEFECTS[id_].unobservable or any(claimed == id_ for _, claimed in CLAIMS)


@pytest.mark.parametrize(("case_id", "id_"), CLAIMS)
def test_a_case_catches_the_defects_that_it_claims(case_id: str, id_: str) -> None:
    assert _excess(case_id, DEFECTS[id_]) >= 10


@pytest.mark.parametrize("case_id", CASES)
def test_the_unaltered_truth_passes_in_every_dtype(case_id: str) -> None:
    for dtype in CASES[case_id].dtypes:
        case, expected = _expected(case_id, dtype)
        got = truth.answer(case)
        assert max(compare(expected[name], got[name]).excess for name in expected) <= 1


def test_an_injected_defect_leaves_the_truth_as_it_was() -> None:
    case = CASES["layer_norm/plain"]
    before = truth.answer(case)["output"]
    with injected(DEFECTS["NRM3"]):
        assert not np.array_equal(truth.answer(case)["output"], before)
    np.testing.assert_array_equal(truth.answer(case)["output"], before)
