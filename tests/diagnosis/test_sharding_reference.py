"""The reference on a mesh: devices that exchange the required data compute the same as one device."""

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from reference_numpy.sharding import Mesh
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue.sharded import all_faults
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.mesh import OPERATIONS, Operations, answer, devices
from rosettaformer.judge.suite import all_cases
from rosettaformer.judge.suite.meshes import mesh_cases

FIRST = (
    "transformer_vjp/sharded_qwen3", "transformer/sharded_olmo2", "decoder_layer_vjp/sharded_crossed",
    "training_loss_vjp/sharded_paper_keep", "multi_head_attention_vjp/sharded_norm_width",
)  # fmt: skip


def _differ(case: Case, whole: Collection[str] = ()) -> list[str]:
    """Returns the devices' outputs that differ from those of a single device by more than rounding of the largest number."""
    found, right = answer(case, whole=whole), components.answer(case)
    assert found.keys() == right.keys()
    largest = max(float(np.abs(value).max(initial=0)) for value in right.values())
    return [name for name, value in right.items() if not np.allclose(found[name], value, rtol=0, atol=1e-11 * largest)]


@pytest.mark.parametrize("id_", FIRST)
def test_devices_compute_what_one_computes(id_: str) -> None:
    (case,) = (case.at("float64") for case in mesh_cases([Mesh(data=2, model=4)]) if case.id == id_)
    assert _differ(case) == []


@pytest.mark.parametrize("id_", ["mixture_of_experts_vjp/softmax", "mixture_of_experts_vjp/limited", "transformer/gpt_oss"])
def test_devices_hold_some_of_the_experts_each(id_: str) -> None:
    (case,) = (case.at("float64") for case in all_cases(grad=True) if case.id == id_)
    assert _differ(dataclasses.replace(case, mesh=Mesh(data=2, model=2))) == []


@pytest.mark.conformance
@pytest.mark.parametrize("mesh", ["data=2,model=4", "data=2,model=2", "data=7", "model=8"])
def test_devices_compute_what_one_computes_in_every_case(mesh: str) -> None:
    cases = [case.at("float64") for case in mesh_cases([Mesh.parse(mesh)])]
    assert {case.id: names for case in cases if (names := _differ(case))} == {}


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("whole", "id_"),
    [
        (("embeddings",), "transformer_vjp/sharded_olmo2"),
        (("embeddings", "logits"), "training_loss_vjp/sharded_untied"),
        (("embeddings", "logits"), "training_steps/sharded_bert_keep"),
    ],
)
def test_devices_may_have_whole_tables(whole: tuple[str, ...], id_: str) -> None:
    (case,) = (case.at("float64") for case in mesh_cases([Mesh(data=2, model=2)]) if case.id == id_)
    assert _differ(case, whole) == []


def test_what_a_device_raises_ends_all() -> None:
    (case,) = (case.at("float64") for case in mesh_cases([Mesh(data=2, model=2)]) if case.id == "transformer/sharded_llama")
    with pytest.raises(ValueError, match="ids"):
        answer(dataclasses.replace(case, inputs={**case.inputs, "target": case.inputs["target"] + 100}))

    def fails_on_one(device: devices.Device, *given: Any) -> Any:
        if (device.row, device.column) == (1, 0):
            raise ValueError("one of them")
        return OPERATIONS.output(device, *given)

    with pytest.raises(ValueError, match="one of them"):
        answer(case, Operations(**vars(OPERATIONS) | {"output": fails_on_one}))


def test_a_case_must_have_a_mesh() -> None:
    (case,) = (case for case in mesh_cases([Mesh(data=2)]) if case.id == "transformer/sharded_llama")
    with pytest.raises(ValueError, match="mesh"):
        answer(dataclasses.replace(case, mesh=None))


@pytest.mark.parametrize("id_", ["transformer_vjp/sharded_llama", "training_steps/sharded_llama"])
def test_a_mesh_that_does_not_divide_the_model_is_refused(id_: str) -> None:
    (case,) = (case.at("float64") for case in mesh_cases([Mesh(data=2)]) if case.id == id_)
    with pytest.raises(ValueError, match="model=5"):
        answer(dataclasses.replace(case, mesh=Mesh(model=5)))


def test_devices_exchange_values_along_the_axes_of_their_mesh() -> None:
    mesh = Mesh(data=2, model=3)
    found = devices.run(mesh, {}, lambda device: (device.sum("model", device.column), device.all("data", device.row * 10 + device.column)))
    assert [total for total, _ in found] == [3] * 6
    assert [column for _, column in found] == [[0, 10], [1, 11], [2, 12]] * 2
    joined = devices.run(mesh, {}, lambda device: device.gather("model", np.array([device.column]), 0).tolist())
    assert joined == [[0, 1, 2]] * 6


def test_every_operation_is_another_one_in_some_fault() -> None:
    replaced = {name for fault in all_faults().values() for one in fault.hypotheses for name in one.replaces}
    assert replaced == vars(OPERATIONS).keys()


@pytest.mark.conformance
def test_a_fault_on_the_smallest_mesh_is_that_on_the_whole() -> None:
    (case,) = (case.at("float64") for case in mesh_cases([Mesh(data=2, model=4)]) if case.id == "transformer_vjp/sharded_qwen3")
    fault = all_faults()["SHD1"]
    whole, small = (answer(dataclasses.replace(case, mesh=mesh), fault.operations) for mesh in (case.mesh, fault.on(case.mesh)))  # type: ignore[arg-type]
    assert all(np.allclose(whole[name], small[name], rtol=1e-9, atol=1e-9) for name in whole)
