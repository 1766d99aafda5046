"""The truth's penalties, truncation and drawing in numbers that can be worked by hand."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from reference_numpy import sampling


def test_penalties_by_hand() -> None:
    scores = np.array([[2.0, -2.0, 1.0, 1.0]])
    assert_array_equal(sampling.penalise(scores, np.array([[0, 1]]), 2.0), [[1.0, -4.0, 1.0, 1.0]])
    assert_array_equal(sampling.penalise(scores, np.array([[0, 1]]), 2.0, mask_bn=np.array([[False, True]])), [[2.0, -4.0, 1.0, 1.0]])
    held = np.array([[3, 0, 1, 3, 2, 3]])  # 3 was followed by 0 and by 2
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 2)), [[True, False, True, False]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 1)), [[True, True, True, True]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, np.array([[3, 0, 3, 3, 0, 3]]), 1.0, 3)), [[False, False, False, True]])
    real = np.array([[False, True, True, True, True, True]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 2, real)), [[False, False, True, False]])
    real = np.array([[True, True, True, True, True, False]])
    assert not np.isneginf(sampling.penalise(scores, held, 1.0, 2, real)).any()
    assert_array_equal(sampling.penalise(scores, held[:, :2], 1.0, 3), scores)


def test_truncation_by_hand() -> None:
    logits = np.log([[0.1, 0.4, 0.2, 0.3]])

    def kept(**options: float) -> list[int]:
        return np.flatnonzero(np.isfinite(sampling.truncate(logits, **options)[0])).tolist()

    assert kept(top_k=2) == [1, 3]
    assert kept(top_p=0.4 - 1e-9) == [1]
    assert kept(top_p=0.5) == [1, 3]  # the one that crosses one half stays
    assert kept(top_p=0.8) == [1, 2, 3]
    assert kept(top_k=3, top_p=0.7) == [1, 3]  # of the three that are left 3 / 9 + 4 / 9 cross it
    assert kept(temperature=0.5, top_p=0.5) == [1]  # squared, the first has 16 / 30
    assert_allclose(sampling.truncate(logits, temperature=2.0), logits / 2)
    ties = np.zeros((1, 4))
    assert_array_equal(np.isfinite(sampling.truncate(ties, top_k=2)), [[True, True, False, False]])


def test_drawing_by_hand() -> None:
    logits = np.log([[0.25, 0.5, 0.0, 0.25]] * 5, where=np.array([True, True, False, True]), out=np.full((5, 4), -np.inf))
    assert_array_equal(sampling.draw(logits, np.array([0.0, 0.2499, 0.25, 0.7501, 0.9999])), [0, 0, 1, 3, 3])
    assert_array_equal(sampling.draw(logits[:1, ::-1].astype(np.float32), np.array([1.0], np.float32)), [3])
