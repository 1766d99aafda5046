"""Gradients, mappings and statistics as outputs: their cases and how the judge compares them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from expectations import all_by_id, expect
from invoke import invoke
from messages import mentions

from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, statistics
from rosettaformer.judge.result import judge
from rosettaformer.judge.suite import all_cases, of_components
from rosettaformer.judge.suite.gradients import WITHOUT, gradient

CASES = all_by_id()
PORT = """
from reference_numpy.parameters import nest
from rosettaformer.judge.expectation.components import answer
from rosettaformer.ports import CLASSIC

config, dtypes = CLASSIC, ("float64",)
softmax_vjp = cross_entropy = answer

def layer_norm_vjp(case):
    return nest(answer(case))
"""
ROW = {"case": "c", "component": "layer_norm_vjp", "port": "p", "dtype": "float64", "device": "cpu", "mode": ""}


def test_every_forward_case_that_has_something_differentiable_has_a_gradient_case() -> None:
    forward = [case for case in CASES.values() if not components.forward_of(case.component)]
    assert [case for case in all_cases() if components.forward_of(case.component)] == []
    for case in forward:
        if case.component not in components.DIFFERENTIABLE or case.id in WITHOUT:
            continue
        twin = case.id.endswith("_weights") and "return_weights" in case.inputs and case.id.removesuffix("_weights") in CASES
        name = case.name.removesuffix("_weights") if twin else case.name
        own = CASES[f"{case.component}_vjp/{name}"]
        wanted = {key: value for key, value in CASES[f"{case.component}/{name}"].inputs.items() if key != "return_weights"}
        assert set(own.inputs) == {*wanted, "cotangent"}
        assert all(own.inputs[key] is value for key, value in wanted.items())
        assert (own.release, own.core, own.dtypes) == (case.release, CASES[f"{case.component}/{name}"].core, case.dtypes)
    rows = list(components.COMPONENTS)
    assert all(rows[rows.index(f"{name}_vjp") - 1] == name for name in components.DIFFERENTIABLE)


@pytest.mark.parametrize("case_id", ["layer_norm_vjp/plain", "transformer_vjp/soft_rows", "scaled_dot_product_attention_vjp/bias"])
def test_a_gradient_is_asked_of_every_floating_argument(case_id: str) -> None:
    case = CASES[case_id].at("float32")
    got = components.answer(case)
    floating = {name for name, value in case.inputs.items() if isinstance(value, np.ndarray) and value.dtype == np.float32}
    assert set(got) == (floating - {"cotangent"}) | {f"parameters.{name}" for name in case.parameters}
    for name, value in got.items():
        origin = case.parameters[name.removeprefix("parameters.")] if name.startswith("parameters.") else case.inputs[name]
        assert (value.shape, value.dtype) == (origin.shape, origin.dtype)


def test_one_number_is_compared_by_its_error_alone_and_no_output_has_no_gradient() -> None:
    fixed = {case.component for case in all_cases({"decoder_layers": 0}, grad=True) if not case.excluded}
    assert "transformer_vjp" not in fixed
    assert {"encoder_vjp", "classify_vjp"} <= fixed
    expected = expect(CASES["cross_entropy/many_tokens"].at("float32"))["output"]
    assert expected.reference.shape == ()
    assert expected.bound_rmse == expected.bound
    assert compare(expected, np.asarray(expected.reference + 0.9 * expected.bound, np.float32)).excess <= 1
    assert compare(expected, np.asarray(expected.reference + 1.2 * expected.bound, np.float32)).excess > 1


@pytest.mark.product
def test_functions_that_give_gradients_conform_and_check_exits_by_them(tmp_path: Path) -> None:
    port = tmp_path / "gradients.py"
    port.write_text(PORT)
    asked = "layer_norm_vjp,softmax_vjp,cross_entropy"
    result = invoke("check", port, "--component", asked, "--dtype", "float64,float32", "--json", "-")
    assert result.code == 0, result
    rows = json.loads(result.out)["results"]
    wanted = {case.id for case in CASES.values() if case.component in asked.split(",")}
    assert {row["case"] for row in rows} == wanted
    covered = [row for row in rows if "fixes" not in row["message"]]
    assert {row["status"] for row in covered if row["dtype"] == "float64"} <= {"pass", "empty"}
    assert {row["status"] for row in covered if row["dtype"] == "float32"} == {"not covered"}


def test_what_a_mapping_lacks_is_named() -> None:
    case = CASES["encoder_layer_vjp/post"].at("float64")
    expected, answer = expect(case), components.answer(case)
    assert judge(ROW, "outputs", answer, expected).status == "pass"
    wrong = answer | {"parameters.feed_forward.hidden.bias": answer["parameters.feed_forward.hidden.bias"] * 1.01}
    result = judge(ROW, "outputs", wrong, expected)
    assert (result.status, result.output) == ("differs", "parameters.feed_forward.hidden.bias")
    assert result.message.startswith("parameters.feed_forward.hidden.bias: error ")
    assert np.shape(result.heat) == (1, case.config.feed_forward_width)
    renamed = {name.replace("x_btd", "x"): value for name, value in answer.items()}
    assert mentions(judge(ROW, "outputs", renamed, expected).message, f"{len(answer)} outputs … x_btd … x")


def test_names_with_dots_are_nested_and_an_inner_case_has_its_own_generator() -> None:
    case = CASES["encoder/keep"]
    sites = [name for name in case.inputs if name.startswith("keep.")]
    assert "keep.layers.1.self_attention.weights_dropout" in sites
    without = dataclasses.replace(case, inputs={name: value for name, value in case.inputs.items() if name not in sites})
    for site in sites:
        dropped = dataclasses.replace(case, inputs=dict(without.inputs) | {site: case.inputs[site]})
        assert not np.array_equal(components.answer(dropped)["output"], components.answer(without)["output"]), site
    first, again = (gradient(CASES["layer_norm/plain"]) for _ in range(2))
    np.testing.assert_array_equal(first.inputs["cotangent"], again.inputs["cotangent"])
    assert not np.array_equal(first.inputs["cotangent"], CASES["layer_norm_vjp/large_mean"].inputs["cotangent"])


@pytest.mark.parametrize("case_id", [case_id for case_id in CASES if case_id.partition("/")[0] in statistics.RANDOM])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_other_seeds_give_the_same_statistics(case_id: str, dtype: str) -> None:
    case = CASES[case_id].at(dtype)
    expected = expect(case)
    for seed in range(2000, 2010):
        got = components.answer(dataclasses.replace(case, inputs=dict(case.inputs) | {"seed": seed}))
        assert max(compare(expected[name], got[name]).excess for name in expected) <= 1


def _initialised(change: object) -> float:
    case = CASES["initialise/nn_transformer"].at("float64")
    expected = expect(case)
    values = change(components.module_of("parameters").initialise(case.config, 5))  # type: ignore[operator]
    got = statistics.measured(case.component, case.inputs, values)
    return max(compare(expected[name], got[name]).excess for name in expected)


def test_statistics_see_a_constant_a_shape_a_scale_a_mean_a_rate_and_a_mask_that_is_shared() -> None:
    kernel = "encoder.layers.0.feed_forward.hidden.kernel"
    assert _initialised(lambda values: values) <= 1
    assert _initialised(lambda values: values | {kernel: 1.2 * values[kernel]}) > 10
    assert _initialised(lambda values: values | {kernel: values[kernel] + 0.05}) > 1
    assert _initialised(lambda values: values | {kernel: values[kernel].T}) == np.inf
    assert _initialised(lambda values: values | {"encoder.final_norm.scale": values["encoder.final_norm.scale"] + 1e-9}) > 10
    case = CASES["random_dropout/weights"].at("float64")
    expected = expect(case)
    x, keep = case.inputs["x"], statistics.keep_mask(case.inputs["x"].shape, 3, 0.3)

    def excess(output: np.ndarray) -> float:
        got = statistics.measured(case.component, case.inputs, {"output": output})
        return max(compare(expected[name], got[name]).excess if name in got else np.inf for name in expected)

    assert excess(np.where(keep, x / 0.7, 0)) <= 1
    assert excess(np.where(keep, x, 0)) > 10
    assert excess(np.where(statistics.keep_mask(x.shape, 3, 0.35), x / 0.7, 0)) > 1
    for axis in range(4):
        shared = np.broadcast_to(np.take(keep, [0], axis), x.shape)
        assert excess(np.where(shared, x / 0.7, 0)) > 10
    assert excess(x[:1]) == np.inf


def test_gradients_are_put_where_they_are_asked_for() -> None:
    cases = list(CASES.values())

    def chosen(*names: str, grad: bool = False) -> set[str]:
        return {case.component for case in of_components(cases, names, grad)}

    assert chosen() == {name for name in components.COMPONENTS if not name.endswith("_vjp")}
    assert chosen(grad=True) == set(components.COMPONENTS)
    assert chosen("layer_norm") == {"layer_norm"}
    assert chosen("layer_norm", grad=True) == {"layer_norm", "layer_norm_vjp"}
    assert chosen("layer_norm_vjp", "softmax") == {"layer_norm_vjp", "softmax"}
