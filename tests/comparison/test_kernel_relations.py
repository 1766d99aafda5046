"""Differences named by their numbers: kernels, functions of a layer's input, missing parts, and experts."""

from typing import Any

import numpy as np
import pytest
from kinds import conformance
from published_pairs import MODELS

from reference_numpy import softmax
from reference_numpy.config import ACTIVATIONS
from reference_numpy.feed_forward import activation
from rosettaformer.comparison import comparing
from rosettaformer.comparison.engine import sides
from rosettaformer.comparison.findings import known_parts
from rosettaformer.comparison.matching import relations

X = "x: b=2 t=7 d=12 float32"


def compared(left: str, right: str, declared: str = X, weights: str = "random", **settings: Any) -> dict[str, Any]:
    pytest.importorskip("torch")
    pair = [sides.parse(f"{MODELS / left}", {}), sides.parse(f"{MODELS / right}", settings)]
    report = comparing.between(pair, comparing.Options([declared], weights=weights, gradients=False, step=False))
    assert not report["left_out"]
    return report


RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((12, 12))
COLUMNS = RNG.permutation(12)
RELATED = {
    "transposed": KERNEL.T,
    "reversed": KERNEL[::-1],
    "multiple": -3 * KERNEL,
    "offset": KERNEL + RNG.standard_normal(12),
    "reordered": KERNEL[:, COLUMNS],
    "multiples": KERNEL * RNG.standard_normal(12),
    "low rank": KERNEL + np.outer(RNG.standard_normal(12), RNG.standard_normal(12)),
    "": RNG.standard_normal((12, 12)),
}


@pytest.mark.parametrize("name", RELATED)
def test_the_plainest_relation_of_two_kernels_is_named(name: str) -> None:
    rounded = RELATED[name] * (1 + 1e-6 * RNG.standard_normal((12, 12)))
    assert relations.relation(KERNEL, rounded, relations.KERNEL).id == name
    assert relations.relation(KERNEL[COLUMNS], rounded[COLUMNS], relations.KERNEL).id in (name, "reordered") or name == "transposed"


def test_activations_are_related_by_positions_and_features_not_by_rank() -> None:
    array = RNG.standard_normal((3, 5, 8))
    related = {"table": array + RNG.standard_normal((5, 8)), "multiples": array * RNG.standard_normal((3, 5, 1)),
               "reordered": array[..., ::-1], "": array + RNG.standard_normal((3, 5, 1)) * RNG.standard_normal(8)}  # fmt: skip
    assert {relations.relation(array, other).id: None for other in related.values()} == dict.fromkeys(related)
    assert not relations.relation(array, 0 * array) and not relations.relation(0 * array, array)


@pytest.mark.parametrize(("order", "said"), [
    (np.arange(12).reshape(3, 4)[::-1], "blocks of 4"), (np.arange(12).reshape(3, 4).T, "(3 4)"),
    (np.arange(12).reshape(3, 4)[:, [0, 2, 1, 3]], "every block of 4"), (np.array([3, 1, 0, 2]), ""),
])  # fmt: skip
def test_an_order_of_heads_is_told_from_an_order_of_axes(order: np.ndarray, said: str) -> None:
    assert said in relations._pattern(order.ravel()) and bool(said) == bool(relations._pattern(order.ravel()))


FUNCTIONS: dict[str, Any] = {
    **{name: lambda x, name=name: activation(x, name) for name in ACTIVATIONS},
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "unchanged": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_elementwise_function_is_named_by_its_numbers(name: str) -> None:
    x, gate = RNG.standard_normal((2, 4, 5, 16)).astype(np.float32)
    other = activation(x, "silu" if name != "silu" else "relu")
    assert name in known_parts.elementwise({"up": x}, [FUNCTIONS[name](x), other])
    assert name in known_parts.elementwise({"gate": gate, "up": x}, [gate * FUNCTIONS[name](x), gate * other])
    assert known_parts.elementwise({"up": x}, [np.exp(x), np.cos(x)]) == ""


@pytest.mark.parametrize("swapped", [False, True])
def test_experts_weighted_by_the_softmax_over_the_chosen_ones_are_told_by_the_sums(swapped: bool) -> None:
    logits, outputs = RNG.standard_normal((10, 6)).astype(np.float32), RNG.standard_normal((10, 8))
    total = -np.sort(-softmax.softmax(logits))[:, :3].sum(-1, keepdims=True)
    pair = (outputs * total, outputs)[:: -1 if swapped else 1]
    said = known_parts.routed([RNG.standard_normal((10, 8)), logits], *pair)
    assert said.startswith(f"the {'right' if swapped else 'left'} weights 3 experts")
    assert known_parts.routed([logits], pair[0], 2 * pair[1]) == ""


STORED = {"transposed": "transposed", "heads": "reordered", "low rank": "low rank", "exchanged": ""}
APPLIED = {"transposed": "transposed", "heads": "reordered", "low rank": "low rank", "another": "another kernel", "query": "identity",
           "norm": "identity", "up": "multiple"}  # fmt: skip
KERNELS = [(name, True, found) for name, found in STORED.items()] + [(name, False, found) for name, found in APPLIED.items()]
QUICK = (("transposed", True), ("transposed", False), ("norm", False))


@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize(("planted", "stored", "found"), [row if row[:2] in QUICK else conformance(row) for row in KERNELS])
def test_a_kernel_that_is_stored_or_applied_otherwise_is_related(planted: str, stored: bool, found: str) -> None:
    weights = "own" if stored else "random"
    report = compared("kernels_torch.py:Net", "kernels_torch.py:Net", weights=weights, planted=planted, stored=stored)
    first = report["first"]
    assert (report["verdict"], first["left"], first["relation"]) == ("differs", planted if planted in ("norm", "up") else "query", found)
    related = {row["left"]: row["relation"]["id"] for row in report["variables"] if "relation" in row}
    assert related == ({"query.weight": found} if stored and found else {})
    assert first["settings"] == [] if not stored else len(first["settings"]) == 1


PLACES = dict.fromkeys(("gelu_tanh", "relu^2", "unchanged"), ("up", "down")) | {
    "residual": ("down", "last"),
    "last": ("down", ""),
}


@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize("planted", [name if name == "relu^2" else conformance(name) for name in PLACES])
def test_another_activation_and_a_part_that_is_left_out_are_named(planted: str) -> None:
    report = compared("kernels_torch.py:Net", "kernels_torch.py:Net", planted=planted)
    first = report["first"]
    assert (report["verdict"], (first["after"][0], first["before"][0])) == ("differs", PLACES[planted])
    assert first["relation"] == "functions" or planted == "last"


@pytest.mark.usefixtures("sides_in_process")
def test_experts_chosen_before_the_softmax_are_told_from_experts_chosen_after_it() -> None:
    experts = "kernels_torch.py:Experts"
    assert compared(experts, experts, weights="own")["verdict"] == "equal"
    report = compared(experts, experts, weights="own", planted="chosen first")
    assert (report["verdict"], report["first"]["before"][0], report["first"]["relation"]) == ("differs", "last", "experts")


@pytest.mark.conformance
@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize("wrong", [False, True])
def test_kernels_reshaped_without_a_transposition_are_called_transposed(wrong: bool) -> None:
    pytest.importorskip("flax")
    report = compared("attention_torch.py:seeded", "reshaped_nnx.py:Attention", weights="own", wrong=wrong)
    assert report["verdict"] in (("differs",) if wrong else ("equal", "rounding"))
    assert not wrong or (report["first"]["left"], report["first"]["relation"]) == ("q_proj", "transposed")
