"""Tests the decision LAYERSCALE (docs/decisions.md) against a manually computed number and central differences."""

import numpy as np
from numpy.testing import assert_allclose

from reference_numpy.layers import layer_scale, layer_scale_vjp

SCALE = {"scale": np.array([0.5, -2.0])}


def test_LAYERSCALE_multiplies_what_is_added_and_not_the_residual() -> None:
    assert_allclose(layer_scale(SCALE, np.array([[[3.0, 4.0]]]), np.array([[[10.0, 100.0]]])), [[[8.0, -196.0]]], rtol=1e-15)


def test_the_gradient_is_that_of_central_differences() -> None:
    x, y, g, step = np.array([[[0.3, -1.2]]]), np.array([[[0.9, 0.2]]]), np.array([[[0.7, 0.4]]]), 1e-6
    found = layer_scale_vjp(SCALE, x, y, cotangent=g)
    for index in range(2):
        moved = np.zeros(2)
        moved[index] = step
        by_x = layer_scale(SCALE, x + moved, y) - layer_scale(SCALE, x - moved, y)
        by_y = layer_scale(SCALE, x, y + moved) - layer_scale(SCALE, x, y - moved)
        up, down = ({"scale": SCALE["scale"] + sign * moved} for sign in (1, -1))
        by_scale = layer_scale(up, x, y) - layer_scale(down, x, y)
        assert_allclose(found["x_btd"][0, 0, index], (g * by_x).sum() / (2 * step), rtol=1e-7)
        assert_allclose(found["y_btd"][0, 0, index], (g * by_y).sum() / (2 * step), rtol=1e-7)
        assert_allclose(found["parameters"]["scale"][index], (g * by_scale).sum() / (2 * step), rtol=1e-7)
