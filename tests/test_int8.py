"""Projections in int8 (INT8): impl_torch against the reference's definition, and searches beside float32."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from reference_numpy import int8, parameters
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases, of_components
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.reference import int8 as expected_int8
from rosettaformer.conformance.reference.components import SEARCHES
from rosettaformer.conformance.reference.near_ties import followed
from rosettaformer.conformance.reference.orders import ORDERS, order
from rosettaformer.conformance.reference.tolerance import Answer, expect, expectation

torch = pytest.importorskip("torch")

from impl_torch import weights  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.fast import int8 as fast  # noqa: E402
from impl_torch.fast.fused import fused  # noqa: E402
from impl_torch.fast.int8 import Int8Projection  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

SEARCHED = [case for case in of_components(all_cases(), SEARCHES) if not case.excluded]


@pytest.fixture(params=["in one instruction", "in float32"])
def instruction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of multiplying, where the processor has the first."""
    if request.param == "in float32":
        monkeypatch.setattr(fast, "in_one_instruction", lambda: False)
    elif not fast.in_one_instruction():
        pytest.skip("a processor without VNNI")


def problem(rows: int, inputs: int, outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, kernel and bias, whose rows are of very different sizes, and of which no number lies near the middle of two integers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 1, inputs)) * np.exp(rng.normal(0, 2, (rows, 1, 1)))
    kernel = rng.standard_normal((inputs, outputs)) * np.exp(rng.normal(0, 2, outputs))
    x, kernel = (_away_from_ties(array, axis) for array, axis in ((x, 2), (kernel, 0)))
    if rows > 1:
        x[-1] = 0
    return x, kernel, rng.standard_normal(outputs).astype(np.float32)


def _away_from_ties(x: np.ndarray, axis: int) -> np.ndarray:
    scale = np.abs(x).max(axis=axis, keepdims=True) / 127
    integer = np.rint(x / scale)
    return ((integer + 0.8 * np.clip(x / scale - integer, -0.5, 0.5)) * scale).astype(np.float32)


def difference(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, with_bias: bool = True) -> float:
    """How far the projection is from the reference's, in units of what passes."""
    given = {"kernel": kernel} | ({"bias": bias} if with_bias else {})
    runs = []
    for replacements in ORDERS.values():
        with order(replacements):
            runs.append(int8.affine("btd,dv->btv", x, given))
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    found = expectation(int8.affine("btd,dv->btv", x.astype(np.float64), wide), runs)
    linear = torch.nn.Linear(*kernel.shape, bias=with_bias)
    linear.weight.data = torch.from_numpy(kernel.T.copy())
    if with_bias:
        linear.bias.data = torch.from_numpy(bias)
    with torch.inference_mode():
        y = Int8Projection(linear)(torch.from_numpy(x)).numpy()
    assert y.dtype == np.float32
    return float(np.abs(y - found.reference).max() / found.bound)


@pytest.mark.usefixtures("instruction")
@pytest.mark.parametrize("sizes", [(1, 12, 7), (2, 128, 128), (2, 512, 128), (8, 64, 200), (40, 33, 48)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_INT8_projection_is_the_reference_s(sizes: tuple[int, int, int], with_bias: bool) -> None:
    assert difference(*problem(*sizes), with_bias) <= 1


def _per_tensor(projection: Any, *parts: Any) -> None:
    """One scale for the whole kernel."""
    ORIGINAL(projection, *parts)
    weight = parts[0].weight.detach()
    projection.scale = (weight.abs().max() / 127).expand(len(weight)).contiguous()
    projection.kernel = (weight / projection.scale[:, None]).round()


def _transposed(projection: Any, *parts: Any) -> None:
    """The scales of the inputs in place of those of the outputs."""
    ORIGINAL(projection, *parts)
    projection.scale = parts[0].weight.detach().abs().amax(dim=0) / 127


ORIGINAL = Int8Projection.__init__


@pytest.mark.parametrize("mistake", [_per_tensor, _transposed])
def test_wrong_scales_are_seen(mistake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "in_one_instruction", lambda: False)
    assert difference(*problem(8, 64, 64)) <= 1
    monkeypatch.setattr(Int8Projection, "__init__", mistake)
    assert difference(*problem(8, 64, 64)) > 10


def test_one_scale_for_all_tokens_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "LARGEST", 100)
    assert difference(*problem(8, 64, 64)) > 10


def test_a_token_s_answer_hangs_on_no_other_row() -> None:
    x, kernel, _ = problem(4, 32, 16)
    linear = torch.nn.Linear(32, 16)
    linear.weight.data = torch.from_numpy(kernel.T.copy())
    with torch.inference_mode():
        projection = Int8Projection(linear)
        together, alone = projection(torch.from_numpy(x)), projection(torch.from_numpy(x[1:2]))
    np.testing.assert_allclose(together[1:2], alone, rtol=1e-6)


def answer_of(case: Case, compiled: bool = False) -> dict[str, np.ndarray]:
    model = Transformer(case.config).eval()
    weights.load(model, case.parameters, case.config)
    given = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in parameters.nest(case.inputs).items()
    }
    found = getattr(Searcher(model, dtype="int8", compiled=compiled), case.component)(**given)
    return {name: tensor.numpy() for name, tensor in found.items()}


def ratios(case: Case, got: dict[str, np.ndarray], ask: Answer) -> Iterator[tuple[str, Any]]:
    """Of the case: what was compared, with the tokens that nearly tie followed."""
    wanted = followed(case, expect(case, ask), got, ask)
    yield from ((name, compare(wanted[name], got[name])) for name in wanted)


@pytest.mark.parametrize("ask", [expected_int8.answer, expected_int8.beside_float], ids=["the definition", "float64"])
@pytest.mark.parametrize("case", SEARCHED, ids=lambda case: case.id)
def test_searches_are_the_reference_s(case: Case, ask: Answer) -> None:
    """Tokens where they do not nearly tie, and scores: as near to int8 in float64, and to the model itself, as the reference in int8 is."""
    case = case.at("float32")
    for name, comparison in ratios(case, answer_of(case), ask):
        assert comparison.incomparable or comparison.excess <= 1, f"{name}: {comparison.message}"


def test_compiled_is_eager() -> None:
    case = SEARCHED[0].at("float32")
    eager, graph = answer_of(case), answer_of(case, compiled=True)
    np.testing.assert_array_equal(eager["token_bn"], graph["token_bn"])
    np.testing.assert_allclose(eager["log_p_bn"], graph["log_p_bn"], atol=1e-2)


def test_what_cannot_be_int8_is_refused() -> None:
    config = SEARCHED[0].config
    with pytest.raises(ValueError, match="dtype int8 needs a CPU and torch's oneDNN; got device meta"):
        fused(Transformer(config).to("meta"), "int8")


def test_names_and_types_of_int8() -> None:
    model = Transformer(SEARCHED[0].config)
    for dtype in ("int8", torch.int8):
        kinds = {type(module) for module in fused(model, dtype).modules()}
        assert Int8Projection in kinds and not any(kind.__name__ in ("Projection", "FusedProjection") for kind in kinds)
