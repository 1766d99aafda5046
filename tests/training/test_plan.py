"""The plan of a training step, checked with manually computed numbers and published formulas, and its command."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import refused, succeeded
from messages import naming

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from rosettaformer.files.checkpoints import Checkpoint, canonical
from rosettaformer.use.scaling import memory, strategies, traffic
from rosettaformer.use.scaling.step import Step

X, K, M, W = 8, 2, 24, 40  # experts, of which a token chooses K; their width and that of the shared one
S, B, D, H, F, V, L = 16, 4, 32, 4, 128, 104, 3
GPT = preset("gpt2_small", source_vocabulary=V, target_vocabulary=V, model_width=D, heads=H, key_value_heads=H, key_size=8, value_size=8,
             feed_forward_width=F, decoder_layers=L, max_positions=64)  # fmt: skip
SEQUENCES = preset("tiny", source_vocabulary=104, target_vocabulary=104)
LLAMA = preset("llama31_8b", source_vocabulary=V, target_vocabulary=V, model_width=D, heads=H, key_value_heads=2, key_size=8, value_size=8,
               feed_forward_width=F, decoder_layers=L)  # fmt: skip

MIXTURE = preset("mixtral_8x7b", source_vocabulary=V, target_vocabulary=V, model_width=D, heads=H, key_value_heads=2, key_size=8,
                 value_size=8, experts=X, experts_per_token=K, expert_width=M, shared_width=W, shared_gate=True,
                 decoder_layers=L)  # fmt: skip


def step(config: TransformerConfig, mesh: str, **changes: Any) -> Step:
    """Returns a step; changes are fields of it or of its recipe."""
    given = {"rows": B, "source": 8, "target": S, "dtype": "float32", "recompute": False, "backend": "torch"}
    own = {name: changes.pop(name) for name in given if name in changes}
    return Step(config=config, mesh=Mesh.parse(mesh), recipe=PAPER.replace(**changes), **given | own)


def payload(found: Step, purpose: str, axis: str = "model") -> int:
    return sum(row.payload for row in traffic.traffic(found) if row.axis == axis and re.fullmatch(naming(purpose), row.purpose))


@pytest.mark.parametrize("model", [1, 2, 4])
def test_activations_are_those_of_korthikanti_et_al_equations_1_and_2(model: int) -> None:
    found = step(GPT, f"model={model}", dtype="bfloat16")
    layer = memory.attention(found, "target", "target") + memory.feed_forward(found, "target")
    # bytes per layer in 16 bits: s b h (10 + 24 / t + 5 a s / (h t)), with a heads and width h
    assert layer == S * B * D * (10 + 24 / model + 5 * H * S / (D * model))
    again = step(GPT, f"model={model}", dtype="bfloat16", recompute=True)
    around = S * B * D * (2 * 2 + 1)  # the embedding's mask, and the inputs of the last norm and of the logits
    assert memory.activations(found) == L * layer + around
    assert memory.activations(again) == L * 2 * S * B * D + layer + around


def test_a_fused_attention_holds_no_weights_and_a_cap_or_dropout_does() -> None:
    fused, capped = step(LLAMA, "model=2"), step(LLAMA.replace(score_cap=5.0), "model=2")
    # input, norm; queries and output of 2 heads; a key and a value of 1 group; the logarithms of 2 heads
    assert memory.attention(fused, "target", "target") == 4 * S * B * (2 * D + 2 * 8 + 2 * 8 + 2 * 8 + 2)
    assert memory.attention(capped, "target", "target") - memory.attention(fused, "target", "target") == 4 * S * B * 2 * (2 * S - 1)
    # gate, its activation, its other factor, the product; input, norm
    assert memory.feed_forward(fused, "target") == 4 * S * B * (4 * F // 2 + 2 * D)


@pytest.mark.parametrize("model", [1, 2, 8])
def test_activations_of_experts_are_those_of_pairs_of_a_token_and_a_chosen_expert(model: int) -> None:
    """All experts of a token may be on one device: with 8 columns, a device has one."""
    found = step(MIXTURE.replace(heads=8, key_value_heads=8), f"model={model}")
    pairs = S * B * min(K, X // model)
    # input, output and hidden layers of pairs; hidden layers and output of the shared expert; scores, weights, input, norm of tokens
    numbers = pairs * (2 * D + 4 * M) + S * B * (4 * W // model + D + 2 * X + 2 * D)
    assert memory.mixture_of_experts(found, "target") == 4 * numbers
    mixed = step(MIXTURE.replace(expert_pattern=(True, False, False)), "model=1")
    layers = [memory.network(mixed, "target", layer) for layer in range(L)]
    assert layers == [memory.mixture_of_experts(mixed, "target"), *[memory.feed_forward(mixed, "target")] * 2]
    assert memory.activations(mixed) - memory.activations(step(MIXTURE, "model=1")) == 2 * (layers[1] - layers[0])


def test_losses_of_routers_are_refused_on_a_mesh_as_training_refuses_them() -> None:
    assert memory.activations(step(MIXTURE, "model=1", router_aux_weight=0.01))
    for mesh in ("data=2", "model=2", "data=2,replicate"):
        with pytest.raises(ValueError, match=re.escape(str(Mesh.parse(mesh)))):
            step(MIXTURE, mesh, router_aux_weight=0.01)
    with pytest.raises(ValueError, match="experts"):
        step(LLAMA, "model=1", router_z_weight=0.01)


def test_full_sharding_holds_two_layers_and_what_lies_outside_of_them_whole() -> None:
    outside = D * (V + 64 + 2)
    layer = (parameters.count(GPT) - outside) // L
    found, own = memory.memory(step(GPT, "data=4")), parameters.count(GPT)  # four bytes per number, on four devices
    assert found["gathered"] == 4 * (3 * layer + 2 * outside)
    assert [found[what] for what in memory.STATE] == [own, own, 2 * own]  # ZeRO, stage 3
    assert memory.memory(step(GPT, "data=4,replicate"))["gathered"] == 0


def test_a_vocabulary_that_does_not_divide_counts_by_its_largest_part() -> None:
    whole, split = (step(GPT.replace(source_vocabulary=101, target_vocabulary=101), mesh) for mesh in ("model=1", "model=4"))
    assert memory.memory(whole)["logits"] == 2 * 4 * S * B * 101
    assert memory.memory(split)["logits"] == 2 * 4 * S * B * 26
    table = next(parameter for parameter in split.parameters() if parameter.name == "target_embedding.table")
    assert table.numbers(split.mesh, "model") == 26 * D


def test_full_sharding_sends_half_as_much_again_as_data_parallel_rings_do() -> None:
    """ZeRO, section 7: 3 and 2 times the parameters, of which a ring sends (n - 1)/n; parameters outside layers are gathered once."""
    size, outside, scalar = 4 * parameters.count(GPT), 4 * D * (V + 64 + 2), 4 * 2
    assert traffic.by_ring(step(GPT, "data=4")) == (3 * size - outside + scalar) * 3 / 4
    marks = 4 * (len(parameters.shapes(GPT)) + 1)  # DDP's, for each parameter and one more
    assert traffic.by_ring(step(GPT, "data=4,replicate")) == (2 * size + 2 * marks + scalar) * 3 / 4


def test_gradients_of_torch_stay_whole_along_data_until_the_last_microbatch() -> None:
    config = GPT.replace(tie_logits=False)
    steps = (step(config, "data=4", backend=name, microbatches=2) for name in ("torch", "jax"))
    whole, part = map(memory.memory, steps)
    assert whole["gradients"] == 4 * part["gradients"] and part["gathered"] == whole["gathered"]


def test_a_parameter_that_nothing_divides_stays_whole() -> None:
    """In JAX; torch splits it unevenly, as `tests/impl_torch` measures."""
    whole = step(GPT, "data=5", rows=5, backend="jax")  # 5 divides none of its sizes
    assert payload(whole, "gradients of whole parameters", "data") == 4 * (parameters.count(GPT) + V * D)  # the table is used twice
    assert payload(whole, "parameters, forward", "data") == 0
    assert memory.memory(whole)["parameters"] == 4 * parameters.count(GPT)


def test_xla_for_cpus_adds_up_for_each_kernel_and_each_use_of_a_table() -> None:
    found, one, tied = step(GPT, "model=2", backend="jax"), 4 * B * S * D, step(SEQUENCES, "data=2", backend="jax")
    assert payload(found, "activations, backward") == (4 * L + 1) * one  # queries, keys, values, hidden layer
    assert payload(tied, "gradients", "data") == 4 * (parameters.count(SEQUENCES) + 2 * 104 * 32)  # source, target, logits


def test_xla_adds_up_and_gathers_gradients_of_fewer_groups_than_columns() -> None:
    of_jax = step(LLAMA, "model=4", backend="jax")
    assert payload(of_jax, "gradients of whole parameters") == 4 * L * 2 * D * 2 * 8
    assert payload(of_jax, "gradients of keys … values") == 4 * L * 2 * B * S * 8 * (1 + 2)  # a group's sum, and two gathered groups
    assert payload(of_jax, "activations, backward") == 4 * B * S * D * (3 * L + 1)  # queries, gate and hidden layer; logits


def test_the_norm_of_the_gradients_is_one_number_of_the_devices_that_hold_parts() -> None:
    axes = {mesh: [row.axis for row in traffic.traffic(step(GPT, mesh, clip_norm=1.0)) if row.purpose == "norm of the gradients"]
            for mesh in ("model=1", "data=2", "model=2", "data=2,model=2", "data=2,replicate", "data=2,model=2,replicate")}  # fmt: skip
    assert axes == {"model=1": [], "data=2": ["data"], "model=2": ["model"], "data=2,model=2": ["data and model"], "data=2,replicate": [],
                    "data=2,model=2,replicate": ["model"]}  # fmt: skip


def test_a_device_has_the_most_rows_of_a_batch_that_does_not_divide() -> None:
    assert step(GPT, "data=2", rows=5).tokens("target") == 3 * S
    assert step(GPT, "data=2", rows=6, microbatches=3).tokens("target") == S
    with pytest.raises(ValueError, match="must divide into 4 microbatches; got 6 rows"):
        step(GPT, "data=2", rows=6, microbatches=4)
    with pytest.raises(ValueError, match=naming("heads … multiple")):
        step(GPT, "model=8")


def test_strategies_are_meshes_of_all_devices() -> None:
    llama = preset("llama31_8b")
    meshes = {name: [str(make(llama, devices)) for devices in (8, 1000)] for name, make in strategies.STRATEGIES.items()}
    assert meshes == {
        "data parallel": ["data=8,model=1,replicate", "data=1000,model=1,replicate"],
        "fully sharded": ["data=8,model=1", "data=1000,model=1"],
        "tensor parallel": ["data=1,model=8", "data=1,model=1000"],
        "both": ["data=1,model=8", "data=125,model=8"],
    }
    assert "got h=32, model=1000" in strategies.problem(llama, Mesh(model=1000))
    assert str(strategies.both(preset("qwen3_600m", heads=6, key_value_heads=6), 16)) == "data=8,model=2"


OF_A_STEP = ("--rows", 4, "--length", 16)


def test_the_command_prints_a_plan_and_compares_strategies(tmp_path: Path) -> None:
    given = ("plan", "tiny", "--set", "source_vocabulary=104", "--set", "target_vocabulary=104", *OF_A_STEP)
    (found,) = succeeded(*given, "--mesh", "data=2,model=2", "--source-length", 8, "--json").rows
    assert found["memory_total"] == sum(found["memory"].values())
    assert found["traffic_total"] == traffic.total(step(SEQUENCES, "data=2,model=2"))
    table = succeeded(*given, "--mesh", "data=2,model=2", "--memory", 0.0001).out
    assert "does not fit 0.0001 GiB" in table and "activations, backward" in table
    (all_found,) = succeeded(*given, "--mesh", 8, "--json").rows
    assert {name: row.get("mesh") for name, row in all_found["strategies"].items()} == {
        "data parallel": "data=8,model=1,replicate", "fully sharded": "data=8,model=1", "tensor parallel": None, "both": "data=2,model=4"
    }  # fmt: skip
    assert "heads must be" in succeeded(*given, "--mesh", 8).out
    file = tmp_path / "model.safetensors"
    weights = parameters.initialise(SEQUENCES, 0, np.float32)
    canonical.save(file, Checkpoint(SEQUENCES, weights).config, weights)
    of_file = succeeded("plan", file, *OF_A_STEP, "--mesh", "data=2,model=2", "--source-length", 8, "--json")
    assert json.loads(of_file.out) == found


def test_the_command_refuses_what_is_no_plan(tmp_path: Path) -> None:
    assert "--mesh" in refused("plan", "tiny", *OF_A_STEP)
    assert "nearest: tiny" in refused("plan", "tinny", *OF_A_STEP, "--mesh", 2)
    assert "--set" in refused("plan", tmp_path, "--set", "heads=2", *OF_A_STEP, "--mesh", 2)
    assert "data=N" in refused("plan", "tiny", *OF_A_STEP, "--mesh", "pipeline=2")
    assert "needs classes" in refused("plan", "bert_base", *OF_A_STEP, "--mesh", "model=3")
    assert "got h=4, model=3" in refused("plan", "tiny", *OF_A_STEP, "--mesh", "model=3")
