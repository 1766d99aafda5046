"""The plan beside what Trainers send and hold: torch's trace, XLA's compiled programs, and the page that has all of them."""

import json

import pytest
import scaling
from invoke import succeeded
from measured_steps import Measured, kept, measure

from reference_numpy import preset
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from rosettaformer.scaling import memory, traffic
from rosettaformer.scaling.step import Step

DATA = json.loads(scaling.DATA_FILE.read_text())
SEQUENCES, LLAMA = scaling.SMALL.values()
CLASSES = preset("bert_base", **scaling.SIZES, encoder_layers=2, max_positions=16, classes=3, masked_language_head=False)


def step(backend: str, model: str, mesh: str, *, recompute: bool = False, microbatches: int = 1) -> Step:
    config = {"sequences": SEQUENCES, "llama": LLAMA, "one group": LLAMA.replace(key_value_heads=1), "classes": CLASSES}[model]
    return Step(config=config, mesh=Mesh.parse(mesh), rows=8, source=8, target=12, dtype="float32", recompute=recompute, backend=backend,
                recipe=PAPER.replace(clip_norm=1.0, microbatches=microbatches))  # fmt: skip


def assert_planned(step: Step, found: Measured) -> None:
    """Within 5 % as a whole, and nothing is gathered but what is planned; parameters and moments are those of the first device."""
    planned = scaling.sent(step)
    assert {kind for kind, _ in found.sent} <= {kind for kind, _ in planned} | {traffic.REDUCE}
    assert scaling.gathered(found.sent) == scaling.gathered(planned)
    assert abs(scaling.added(found.sent) - scaling.added(planned)) <= 0.05 * scaling.added(planned)
    held = memory.memory(step)
    assert found.held == {what: held[what] for what in ("parameters", "moments")}


def test_what_was_measured_is_what_is_planned_on_1_2_4_and_8_devices_and_the_page_says_so() -> None:
    steps, found = [*scaling.steps()], scaling.measured(DATA)
    assert [scaling.label(*each) for each in steps] == [*found]
    for name, each in steps:
        assert_planned(each, found[scaling.label(name, each)])
    assert {(each.backend, each.mesh.devices) for _, each in steps} == {(name, n) for name in ("torch", "jax") for n in (1, 2, 4, 8)}
    assert scaling.PAGE.read_text() == scaling.page(DATA), "make scaling"


GROUPS = {
    "torch, 2 devices": [("torch", "sequences", "data=2", {}), ("torch", "llama", "model=2", {"recompute": True}),
                         ("torch", "classes", "model=2", {}), ("torch", "llama", "data=2,replicate", {"microbatches": 2})],
    "torch, 4 devices": [("torch", "one group", "data=2,model=2", {"microbatches": 2})],
    "jax, 2 devices": [("jax", "one group", "model=2", {}), ("jax", "llama", "data=2", {"microbatches": 2})],
    "jax, 8 devices": [("jax", "llama", "data=2,model=4", {"recompute": True})],
}  # fmt: skip


@pytest.mark.conformance
@pytest.mark.parametrize("group", GROUPS)
def test_trainers_send_and_hold_what_is_planned(group: str) -> None:
    pytest.importorskip(group.partition(",")[0])
    steps = [step(backend, model, mesh, **more) for backend, model, mesh, more in GROUPS[group]]
    for each, found in zip(steps, measure(steps), strict=True):
        assert_planned(each, found)


@pytest.mark.conformance
@pytest.mark.parametrize("name", scaling.SMALL)
def test_eager_torch_keeps_the_planned_activations_and_less_than_a_quarter_beside_them(name: str) -> None:
    pytest.importorskip("torch")
    one = next(step for model, step in scaling.steps() if model == name and step.mesh.devices == 1)
    found = kept(one) / memory.activations(one)
    assert 1 <= found < 1.25
    assert found == pytest.approx(DATA["kept"][name])


def test_the_command_of_the_page_runs() -> None:
    (line,) = [line for line in scaling.PAGE.read_text().splitlines() if "--preset llama31_8b" in line]
    found = succeeded("plan", *line.split("`")[-2].split()).out
    assert "fully sharded" in found and "data=64" in found
