"""Loss, schedule, clipping and Adam with numbers that can be checked manually; the recipe."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from messages import mentions
from numpy.testing import assert_allclose, assert_array_equal

from reference_numpy import loss, optimizer
from reference_numpy.recipe import PAPER, Recipe

LOGITS = np.log(np.array([[[1.0, 2, 1], [1, 1, 2]]]))  # probabilities 1/4 1/2 1/4 and 1/4 1/4 1/2
LABEL = np.array([[1, 0]])
LN2 = math.log(2)


def test_teacher_forcing_and_cross_entropy_by_hand() -> None:
    inputs, labels = loss.teacher_forcing(np.array([[1, 5, 7, 2], [1, 6, 2, 0]]))
    assert_array_equal(inputs, [[1, 5, 7], [1, 6, 2]])
    assert_array_equal(labels, [[5, 7, 2], [6, 2, 0]])
    assert_allclose(loss.cross_entropy(LOGITS, LABEL), (LN2 + 2 * LN2) / 2, rtol=1e-15)  # -log 1/2 and -log 1/4
    gradient = loss.cross_entropy_vjp(LOGITS, LABEL, cotangent=np.array(4.0))["logits_btv"]
    assert_allclose(gradient[0], 2 * np.array([[1 / 4, -1 / 2, 1 / 4], [-3 / 4, 1 / 4, 1 / 2]]), rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_labels_of_every_integer_dtype(dtype: Any) -> None:
    assert loss.cross_entropy(LOGITS, LABEL.astype(dtype)) == loss.cross_entropy(LOGITS, LABEL)


@pytest.mark.parametrize(("limit", "factor"), [(6.5, 0.5), (13.0, 1.0), (26.0, 1.0), (1e-3, 1e-3 / 13)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_clip_by_hand(limit: float, factor: float, dtype: Any) -> None:
    """The norm over both tensors is sqrt(3^2 + 4^2 + 12^2) = 13."""
    clipped = optimizer.clip_global_norm({"a": {"kernel": np.array([[3], [4]], dtype)}, "b": {"bias": np.array([-12], dtype)}}, limit)
    assert_array_equal(clipped["a"]["kernel"], np.array([[3], [4]], dtype) * dtype(factor))
    assert_array_equal(clipped["b"]["bias"], np.array([-12], dtype) * dtype(factor))
    assert clipped["a"]["kernel"].dtype == dtype
    assert_array_equal(optimizer.clip_global_norm({"kernel": np.zeros(3, dtype)}, limit)["kernel"], np.zeros(3))


def test_the_recipe_of_the_paper_goes_through_json_and_names_every_problem() -> None:
    assert dataclasses.astuple(PAPER) == (0.1, 4000, 0.9, 0.98, 1e-9, 0.0, None, 1, 0.0, 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAPER.smoothing = 0.2  # type: ignore[misc]
    recipe = PAPER.replace(clip_norm=1.5, microbatches=4)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe != PAPER
    with pytest.raises(ValueError, match=r"1; got 0.*0; got 0$"):
        PAPER.replace(warmup=0, epsilon=0)
    with pytest.raises(ValueError, match=r"^unknown recipe field 'beta1' \(nearest: beta_1\); unknown recipe field 'xyz'$"):
        PAPER.replace(beta1=0.9, xyz=1)
    fields = PAPER.to_dict()
    del fields["warmup"], fields["clip_norm"]
    with pytest.raises(ValueError, match=r"clip_norm$"):
        Recipe.from_dict(fields)


BAD_FIELDS = {
    "smoothing": ((1.0, -0.1, "a", True, None, math.nan), "at least 0 and less than 1"),
    "warmup": ((0, 1.5, True, "4"), "least 1"),
    "beta_1": ((1, -0.1, None), "at least 0 and less than 1"),
    "beta_2": ((1.0, math.inf), "at least 0 and less than 1"),
    "epsilon": ((0, -1e-9, math.inf), "greater than 0"),
    "weight_decay": ((-0.1, math.nan), "at least 0"),
    "router_aux_weight": ((-0.1, math.inf), "at least 0"),
    "router_z_weight": ((-1, None), "at least 0"),
    "clip_norm": ((0, -1.0, "1", math.inf), "greater than 0, or None"),
    "microbatches": ((0, 2.0, None), "least 1"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_recipe_refuses_what_is_out_of_range(name: str) -> None:
    values, wanted = BAD_FIELDS[name]
    for value in values:
        with pytest.raises(ValueError) as caught:
            PAPER.replace(**{name: value})
        assert mentions(str(caught.value), f"{name} … {wanted} … {value!r}")
