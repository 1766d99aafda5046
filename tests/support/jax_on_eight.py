"""Models on meshes, in processes with the devices: checks run there and are requested by name."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import AxisType

from impl_jax import port
from impl_jax.training import Trainer
from reference_numpy import TransformerConfig, parameters, preset, sites
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.training import Trainer as Reference
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components

SUPPORT = Path(__file__).parent
# Busy devices wait longer for each other.
WAITS = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
FLAGS = f"--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false {WAITS} --xla_force_host_platform_device_count="
MESHES = ("data=2,model=4", "data=4,model=2", "data=8", "model=8", "data=4,model=2,replicate", "data=1")
AXES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
STILL = dict.fromkeys(("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate"), 0.0)
RATES = {"dropout_rate": 0.4, "attention_dropout_rate": 0.3, "hidden_dropout_rate": 0.2}
SIZES: dict[str, Any] = STILL | {
    "source_vocabulary": 37, "target_vocabulary": 37, "model_width": 16, "heads": 8, "key_value_heads": 8, "key_size": 4, "value_size": 6,
    "feed_forward_width": 24, "encoder_layers": 1, "decoder_layers": 1, "padding_id": 0,
}  # fmt: skip
ALONE = {"encoder_layers": 0, "key_value_heads": 2, "epsilon": 1e-3}
MODELS = {
    "paper": preset("tiny", **SIZES).replace(**RATES),
    "untied": preset("nn_transformer", **SIZES | {"target_vocabulary": 41, "key_value_heads": 2}),
    "bert": preset("bert_base", **SIZES | {"decoder_layers": 0, "max_positions": 11, "classes": 3, "masked_language_head": False}),
    "modernbert": preset("bert_base", **SIZES | {"encoder_layers": 2, "decoder_layers": 0, "classes": 3}).replace(
        masked_language_head=False, positions="rotary", max_positions=0, norm_placement="pre", first_norm=False, norm_offset=False,
        gated_feed_forward=True, layer_pattern=("global", "local"), window=3),
    "gpt2": preset("gpt2_small", **SIZES | {"encoder_layers": 0, "max_positions": 11}).replace(**RATES),
    "llama": preset("llama2_7b", **SIZES | ALONE | {"rotary_base": 500.0}),
    "qwen3": preset("qwen3_600m", **SIZES | ALONE),
    "olmo2": preset("llama2_7b", **SIZES | ALONE | {"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False}),
    "olmo": preset("llama2_7b", **SIZES | ALONE | {"norm": "layer", "norm_scale": False, "query_key_norm": "width"}),
    "stablelm": preset("llama2_7b", **SIZES | ALONE | {"query_key_norm": "each_head", "norm": "layer", "norm_offset": True}),
    "olmoe": preset("llama2_7b", **SIZES | ALONE | {"query_key_norm": "width", "query_key_value_clip": 0.5}),
    "hunyuan": preset("llama2_7b", **SIZES | ALONE | {"query_key_norm": "head", "query_key_norm_after_rotation": True}),
    "gptj": preset("llama2_7b", **SIZES | ALONE | {"norm_placement": "parallel_shared", "norm": "layer", "gated_feed_forward": False}),
    "gpt_neox": preset("llama2_7b", **SIZES | ALONE | {"norm_placement": "parallel", "norm": "layer", "norm_offset": True}),
    "gemma": preset("gemma2_2b", **SIZES | ALONE | {"score_scale": 0.45, "score_cap": 2.0, "logit_cap": 3.0, "window": 3}),
}  # fmt: skip
OF_EXPERTS: dict[str, Any] = SIZES | ALONE | {"experts": 8, "experts_per_token": 3, "expert_width": 5}
MODELS |= {
    "mixtral": preset("mixtral_8x7b", **OF_EXPERTS),
    "gpt_oss": preset("gpt_oss_20b", **OF_EXPERTS | {"window": 3, "gate_limit": 1.0}),
    "glm": preset("llama2_7b", **OF_EXPERTS | {"decoder_layers": 2, "expert_pattern": (False, True), "shared_width": 8}).replace(
        router_scores="sigmoid", selection_bias=True, router_groups=4, router_groups_kept=2, router_group_score="best_two"),
    "granite": preset("llama2_7b", **OF_EXPERTS | {"router_scores": "chosen_softmax", "shared_width": 8, "shared_gate": True}).replace(
        embedding_multiplier=3.0, residual_multiplier=0.22, attention_sinks="all"),
}  # fmt: skip
MODELS["even"] = MODELS["untied"].replace(source_vocabulary=40, target_vocabulary=48, **RATES)
# an epsilon that is large compared to the rounding left in a zero gradient, such as that of a key bias
RECIPE = PAPER.replace(warmup=20, epsilon=1e-3, weight_decay=0.1, clip_norm=0.5)
CLOSE = 1e-9


def outcomes(names: Iterable[str]) -> dict[str, str]:
    """Returns the outcome of each check in one process of eight devices: its error, or an empty string."""
    return in_process(f"import jax_sharding_checks as checks; checks.main({[*names]!r})", 8)()


def in_process(code: str, devices: int) -> Callable[[], Any]:
    """Starts Python with `devices` devices; returns a function that waits for it and for the JSON of its last line."""
    paths = os.pathsep.join(map(str, (SUPPORT, *map(Path, filter(None, sys.path)))))
    environment = os.environ | {"XLA_FLAGS": f"{FLAGS}{devices}", "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)

    def found() -> Any:
        out, error = process.communicate()
        if process.returncode:
            raise AssertionError(error[-4000:])
        return json.loads(out.splitlines()[-1])

    return found


def batch(config: TransformerConfig, step: int = 0, rows: int = 5) -> tuple[Any, np.ndarray]:
    """Returns ids with right padding, left padding, and a row of only padding; or classes instead of a target."""
    rng = np.random.default_rng([7, step])
    source, target = rng.integers(1, config.source_vocabulary, (rows, 7)), rng.integers(1, config.target_vocabulary, (rows, 6))
    source[0, 5:] = target[0, 4:] = source[1, :2] = target[1, :3] = source[2] = target[2] = 0
    if config.classes:
        return source, rng.integers(0, config.classes, rows)
    return (source if config.encoder_layers else None), target


def begin(config: TransformerConfig, mesh: str | None, axes: str = "Auto", recipe: Recipe = RECIPE, **settings: Any) -> Trainer:
    own = type("OnAxes", (Trainer,), {"axes": AXES[axes]})
    return own(config, recipe, parameters.initialise(config, 0), mesh=mesh and Mesh.parse(mesh), **settings)


def close(found: dict[str, Any], expected: dict[str, Any], limit: float = CLOSE) -> None:
    assert sorted(found) == sorted(expected)
    largest = max(float(np.abs(array).max(initial=0)) for array in expected.values())
    for name, array in expected.items():
        scale = max(float(np.abs(array).max(initial=0)), 1e-6 * largest)  # a gradient of zero has rounding left in it
        np.testing.assert_allclose(found[name], array, rtol=0, atol=limit * scale, err_msg=name)


def trains(model: str, mesh: str, axes: str = "Auto", steps: int = 10, rows: int = 5, **more: Any) -> Trainer:
    """Compares losses, gradients (from the first moments) and parameters after some steps with the reference; returns the run."""
    config, recipe = MODELS[model], RECIPE.replace(microbatches=more.pop("microbatches", 1))
    run, other = begin(config, mesh, axes, recipe, **more), Reference(config, recipe, parameters.initialise(config, 0))
    for step in range(steps):
        keep = sites.draw(config, rows, 7, 0 if config.classes else 5, np.random.default_rng([3, step])) or None
        given = *batch(config, step, rows), keep
        np.testing.assert_allclose(float(run.train_step(*given)), other.train_step(*given), rtol=CLOSE)
        if step in (0, steps - 1):
            close(dict(run.tensors()), other.state())
    np.testing.assert_allclose(run.loss(*batch(config, 90, rows)), other.loss(*batch(config, 90, rows)), rtol=CLOSE)
    return run


def answers(component: str, config: TransformerConfig, mesh: str, axes: str = "Auto", **inputs: Any) -> None:
    """Checks a component on the mesh against the reference."""
    forward = component.removesuffix("_vjp")
    named = components.model_of(forward)
    values: dict[str, np.ndarray] = {}
    with contextlib.suppress(ValueError):  # components without parameters raise it
        values = random(parameters.shapes(config, named))
    given = inputs | ({"cotangent": np.float64(1.5)} if "loss" in component else {})
    case = Case("", component, config, given, values)
    if "cotangent" not in given and component != forward:
        output = components.answer(Case("", forward, config, given, values))["output"]
        case = Case("", component, config, given | random({"cotangent": output.shape}), values)
    found = port.on_mesh(Case(**vars(case) | {"mesh": Mesh.parse(mesh)}), AXES[axes])
    close(components.named_outputs(found), components.answer(case))


def random(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
