"""Our ports on meshes, each on its framework's own engine: every component, model, loss and gradient, and ten steps, as on one device."""

from typing import Any

import pytest
from expectations import store
from kinds import conformance

from reference_numpy.sharding import Mesh
from rosettaformer.conformance import runner
from rosettaformer.conformance.cases.meshes import mesh_cases
from rosettaformer.conformance.result import Result
from rosettaformer.conformance.status import Status

MESHES = {
    "torch": ("data=2", "model=2", "data=2,replicate", "data=2,model=2", "model=4"),
    "jax": ("data=2,model=4", "data=4,model=2", "data=8", "model=8"),
    "tf": ("data=2,replicate",),
}
QUICK = {"torch": "data=2,model=2", "jax": "data=2,model=4", "tf": "data=2,replicate"}
# a model with a loss, a gradient and steps, of which nothing is small, and a table that is called by the name of its input
SOME = (
    "multi_head_attention_vjp/sharded_grouped",
    "training_loss_vjp/sharded_llama",
    "training_loss/sharded_paper_keep",
    "segment_embedding_vjp/sharded_table",
)


def _wrong(results: list[Result]) -> list[Any]:
    return [(row.case, row.dtype, row.status, row.message) for row in results if row.status not in (Status.PASS, Status.NOT_COVERED)]


@pytest.mark.conformance
@pytest.mark.parametrize("port", MESHES)
def test_a_port_on_a_mesh_equals_the_reference(port: str) -> None:
    cases = [case for case in mesh_cases([Mesh.parse(QUICK[port])]) if case.id in SOME]
    results = runner.run(cases, [port], ["float64"], quick_compile=True, store=store())
    assert not _wrong(results) and any(row.status == Status.PASS for row in results)


@pytest.mark.parametrize(("port", "mesh"), [conformance(port, mesh) for port, meshes in MESHES.items() for mesh in meshes])
def test_every_case_of_a_port_on_a_mesh_equals_the_reference(port: str, mesh: str) -> None:
    results = runner.run(mesh_cases([Mesh.parse(mesh)]), [port], ["float64", "float32"], quick_compile=True, store=store())
    assert not _wrong(results)
    passed = {row.case for row in results if row.status == Status.PASS}
    assert {case.id for case in mesh_cases([Mesh()]) if case.component in ("training_steps", "training_loss_vjp", "transformer")} <= passed
