"""An explanation that fails is left out with a note; the comparison continues with the same verdict."""

from typing import Any
from unittest import mock

import flat
import numpy as np
import pytest
from kinds import conformance
from published_pairs import MODELS

from rosettaformer.comparison import comparing
from rosettaformer.comparison.explaining import Explaining
from rosettaformer.comparison.findings import explanations, known_parts, layer_functions, settings, training_rows
from rosettaformer.comparison.findings.layer_rows import Rows
from rosettaformer.comparison.matching import fusing, relations, variable_matching
from rosettaformer.comparison.models import behaviour

ATTENTION, FOREIGN = ("attention_torch.py:Own", "attention_torch.py:Scaled"), ("foreign_torch.py:Small", "foreign_torch.py:row")
FUSED, CLOSURES = ("attention_torch.py:Own", "attention_torch.py:Fused"), ("foreign_torch.py:Closure", "foreign_torch.py:other_closure")
KERNELS = ("kernels_torch.py:Net", "kernels_torch.py:Transposed")
INPUTS = {FOREIGN: "ids: b=3 t=7 int64 <19", CLOSURES: "x: b=4 d=5 float32"}
# the explanation -> its module, its name, and models that use it
EXPLAINERS: dict[str, tuple[Any, str, tuple[str, str]]] = {
    "known part": (known_parts, "said", ATTENTION),
    "first divergence": (explanations.Explanations, "_first", ATTENTION),
    "places": (relations, "places", ATTENTION),
    "relation": (relations, "relation", CLOSURES),
    "matrix": (layer_functions, "_matrix", KERNELS),
    "identity": (layer_functions, "unchanged", KERNELS),
    "equal values": (comparing.value_matching, "by_value", ATTENTION),
    "settings": (settings, "differing", ATTENTION),
    "around": (explanations.Explanations, "_around", ATTENTION),
    "without a partner": (explanations.Explanations, "_unmatched", ATTENTION),
    "the other's input": (Rows, "_judged", ATTENTION),
    "exchanged inputs": (Rows, "_exchanged", ATTENTION),
    "flattened inputs": (comparing._Comparison, "_found_otherwise", ATTENTION),
    "behaviour": (behaviour, "_found", FOREIGN),
    "fused weights": (fusing, "fused", FUSED),
    "padding": (training_rows, "_but_for_padding", ATTENTION),
    "other numbers": (variable_matching, "compare_values", ATTENTION),
}
QUICK = ("known part", "the other's input")


@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize("name", [name if name in QUICK else conformance(name) for name in EXPLAINERS])
def test_an_explanation_that_fails_is_left_out_and_the_verdict_stays(name: str) -> None:
    pytest.importorskip("torch")
    where, function, models = EXPLAINERS[name]
    pair, inputs = [str(MODELS / model) for model in models], [INPUTS.get(models, "x: b=2 t=7 d=12 float32")]
    weights = "own" if name in ("other numbers", "equal values", "fused weights", "behaviour") else "random"
    with mock.patch.object(where, function, side_effect=RuntimeError("planted")) as planted:
        report = comparing.compare(*pair, weights=weights, inputs=inputs, gradients=name == "padding", step=False)
    assert planted.called and "planted" in "".join(report["left_out"]) and report["sentences"]
    assert report["verdict"] == "differs" and "failed" not in report


def test_an_error_is_noted_once_with_its_type() -> None:
    explaining = Explaining()
    assert explaining("a", lambda x: x + 1, 1) == 2 and not explaining.left_out
    assert explaining("a", lambda: 1 // 0) is explaining("a", lambda: 1 // 0) is None
    assert len(explaining.left_out) == 1 and "ZeroDivisionError" in explaining.left_out[0]


# rows, length, heads, groups and head size, with various coincidences
SIZES = [(2, 8, 8, 2, 16), (3, 4, 8, 4, 16), (4, 4, 4, 4, 4), (8, 8, 8, 2, 8), (2, 6, 4, 2, 6)]


@pytest.mark.parametrize("axes", ["bhtk for q and k", conformance("bhtk"), conformance("bthk")])
@pytest.mark.parametrize(("b", "t", "h", "g", "k"), SIZES)
def test_attention_is_read_whichever_axes_have_one_size(b: int, t: int, h: int, g: int, k: int, axes: str) -> None:
    """Per-head normalized queries and keys are `b h t k`, values are `b t d`."""
    rng = np.random.default_rng(0)
    q, key, value = (rng.standard_normal((b, t, count, k)) for count in (h, g, g))
    both = [flat.scaled_dot_product_attention(q, key, value, causal=True, scale=scale) for scale in (1.0, k**-0.5)]
    turned = [array.swapaxes(1, 2) if axes != "bthk" else array for array in (q, key, value)]
    turned[2] = value.reshape(b, t, -1) if axes == "bhtk for q and k" else turned[2]
    given = dict(zip(("query", "key", "value"), turned, strict=True))
    for outputs in ([array.reshape(b, t, -1) for array in both], [array.swapaxes(1, 2) for array in both]):
        said = known_parts.said(given, {name: [name] for name in given}, outputs, [])
        assert "without a scale" in said and "sqrt(k)" in said, said


def test_shapes_that_are_no_attention_are_no_error() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        shapes = [tuple(rng.choice([1, 2, 3, 4, 6, 8], int(rng.integers(3, 5)))) for _ in range(4)]
        given = {name: rng.standard_normal(shape) for name, shape in zip(("query", "key", "value"), shapes, strict=False)}
        assert known_parts.said(given, {name: [name] for name in given}, [rng.standard_normal(shapes[3])] * 2, []) == ""
