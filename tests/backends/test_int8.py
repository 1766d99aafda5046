"""Projections in int8 (INT8): each port against the reference's definition, and its searches against float32."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backends import PORTS, Backend
from expectations import suite
from kinds import conformance, every

from reference_numpy import int8, parameters, transformer
from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import lowered as expected_int8
from rosettaformer.judge.expectation.components import SEARCHES, answer
from rosettaformer.judge.expectation.near_ties import followed
from rosettaformer.judge.expectation.orders import ORDERS, order
from rosettaformer.judge.expectation.tolerance import Answer, expect, expectation
from rosettaformer.judge.suite import of_components

SEARCHED = [case for case in of_components(suite(), SEARCHES) if not case.excluded]
NAMES = "pre_norm gpt2_left_padding gemma olmo2 phi3_beyond encoder_and_decoder skip_padding_ragged long_text"
OF_EXPERTS = "mixtral deepseek gpt_oss qwen2_moe"
WHOLE = [case for case in of_components(suite(), ["transformer"]) if case.name in f"{NAMES} {OF_EXPERTS}".split()]
FEW = {"torch": ("sample/plain", "greedy_search/tied"), "tf": ("greedy_search/gpt2",), "jax": ()}


def problem(rows: int, inputs: int, outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns x, kernel and bias with rows of very different sizes, and no number near the middle of two integers."""
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


def projected(backend: Backend, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    kind, given = backend.part("kernels.int8").Int8Projection, backend.weights.from_numpy(x)
    if backend.name == "torch":
        torch = backend.framework
        linear = torch.nn.Linear(*kernel.shape, bias=bias is not None)
        linear.weight.data = torch.from_numpy(kernel.T.copy())
        if bias is not None:
            linear.bias.data = torch.from_numpy(bias)
        with torch.inference_mode():
            return kind(linear)(given).numpy()
    projection = backend.part("projection").Projection
    if backend.name == "tf":
        of_one = kind(projection(kernel.shape[:1], kernel.shape[1:], bias is not None), name="one")
        of_one.build()
        of_one.copy([kernel], [bias])
        return backend.weights.to_numpy(of_one(given))
    from flax import nnx

    one = projection("btd,dv->btv", dict(zip("dv", kernel.shape, strict=True)), bias is not None, rngs=nnx.Rngs(0))
    one.kernel[...] = kernel
    if bias is not None:
        one.bias[...] = bias
    return backend.weights.to_numpy(kind(one)(given))


def difference(backend: Backend, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> float:
    given = {"kernel": kernel} | ({} if bias is None else {"bias": bias})
    runs = []
    for replacements in ORDERS.values():
        with order(replacements):
            runs.append(int8.affine("btd,dv->btv", x, given))
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    found = expectation(int8.affine("btd,dv->btv", x.astype(np.float64), wide), runs)
    y = projected(backend, x, kernel, bias)
    assert y.dtype == np.float32
    return float(np.abs(y - found.reference).max() / found.bound)


@pytest.mark.parametrize("sizes", every(3, map(pytest.param, [(1, 12, 7), (2, 128, 128), (2, 512, 128), (40, 33, 48), (8, 64, 200)])))
@pytest.mark.parametrize("with_bias", [True, conformance(False)])
def test_INT8_projection_is_the_reference_s(backend: Backend, sizes: tuple[int, int, int], with_bias: bool) -> None:
    x, kernel, bias = problem(*sizes)
    assert difference(backend, x, kernel, bias if with_bias else None) <= 1


@pytest.mark.parametrize("sizes", [(1, 12, 7), (2, 512, 128), (40, 33, 48)])
def test_without_an_instruction_for_int8_torch_multiplies_the_same_integers(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend("torch")
    monkeypatch.setattr(backend.part("kernels.int8"), "in_one_instruction", lambda: False)
    assert difference(backend, *problem(*sizes)) <= 1


def _per_tensor(projection: Any, *parts: Any) -> None:
    """Uses one scale for the whole kernel."""
    weight = parts[0].weight.detach()
    projection.scale = (weight.abs().max() / 127).expand(len(weight)).contiguous()
    projection.kernel = (weight / projection.scale[:, None]).round()


def _transposed(projection: Any, *parts: Any) -> None:
    """Uses the scales of the inputs instead of those of the outputs."""
    projection.scale = parts[0].weight.detach().abs().amax(dim=0) / 127


@pytest.mark.parametrize("mistake", [_per_tensor, _transposed])
def test_wrong_scales_are_seen(mistake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend("torch")
    monkeypatch.setattr(backend.part("kernels.int8"), "in_one_instruction", lambda: False)
    kind = backend.part("kernels.int8").Int8Projection
    original = kind.__init__

    def mistaken(projection: Any, *parts: Any) -> None:
        original(projection, *parts)
        mistake(projection, *parts)

    assert difference(backend, *problem(8, 64, 64)) <= 1
    monkeypatch.setattr(kind, "__init__", mistaken)
    assert difference(backend, *problem(8, 64, 64)) > 10


def test_integers_that_are_not_the_nearest_are_seen(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    module = backend.part("kernels.int8")
    owner = {"torch": backend.framework.Tensor if backend.name == "torch" else None, "jax": getattr(module, "jnp", None)}
    monkeypatch.setattr(owner.get(backend.name, backend.framework), "round", lambda x: x)  # truncates when cast to an integer
    assert difference(backend, *problem(8, 64, 64)) > 10


def test_smaller_integers_and_tokens_of_other_rows_are_seen(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel, _ = problem(4, 32, 16)
    # The integers are equal; their scales differ by a few float32 roundings from another order, at most 1e-6.
    np.testing.assert_allclose(projected(backend, x, kernel)[1:2], projected(backend, x[1:2], kernel), rtol=1e-6)
    monkeypatch.setattr(backend.part("kernels.int8"), "LARGEST", 100)
    assert difference(backend, *problem(8, 64, 64)) > 10


def answer_of(backend: Backend, case: Case, compiled: bool = False) -> dict[str, np.ndarray]:
    given = {
        name: backend.weights.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in parameters.nest(case.inputs).items()
    }
    searcher = backend.part("decoding").Searcher(backend.loaded(case.config, case.parameters), dtype="int8", compiled=compiled)
    return backend.arrays(getattr(searcher, case.component)(**given))


def ratios(case: Case, got: dict[str, np.ndarray], ask: Answer) -> Iterator[tuple[str, Any]]:
    """Yields the comparisons of the case, following tokens and experts that nearly tie."""
    wanted = followed(case, expect(case, ask), got, ask)
    yield from ((name, compare(wanted[name], got[name])) for name in wanted)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{case.id}-{name}", marks=() if case.id in FEW[name] else pytest.mark.conformance)
        for case in SEARCHED
        for name in PORTS
    ],
)
def test_searches_are_the_reference_s(name: str, case: Case) -> None:
    """Tokens that do not nearly tie, and scores, are as near to int8 in float64 (the definition), and to the model itself in float64,
    as the reference in int8 is.
    """
    backend, case = Backend(name), case.at("float32")
    got = answer_of(backend, case, compiled=name == "jax")
    for ask in (expected_int8.answer, expected_int8.beside_float):
        for output, comparison in ratios(case, got, ask):
            assert comparison.incomparable or comparison.excess <= 1, f"{ask.__name__}, {output}: {comparison.message}"


def logits_of(backend: Backend, case: Case, dtype: Any, compiled: bool) -> dict[str, np.ndarray]:
    copy = backend.part("programs.fused").fused(backend.loaded(case.config, case.parameters), dtype)
    function = backend.part("programs.compiled").compiled(copy) if compiled else copy
    text, inputs = backend.part("values").Text, case.inputs
    given = {name: backend.weights.from_numpy(value) for name, value in inputs.items() if isinstance(value, np.ndarray)}
    source = text(given["source"], given.get("source_mask_bs")) if "source" in given else None
    logits = backend.weights.to_numpy(function(source, text(given["target"], given.get("target_mask_bt"))))
    if inputs.get("skip_padding"):
        logits = transformer.real_rows(logits, case.config, inputs["target"], inputs.get("target_mask_bt"))
    return {"output": logits}


@pytest.mark.parametrize("backend", ["torch", "tf", conformance("jax")], indirect=True)
@pytest.mark.parametrize(
    "case", [case if case.name in ("pre_norm", "gpt_oss", "qwen2_moe") else conformance(case) for case in WHOLE], ids=lambda case: case.name
)
def test_whole_passes_of_a_copy_are_the_reference_s(backend: Backend, case: Case) -> None:
    """In int8 as near to the definition, and to the model itself, as the reference in int8; otherwise within tolerance."""
    case = case.at("float32")
    for dtype, asked in {None: [None], "int8": [expected_int8.answer, expected_int8.beside_float]}.items():
        got = logits_of(backend, case, dtype, compiled=backend.name == "jax")
        for ask in asked:
            for output, comparison in ratios(case, got, ask or answer):
                assert not comparison.incomparable and comparison.excess <= 1, f"{dtype}, {output}: {comparison.message}"


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["torch", "tf"])
def test_compiled_is_eager(name: str) -> None:
    """Other tests above compile JAX's searches."""
    backend, case = Backend(name), SEARCHED[0].at("float32")
    eager, graph = answer_of(backend, case), answer_of(backend, case, compiled=True)
    np.testing.assert_array_equal(eager["token_bn"], graph["token_bn"])
    np.testing.assert_allclose(eager["log_p_bn"], graph["log_p_bn"], atol=1e-2)


@pytest.mark.conformance
def test_a_program_of_torch_multiplies_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, case = Backend("torch"), SEARCHED[0].at("float32")
    monkeypatch.setattr(backend.framework.compiler.config, "force_disable_caches", True)
    searcher = backend.part("decoding").Searcher(backend.loaded(case.config, case.parameters), dtype="int8", compiled=True)
    given = {name: backend.weights.from_numpy(value) for name, value in case.inputs.items() if isinstance(value, np.ndarray)}
    strategy = parameters.nest(case.inputs)["strategy"]
    searcher.greedy_search(**given, strategy=strategy)
    with backend.framework.profiler.profile() as seen:
        searcher.greedy_search(**given, strategy=strategy)
    assert not any("one_dnn_int8" in event.key for event in seen.key_averages())


def test_new_weights_of_a_searcher_of_tensorflow() -> None:
    backend, case = Backend("tf"), next(case for case in SEARCHED if case.id == "greedy_search/tied").at("float32")
    models = [backend.loaded(case.config, {name: scale * array for name, array in case.parameters.items()}) for scale in (1, 0.5)]
    source = backend.weights.from_numpy(case.inputs["source"])
    searchers = [backend.part("decoding").Searcher(model, "int8", compiled=False) for model in models]
    searchers[0].refresh(models[1])
    first, second = (backend.arrays(each.greedy_search(source, parameters.nest(case.inputs)["strategy"])) for each in searchers)
    np.testing.assert_array_equal(first["log_p_bn"], second["log_p_bn"])


def test_what_cannot_be_int8_is_refused(backend: Backend) -> None:
    model, fused = backend.build("transformer", SEARCHED[0].config), backend.part("programs.fused").fused
    if backend.name == "torch":
        with pytest.raises(ValueError, match="dtype int8 needs a CPU and torch's oneDNN; got device meta"):
            fused(model.to("meta"), "int8")
    else:
        with pytest.raises(ValueError, match=r"dtype.*int8; got int16"):
            fused(model, "int16")


@pytest.mark.parametrize(("tied", "mixed"), [(True, True), conformance(True, False), conformance(False, False)])
def test_every_kernel_is_int8_and_all_else_float32(backend: Backend, tied: bool, mixed: bool) -> None:
    """The kernels of routers are float32 too."""
    config = next(case.config for case in SEARCHED if case.config.tie_logits is tied and case.config.encoder_layers)
    if mixed:
        config = config.replace(experts=4, experts_per_token=2, expert_width=5, shared_width=6)
    with backend.wide():
        model = backend.build("transformer", config, "float64")
        for dtype in ("int8", backend.dtype("int8")):
            copy = backend.part("programs.fused").fused(model, dtype)
            if backend.name == "torch":
                kinds = {type(module).__name__ for module in copy.modules()}
                assert "Int8Projection" in kinds and not kinds & {"Projection", "Projections", "FusedProjection"}
                continue
            found = {name: str(x.dtype) for name, x in _variables(backend, copy).items()}
            assert set(found.values()) == {"float32", "int8"}
            assert all(("kernel" in name and "router" not in name) is (dtype == "int8") for name, dtype in found.items())


def _variables(backend: Backend, model: Any) -> dict[str, Any]:
    if backend.name == "tf":
        return {variable.path: variable for variable in model.variables if "seed" not in variable.path}
    from flax import nnx

    return {"/".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}
