"""The decision on RMS normalisation (docs/decisions.md): a hand-worked number, and central differences."""

import numpy as np
from numpy.testing import assert_allclose

from reference_numpy.normalization import rms_norm, rms_norm_vjp

EPSILON = 1e-5
SCALE = {"scale": np.array([1.0, 2.0])}


def test_RMSNORM_divides_by_the_root_of_the_mean_square_and_epsilon() -> None:
    root = ((3**2 + 4**2) / 2 + EPSILON) ** 0.5
    assert_allclose(rms_norm(SCALE, np.array([[[3.0, 4.0]]]), EPSILON), [[[3 / root, 8 / root]]], rtol=1e-15)


def test_the_gradient_is_that_of_central_differences() -> None:
    x, g, step = np.array([[[0.3, -1.2]]]), np.array([[[0.7, 0.4]]]), 1e-6
    found = rms_norm_vjp(SCALE, x, EPSILON, cotangent=g)
    for index in range(2):
        moved = np.zeros(2)
        moved[index] = step
        by_x = (rms_norm(SCALE, x + moved, EPSILON) - rms_norm(SCALE, x - moved, EPSILON)) / (2 * step)
        assert_allclose(found["x_btd"][0, 0, index], (g * by_x).sum(), rtol=1e-7)
        up, down = ({"scale": SCALE["scale"] + sign * moved} for sign in (1, -1))
        by_scale = (rms_norm(up, x, EPSILON) - rms_norm(down, x, EPSILON)) / (2 * step)
        assert_allclose(found["parameters"]["scale"][index], (g * by_scale).sum(), rtol=1e-7)
