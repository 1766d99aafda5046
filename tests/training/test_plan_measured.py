"""The plan against what Trainers send and store: torch's trace, XLA's compiled programs. `make evidence STEP=scaling` tests all."""

import pytest
import scaling
from measured_steps import kept, measure

from reference_numpy import TransformerConfig, preset
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


EXPERTS = preset(
    "mixtral_8x7b", **scaling.SIZES | {"key_value_heads": 4}, decoder_layers=3, experts=8, experts_per_token=2, expert_width=64
)
KEPT = {name: pytest.param(config, marks=pytest.mark.conformance) for name, config in scaling.SMALL.items()} | {
    "experts": EXPERTS,
    "many": EXPERTS.replace(experts=32, experts_per_token=8, expert_width=16, expert_pattern=(False, True, True)),
    "shared": EXPERTS.replace(expert_width=32, shared_width=48, shared_gate=True),
    "clipped": EXPERTS.replace(query_key_norm="width", query_key_value_clip=0.5),
    "a scale for each head": EXPERTS.replace(query_key_norm="each_head", experts=0, model_width=24),
    "limited": EXPERTS.replace(gate_limit=1.7, hidden_offset=1.0, router_scores="chosen_softmax", router_normalize=False),
}


@pytest.mark.product
@pytest.mark.parametrize("config", KEPT.values(), ids=KEPT)
def test_eager_torch_keeps_the_planned_activations_and_less_than_a_quarter_beside_them(config: TransformerConfig) -> None:
    pytest.importorskip("torch")
    one = Step(config=config, mesh=Mesh(), rows=16, source=8, target=12, dtype="float32", recompute=False, backend="torch", recipe=PAPER)
    assert 1 <= kept(one) / memory.activations(one) < 1.25
