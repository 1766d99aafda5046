"""Runs in its own process, since devices are configured once: the TensorFlow port on a mesh, against the reference.

`python on_replicas.py ACTION ...`: on logical CPUs, or as a worker if TF_CONFIG is set. Prints a line of JSON for every action: the
largest error of its comparisons, relative to the largest number of the tensor, or another result.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
from test_training import CONFIG, FULL, STRATEGY, UNTIED, VARIANTS, batch

from impl_tf import port
from impl_tf.layers import DecoderLayer
from impl_tf.programs.sharding import logical_devices
from impl_tf.training import Trainer
from reference_numpy import TransformerConfig, parameters, preset, sites
from reference_numpy.positional_encoding import token_positions
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.training import Trainer as Reference
from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation.components import answer
from rosettaformer.judge.expectation.tolerance import expect
from rosettaformer.judge.suite import all_cases
from rosettaformer.judge.suite.meshes import mesh_cases

LLAMA = preset(
    "llama2_7b", source_vocabulary=23, target_vocabulary=23, model_width=12, heads=6, key_value_heads=2, key_size=4, value_size=4,
    feed_forward_width=19, decoder_layers=1, padding_id=0,
)  # fmt: skip
EXPERTS = {"feed_forward_width": 8, "experts": 5, "experts_per_token": 2, "expert_width": 7, "padding_id": 0}
GPT_OSS = preset(
    "gpt_oss_20b", source_vocabulary=23, target_vocabulary=23, model_width=12, heads=6, key_value_heads=2, key_size=4, value_size=4,
    decoder_layers=2, window=3, gate_limit=1.0, **EXPERTS,
)  # fmt: skip
GLM = LLAMA.replace(
    decoder_layers=2, expert_pattern=(False, True), shared_width=6, router_scores="sigmoid", selection_bias=True, embedding_multiplier=3.0,
    residual_multiplier=0.22, query_key_norm="each_head", query_key_value_clip=0.9, **EXPERTS,
)  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {  # their frequencies depend on the longest row
    "dynamic": {"factor": 3.0},
    "longrope": {"short_factors": [1.0, 1.3], "long_factors": [1.2, 4.0], "attention_factor": 1.2},
}
DYNAMIC, LONGROPE = ({"rotary_scaling": {"kind": kind, "original_length": 2, **own}} for kind, own in SCALINGS.items())
MODELS: dict[str, tuple[TransformerConfig, Recipe]] = {
    **{name: (config, recipe.replace(microbatches=1)) for name, (config, recipe) in VARIANTS.items()},
    "parts": (UNTIED, FULL),
    "llama": (LLAMA, FULL.replace(microbatches=1)),
    "gpt-oss": (GPT_OSS, FULL.replace(microbatches=1)),
    "glm": (GLM, FULL.replace(microbatches=1)),
    "dynamic": (CONFIG.replace(positions="rotary", key_size=8, **DYNAMIC), FULL),
    "longrope": (LLAMA.replace(**LONGROPE), FULL.replace(microbatches=1)),
}
LAYER = "decoder.layers.0."
SHORT_FIRST = [1, 2, 1, 2, 3, 0]  # the first three have the original length
ROWS = 5  # split by two replicas into 3 and 2, by four into 2, 2, 1 and 0


def begin(name: str, mesh: Mesh | None = None, **settings: Any) -> Trainer:
    config, recipe = MODELS[name]
    return Trainer(config, recipe, parameters.initialise(config, 0), mesh=mesh, **{"compiled": False} | settings)


def given(config: TransformerConfig, step: int, rows: int) -> tuple[Any, ...]:
    """Returns a ragged batch and its keep masks; if frequencies depend on the longest row, it is among the last."""
    chosen = (SHORT_FIRST if config.rotary_scaling.by_length else [0, 1, 2, 3, 0, 1, 2, 3])[:rows]
    source, target = (None if array is None else array[chosen] for array in batch(step, config=config))
    drawn = sites.draw(config, rows, 7, 5, np.random.default_rng([3, step]))
    return source, target, drawn or None


def apart(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Returns a tensor's largest error, relative to its largest number; tensors of only rounding use the largest of all."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    most = max((np.abs(array).max(initial=0) for array in map(np.asarray, expected.values())), default=0)
    worst = 0.0
    for name, wanted in ((name, np.asarray(array)) for name, array in expected.items()):
        own = np.asarray(found[name])
        assert (own.shape, own.dtype) == (wanted.shape, wanted.dtype), name
        scale = max(np.abs(wanted).max(initial=0), 1e-6 * most, 1e-300)
        worst = max(worst, float(np.abs(own - wanted).max(initial=0) / scale))
    return worst


def steps(name: str, data: str = "2", rows: str = str(ROWS), count: str = "10", **settings: Any) -> float:
    """Returns the largest error of loss, gradients, and parameters and moments after the steps, and of the last loss in evaluation."""
    config, recipe = MODELS[name]
    run, other = begin(name, Mesh(data=int(data)), **settings), Reference(config, recipe, parameters.initialise(config, 0))
    errors = []
    for step in range(int(count)):
        both = [trainer.train_step(*given(config, step, int(rows))) for trainer in (run, other)]
        errors.append(abs(float(both[0]) / float(both[1]) - 1))
        if step == 0:  # the first moment is proportional to the gradient
            errors.append(apart(*(of("first_moment", trainer.state()) for trainer in (run, other))))
    errors.append(apart(run.state(), other.state()))
    last = given(config, 9, int(rows))[:2]
    found, expected = run.loss(*last), other.loss(*last)
    assert found[1] == expected[1]
    return max(*errors, abs(found[0] / expected[0] - 1))


def of(part: str, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in state.items() if name.startswith(part)}


def drawn(name: str, *meshes: str, **settings: Any) -> float:
    """Checks that random keep masks are the same on every mesh and differ by step and seed; returns the largest difference."""
    config, losses = MODELS[name][0], []
    for data in map(int, meshes):
        run = begin(name, Mesh(data=data), **settings)
        state, own = run.state(), []
        for step in (0, 1, 0):
            run.load_state(state, step)
            own.append(float(run.train_step(*given(config, 0, 6)[:2])))
        losses.append(own)
    assert losses[0][0] == losses[0][2]
    assert abs(losses[0][0] - losses[0][1]) > 1e-3
    assert abs(float(begin(name, Mesh(), seed=1).train_step(*given(config, 0, 6)[:2])) - losses[0][0]) > 1e-3
    return float(np.abs(np.array(losses) / losses[0] - 1).max())


def recomputed(name: str, data: str = "0", compiled: str = "") -> float:
    """Returns the largest effect of recomputation, which keeps all masks and runs each layer twice; 0: without a mesh."""
    mesh, config, counts = Mesh(data=int(data)) if int(data) else None, MODELS[name][0], []
    losses, states, call = [], [], DecoderLayer.run
    for recompute in (False, True):
        calls: list[Any] = []
        with mock.patch.object(DecoderLayer, "run", lambda *args, calls=calls, **named: calls.append(args[0]) or call(*args, **named)):
            run = begin(name, mesh, recompute=recompute, compiled=bool(compiled))
            losses.append([float(run.train_step(*given(config, step, 6)[:2])) for step in range(2)])
        counts.append(len(calls))
        states.append(run.state())
    assert counts[1] == 2 * counts[0], counts
    return max(apart(*states), float(np.abs(np.array(losses) / losses[0] - 1).max()))


def continued(name: str) -> float:
    """Returns the largest error after a state continues on another mesh from any mapping; its searches are the same."""
    config, recipe = MODELS[name]
    run, other = begin(name, Mesh(data=2)), Reference(config, recipe, parameters.initialise(config, 0))
    for trainer in (run, other):
        trainer.train_step(*given(config, 0, ROWS))
    again = begin(name, Mesh(data=3, replicate=True))
    again.load_state(MappingProxyType(dict(run.tensors())), 1)
    for trainer in (again, other):
        trainer.train_step(*given(config, 1, ROWS))
    source = given(config, 2, ROWS)[0]
    for search in ("greedy_search", "beam_search"):
        found, expected = (getattr(trainer, search)(source, STRATEGY) for trainer in (again, other))
        assert all(np.allclose(found[part], expected[part], rtol=1e-9) for part in expected)
    return apart(again.state(), other.state())


def judged(data: str, nth: str, first: str = "0", mode: str = "eager") -> float:
    """Returns the largest error of `on_mesh` on every nth case with parameters, and on the gradients of cases that have them."""
    errors = [0.0]
    cases = [case for case in all_cases(grad=True) if case.parameters and case.component.removesuffix("_vjp") in port.components]
    for case in cases[int(first) :: int(nth)]:
        case = dataclasses.replace(case.at("float64", mode=mode), mesh=Mesh(data=int(data)))
        try:
            found = named(port.on_mesh(case))
        except NotImplementedError as error:
            assert "computes" in str(error)
            continue
        error = apart(found, named(answer(case)))
        assert error < 1e-9, (case.id, error)
        errors.append(error)
    return max(errors)


def followed(name: str, mode: str = "eager") -> float:
    """Returns the largest error of the judge's cases and gradients with the longest row on the second replica: models, a stack, a layer."""
    config, whole, rng = MODELS[name][0], parameters.initialise(MODELS[name][0], 0), np.random.default_rng(0)
    source, target, _ = given(config, 0, ROWS)
    tokens = {"source": source, "target": target}
    asked: dict[str, tuple[str, dict[str, Any]]] = dict.fromkeys(("transformer", "training_loss"), ("", tokens))
    if source is None:
        x_btd, position = rng.normal(size=(*target.shape, config.model_width)), {"position_bt": token_positions(target != 0)}
        asked |= {part: (prefix, {"x_btd": x_btd, **position}) for part, prefix in (("decoder", "decoder."), ("decoder_layer", LAYER))}
        asked["multi_head_attention"] = f"{LAYER}self_attention.", {"query_btd": x_btd, "memory_bsd": x_btd, **position}
    errors = []
    for component, (prefix, inputs) in asked.items():
        values = {name.removeprefix(prefix): x for name, x in whole.items() if name.startswith(prefix)}
        case = Case("ragged", component, config, inputs, values, mesh=Mesh(data=2), mode=mode)
        found = answer(case)
        cotangent = {"cotangent": rng.normal(size=next(iter(found.values())).shape)}
        for one in (case, dataclasses.replace(case, component=f"{component}_vjp", inputs={**inputs, **cotangent})):
            errors.append(apart(named(port.on_mesh(one)), named(answer(one))))
    return max(errors)


def single(name: str, dtype: str = "float32") -> float:
    """Returns a case's largest error on a mesh, divided by its derived tolerance."""
    (case,) = (case.at(dtype) for case in mesh_cases([Mesh(data=2)]) if case.id == name)
    found, expected = named(port.on_mesh(case)), expect(case)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    compared = [compare(one, found[output]) for output, one in expected.items()]
    return max(one.excess for one in compared if not one.incomparable)


def named(outputs: Any) -> dict[str, Any]:
    """Names outputs, whether one array, a pair or a mapping."""
    if isinstance(outputs, Mapping):
        return parameters.flatten(outputs)
    return dict(zip(("output", "weights"), outputs if isinstance(outputs, tuple) else (outputs,), strict=False))


def refused() -> list[str]:
    """Returns the errors for missing devices, and for a case on a model axis."""
    said = []
    case = next(case for case in all_cases() if case.parameters)
    for ask in (
        lambda: begin("tied", Mesh(data=2)) and begin("tied", Mesh(data=9)),
        lambda: begin("tied", Mesh(model=2)),
        lambda: port.on_mesh(dataclasses.replace(case, mesh=Mesh(model=2))),
    ):
        try:
            ask()
        except (ValueError, NotImplementedError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def group() -> list[Any]:
    """Joins this process to the workers."""
    run = begin("decoder-only", Mesh(data=2))
    run.group.barrier()
    return [run.group.rank, run.group.size, run.group.any(run.group.rank == 1), run.group.any(False)]


def killed() -> list[Any]:
    """Kills the second worker after a step; returns the first worker's error, and after how many seconds."""
    run = begin("decoder-only", Mesh(data=2))
    config = MODELS["decoder-only"][0]
    run.train_step(*given(config, 0, 4))
    if run.group.rank == 1:
        os.kill(os.getpid(), 9)
    start = time.monotonic()
    try:
        while True:
            run.train_step(*given(config, 0, 4))
    except ConnectionError as error:
        return [str(error), time.monotonic() - start]


ASKED = (steps, drawn, recomputed, continued, judged, followed, single, refused, group, killed)
ACTIONS: dict[str, Callable[..., Any]] = {action.__name__: action for action in ASKED}

if __name__ == "__main__":
    if "TF_CONFIG" not in os.environ:
        logical_devices(Mesh(data=4))
    for line in sys.argv[1:]:
        action, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        print(json.dumps({"action": line, "found": ACTIONS[action](*(word for word in words if "=" not in word), **options)}), flush=True)
