"""The plan against what Trainers send and store: torch's trace, XLA's compiled programs. `make evidence STEP=scaling` tests all."""

import pytest
import scaling
from measured_steps import kept, measure

from reference_numpy import preset
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from rosettaformer.use.scaling import memory
from rosettaformer.use.scaling.step import Step

SEQUENCES, LLAMA = scaling.SMALL.values()
CLASSES = preset("bert_base", **scaling.SIZES, encoder_layers=2, max_positions=16, classes=3, masked_language_head=False)


def step(backend: str, model: str, mesh: str, *, recompute: bool = False, microbatches: int = 1) -> Step:
    config = {"sequences": SEQUENCES, "llama": LLAMA, "one group": LLAMA.replace(key_value_heads=1), "classes": CLASSES}[model]
    return Step(config=config, mesh=Mesh.parse(mesh), rows=8, source=8, target=12, dtype="float32", recompute=recompute, backend=backend,
                recipe=PAPER.replace(clip_norm=1.0, microbatches=microbatches))  # fmt: skip


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
        assert scaling.differences(each, found) == []


@pytest.mark.conformance
@pytest.mark.parametrize("name", scaling.SMALL)
def test_eager_torch_keeps_the_planned_activations_and_less_than_a_quarter_beside_them(name: str) -> None:
    pytest.importorskip("torch")
    one = next(step for model, step in scaling.steps() if model == name and step.mesh.devices == 1)
    assert 1 <= kept(one) / memory.activations(one) < 1.25
