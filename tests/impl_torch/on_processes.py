"""Checks of the PyTorch port in the processes of a mesh: `python on_processes.py data=2,model=2 cpu CHECK...`.

Every check first runs the reference in one process, then the port in all; a line of JSON has the error of each.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # loaded by the first step: once here instead of in every process
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, start_processes

from impl_torch import port
from impl_torch.programs import parts
from impl_torch.training import Trainer
from reference_numpy import TransformerConfig, parameters, preset, sharding, sites, training
from reference_numpy.parameters import flatten, nest
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.strategy import Strategy
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation.components import answer, model_of
from rosettaformer.judge.suite import all_cases
from rosettaformer.use.scaling.memory import memory
from rosettaformer.use.scaling.step import Step
from rosettaformer.use.scaling.traffic import traffic

Run = Callable[[Mesh, str], None]
SIZES = {
    "source_vocabulary": 37, "target_vocabulary": 37, "model_width": 12, "heads": 4, "key_value_heads": 2, "key_size": 6, "value_size": 6,
    "feed_forward_width": 16, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
ALONE = SIZES | {"encoder_layers": 0, "decoder_layers": 2}
DROPPED: dict[str, Any] = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3, "hidden_dropout_rate": 0.2}
WIDTH: dict[str, Any] = {"norm_placement": "after", "query_key_norm": "width"}
SHARED: dict[str, Any] = {"norm_placement": "parallel_shared", "positions": "rotary", "max_positions": 0, "norm": "layer"}
CONFIGS = {
    # one table for source, target and logits; every bias
    "paper": preset("tiny", **SIZES, attention_bias=True, output_bias=True, **DROPPED),
    # three tables; a width that four processes do not divide
    "untied": preset("tiny", **SIZES | {"model_width": 10, "value_size": 5}, share_embeddings=False, tie_logits=False, norm_placement="pre",
                     final_norm=True, **DROPPED),
    "classes": preset("bert_base", **SIZES | {"key_value_heads": 4, "encoder_layers": 2, "decoder_layers": 0}, max_positions=9, classes=3,
                      pooler=True, masked_language_head=False, classifier_dropout_rate=0.1, **DROPPED),
    "gpt2": preset("gpt2_small", **ALONE | {"key_value_heads": 4}, max_positions=9, **DROPPED),
    "llama": preset("llama31_8b", **ALONE),
    # per-head norms, whose scale all processes share
    "qwen3": preset("qwen3_600m", **ALONE),
    # a rounded embedding scale, windows, caps
    "gemma2": preset("gemma2_2b", **ALONE),
    "gemma3": preset("gemma3_1b", **ALONE | {"key_value_heads": 1}),
    # norms over the width of all heads; fewer groups than processes
    "olmo2": preset("llama2_7b", **ALONE, **WIDTH),
    "olmo2 with layer norms": preset("llama2_7b", **ALONE | {"key_value_heads": 1}, **WIDTH, norm="layer", norm_offset=True,
                                     norm_one_plus_scale=True),
    "clipped": preset("llama2_7b", **ALONE, **WIDTH, query_key_value_clip=0.5),
    "a scale for each head": preset("llama2_7b", **ALONE, query_key_norm="each_head", norm="layer", norm_offset=True),
    "a scale for each of few heads": preset("llama2_7b", **ALONE | {"key_value_heads": 1}, query_key_norm="each_head"),
    "norms without parameters": preset("llama2_7b", **ALONE, **WIDTH, norm_scale=False),
    "norms after the rotation": preset("llama2_7b", **ALONE, **WIDTH, query_key_norm_after_rotation=True),
    "sinks": preset("llama31_8b", **ALONE, attention_sinks="all"),
    "parallel": preset("gpt2_small", **ALONE, **SHARED | {"norm_placement": "parallel"}, **DROPPED),
    "parallel, shared": preset("llama31_8b", **ALONE, **SHARED),
    # fewer tokens than processes: the last ones have none
    "few tokens": preset("tiny", **SIZES | {"source_vocabulary": 5, "target_vocabulary": 5}, output_bias=True, padding_id=0),
    # frequencies of the longest row, which the last processes lack: their rows begin with padding
    "dynamic": preset("tiny", **SIZES, positions="rotary", padding_id=0,
                      rotary_scaling={"kind": "dynamic", "factor": 3.0, "original_length": 2}),
    "longrope": preset("llama31_8b", **ALONE, padding_id=0, rotary_scaling={
        "kind": "longrope", "original_length": 3, "short_factors": [1.0, 1.1, 1.3], "long_factors": [1.5, 2.0, 4.0], "attention_factor": 1.2
    }),
}  # fmt: skip
OF_EXPERTS = ALONE | {"experts": 8, "experts_per_token": 3, "expert_width": 5}
GROUPS: dict[str, Any] = {"router_groups": 4, "router_groups_kept": 2, "router_group_score": "best_two"}
MULTIPLIERS: dict[str, Any] = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22}
EXPERTS = {
    "mixtral": preset("mixtral_8x7b", **OF_EXPERTS),
    # every bias, sinks, a limit of gates
    "gpt-oss": preset("gpt_oss_20b", **OF_EXPERTS, window=3, gate_limit=1.0, dropout_rate=0.2),
    # a dense layer, then one with groups of experts and a shared expert
    "glm": preset("llama31_8b", **OF_EXPERTS, **GROUPS, router_scores="sigmoid", selection_bias=True, shared_width=8,
                  expert_pattern=(False, True)),
    # a gated shared expert; fewer experts in a process than a token chooses
    "granite": preset("llama31_8b", **OF_EXPERTS | {"experts": 4}, **MULTIPLIERS, router_scores="chosen_softmax", shared_width=8,
                      shared_gate=True, feed_forward_bias=True),
}  # fmt: skip
CONFIGS |= EXPERTS
MASKED = CONFIGS["classes"].replace(classes=0, masked_language_head=True, pooler=False)
PLACES = np.maximum(np.arange(6) - np.arange(5)[:, None], 0)  # positions of the tokens of five rows after their padding
# An epsilon that dominates gradients of pure rounding, such as that of a key's bias.
RECIPE = PAPER.replace(warmup=3, epsilon=1e-4, weight_decay=0.1, clip_norm=0.5)
CLOSE = 1e-9
AGAIN = ("llama", "paper", "gpt2", "parallel")
SEARCHING = ("decode_in_steps", "greedy_search", "sample", "beam_search")


def batch(config: TransformerConfig, rows: int = 5) -> tuple[Any, np.ndarray]:
    """Returns source and target with ragged padding: five rows, which no mesh divides."""
    rng = np.random.default_rng(3)

    def ids(vocabulary: int, length: int) -> np.ndarray:
        token = rng.integers(1, vocabulary, (rows, length))
        for row in range(rows if config.padding_id == 0 else 0):
            real = max(2, length - row)
            token[row, real:] = 0
            if config.rotary_by_length:
                token[row] = np.roll(token[row], -real)  # left padding
        return token

    source = ids(config.source_vocabulary, 7) if config.encoder_layers else None
    return source, rng.integers(0, config.classes, rows) if config.classes else ids(config.target_vocabulary, 6)


def begun(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns visible initial parameters."""
    rng = np.random.default_rng(9)
    return {name: array + rng.normal(0, 0.1, array.shape) for name, array in parameters.initialise(config, 0).items()}


def kept(config: TransformerConfig, rows: int, step: int) -> Any:
    """Returns the keep masks of a batch of `rows` rows."""
    lengths = 7 if config.encoder_layers else 0, 0 if config.classes else 5
    return sites.draw(config, rows, *lengths, np.random.default_rng(step))


def same(found: Mapping[str, Any], expected: Mapping[str, Any], what: str = "") -> None:
    """Raises AssertionError naming the arrays that differ by more than 1e-9 of their largest number.

    An array that is 0 up to rounding is compared with a thousandth of the largest number of all arrays.
    """
    assert set(found) == set(expected), f"{what}: {sorted(set(found) ^ set(expected))}"
    largest = max(np.abs(array).max(initial=0) for array in expected.values())
    wrong = {}
    for name, array in expected.items():
        assert np.shape(found[name]) == np.shape(array), f"{what} {name}: shape {np.shape(found[name])}, not {np.shape(array)}"
        difference = np.abs(np.asarray(found[name]) - array).max(initial=0)
        if not difference <= CLOSE * max(np.abs(array).max(initial=0), 1e-3 * largest):
            wrong[name] = float(difference)
    assert not wrong, f"{what} differs: {wrong}"


def trained(trainer: Any, config: TransformerConfig, steps: int, rows: int = 5, keep: Any = kept) -> dict[str, Any]:
    """Returns the losses of some steps, the state after them, and the loss of three other rows in evaluation."""
    given = batch(config, rows)
    masks = (None if keep is None else keep(config, rows, step) for step in range(steps))
    losses = [float(trainer.train_step(*given, keep=mask)) for mask in masks]
    others = (None if x is None else x[1:4] for x in given)
    return {"losses": np.array(losses)} | trainer.state() | {"evaluation": np.array(trainer.loss(*others))}


def ten_steps(config: TransformerConfig, recipe: Recipe = RECIPE, steps: int = 10, rows: int = 5, recompute: bool = False) -> Run:
    expected = trained(training.Trainer(config, recipe, begun(config)), config, steps, rows)

    def run(mesh: Mesh, device: str) -> None:
        setting = {"device": device, "mesh": mesh, "recompute": recompute}
        same(trained(Trainer(config, recipe, begun(config), **setting), config, steps, rows), expected, "the run")

    return run


def drawn(config: TransformerConfig, seed: int) -> Run:
    """Returns a check that random masks are those of the rows' places in the batch, on every mesh."""

    def masks(config: TransformerConfig, rows: int, step: int) -> Any:
        lengths = 7 if config.encoder_layers else 0, 0 if config.classes else 5
        whole = parts.draw(config, range(rows), lengths, seed, step, torch.device("cpu"))
        return nest({site: mask.numpy() for site, mask in whole.items()})

    expected = trained(training.Trainer(config, RECIPE, begun(config)), config, 3, keep=masks)

    def run(mesh: Mesh, device: str) -> None:
        trainer = Trainer(config, RECIPE, begun(config), seed=seed, device=device, mesh=mesh)
        same(trained(trainer, config, 3, keep=None), expected, "the run")

    return run


def answered(component: str, config: TransformerConfig, **inputs: Any) -> list[Case]:
    """Returns a component's case and its gradient case; text inputs are axes of random numbers."""
    rng = np.random.default_rng(4)
    axes = config.sizes | {"b": 5, "t": 6, "s": 7}
    given = {
        name: rng.normal(size=[axes.get(letter, 1) for letter in x.split()]) if isinstance(x, str) else x for name, x in inputs.items()
    }
    values = {name: rng.normal(size=shape) for name, shape in parameters.shapes(config, model_of(component)).items()}
    case = Case(component, component, config, flatten(given), values)
    output, *_ = answer(case).values()
    gradients = dataclasses.replace(case, component=f"{component}_vjp", inputs=case.inputs | {"cotangent": rng.normal(size=output.shape)})
    return [case, gradients]


def alike(cases: Iterable[Case]) -> Run:
    """Returns a check of every case against the reference, except those that the mesh does not divide."""
    pairs = [(case, answer(case)) for case in cases]

    def run(mesh: Mesh, device: str) -> None:
        for case, expected in pairs:
            try:
                sharding.check(case.config, mesh)
            except ValueError:
                continue
            same(port.on_mesh(dataclasses.replace(case, mesh=mesh, device=device)), expected, case.id)

    return run


def without_rows(config: TransformerConfig) -> Run:
    """Returns a check of a batch without rows against the reference, except in training."""
    source, target = (x[:0] for x in batch(config))
    both = ("transformer", "training_loss")
    answers = alike(itertools.chain.from_iterable(answered(name, config, source=source, target=target) for name in both))

    def run(mesh: Mesh, device: str) -> None:
        answers(mesh, device)
        trainer = Trainer(config, RECIPE, begun(config), device=device, mesh=mesh)
        for call in (trainer.train_step, trainer.loss):
            with pytest.raises(ValueError, match="must have rows"):
                call(source, target)

    return run


def of_the_suite(nth: int, part: int) -> Run:
    """Returns a check of every nth case of the suite that has parameters, with sizes that meshes divide."""
    fixed = {"heads": 4, "key_value_heads": 2, "feed_forward_width": 16}
    cases = [case for case in all_cases(fixed, grad=True) if case.parameters and not case.excluded and "float64" in case.dtypes]
    known = set(port.components) - set(SEARCHING)
    on_mesh = [case.at("float64") for case in cases if case.component.removesuffix("_vjp") in known]
    return alike(on_mesh[part::nth])


def moved(config: TransformerConfig) -> Run:
    """Returns a check that a run of the reference continues on the mesh, and back."""
    reference = training.Trainer(config, RECIPE, begun(config))
    trained(reference, config, 3)
    before, steps = reference.state(), reference.steps
    expected = trained(reference, config, 2)

    def run(mesh: Mesh, device: str) -> None:
        trainer = Trainer(config, RECIPE, parameters.initialise(config, 5), device=device, mesh=mesh)
        trainer.loss(*batch(config))  # gathered parameters of a forward pass are not reused
        trainer.load_state(MappingProxyType(before), steps)
        same(trainer.state(), before, "what was loaded")
        same(trained(trainer, config, 2), expected, "the run")
        assert trainer.group.size == mesh.devices and trainer.group.rank == dist.get_rank()
        assert trainer.group.any(trainer.group.rank == mesh.devices - 1) and not trainer.group.any(False)
        trainer.group.barrier()

    return run


def resumed(config: TransformerConfig) -> Run:
    """Returns a check that a run resumed on its mesh is bit-identical."""

    def run(mesh: Mesh, device: str) -> None:
        trainer, given = Trainer(config, RECIPE, begun(config), device=device, mesh=mesh), batch(config)
        trainer.train_step(*given)
        again = Trainer(config, RECIPE, begun(config), device=device, mesh=mesh)
        again.load_state(trainer.state(), trainer.steps)
        losses = [[float(one.train_step(*given)) for _ in range(2)] for one in (trainer, again)]
        state = again.state()
        assert losses[0] == losses[1]
        assert not [name for name, array in trainer.state().items() if not np.array_equal(array, state[name])]

    return run


def searched(config: TransformerConfig) -> Run:
    strategy, (source, _) = Strategy(start_id=1, end_id=2, max_new_tokens=5, beam_size=2, n_best=2), batch(config)
    reference = training.Trainer(config, RECIPE, begun(config))
    expected = [getattr(reference, search)(source, strategy) for search in ("greedy_search", "beam_search")]

    def run(mesh: Mesh, device: str) -> None:
        trainer = Trainer(config, RECIPE, begun(config), device=device, mesh=mesh)
        for search, outputs in zip(("greedy_search", "beam_search"), expected, strict=True):
            same(getattr(trainer, search)(source, strategy), outputs, search)

    return run


def collectives(config: TransformerConfig, microbatches: int = 1, recompute: bool = False) -> Run:
    """Returns a check that a step sends what is planned: no other gathers, and gradients are reduced only at the end.

    A process stores its part of the parameters, and a table shared by several modules once.
    """

    def run(mesh: Mesh, device: str) -> None:
        recipe, given = RECIPE.replace(microbatches=microbatches), batch(config)
        trainer = Trainer(config, recipe, begun(config), device=device, mesh=mesh, recompute=recompute)
        trainer.train_step(*given)
        found = by_kind(parts.traffic(lambda: trainer.train_step(*given)))
        sizes = {"rows": 5, "source": 7, "target": 5, "dtype": "float64", "backend": "torch"}
        step = Step(config=config, mesh=mesh, recipe=recipe, recompute=recompute, **sizes)
        if dist.get_rank() == 0:  # rank 0 has the most if sizes do not divide
            planned = by_kind((one.kind, one.payload) for one in traffic(step))
            assert found == planned, f"{found}, not {planned}"
            assert sum(part.nbytes for part in trainer._placed.parts().values()) == memory(step)["parameters"]

    return run


def by_kind(sent: Iterable[tuple[str, int]]) -> Counter[str]:
    """Returns the bytes per kind of collective, except for scalars."""
    found = Counter[str]()
    for kind, size in sent:
        found[kind.replace("_", "-")] += size * (size > 8)
    return +found


CHECKS: dict[str, Callable[[], Run]] = {
    **{f"ten steps/{name}": partial(ten_steps, config) for name, config in CONFIGS.items()},
    "microbatches": partial(ten_steps, CONFIGS["paper"], RECIPE.replace(microbatches=2, clip_norm=None), 3, 6),
    "microbatches of a length": partial(ten_steps, CONFIGS["dynamic"], RECIPE.replace(microbatches=2), 3, 6),
    "microbatches of a row": partial(ten_steps, CONFIGS["qwen3"], RECIPE.replace(microbatches=5), 3),
    "recompute": partial(ten_steps, CONFIGS["paper"], steps=3, recompute=True),
    "recompute/classes": partial(ten_steps, CONFIGS["classes"], steps=3, recompute=True),
    "recompute/parallel": partial(ten_steps, CONFIGS["parallel"], steps=3, recompute=True),
    "drawn": partial(drawn, CONFIGS["paper"], 7),
    "drawn/classes": partial(drawn, CONFIGS["classes"], 8),
    "moved": partial(moved, CONFIGS["paper"]),
    "resumed": partial(resumed, CONFIGS["paper"]),
    "searched": partial(searched, CONFIGS["paper"]),
    "searched/untied": partial(searched, CONFIGS["untied"].replace(query_key_norm="width")),
    "searched/sinks": partial(searched, CONFIGS["paper"].replace(attention_sinks="all", query_key_norm="each_head")),
    "searched/experts": partial(searched, CONFIGS["paper"].replace(experts=4, experts_per_token=3, expert_width=5, shared_width=8)),
    "no rows": partial(without_rows, CONFIGS["paper"]),
    "traffic": partial(collectives, CONFIGS["llama"]),
    "traffic/parallel, shared": partial(collectives, CONFIGS["parallel, shared"]),
    "traffic/microbatches": partial(collectives, CONFIGS["llama"], microbatches=5),
    **{f"traffic/{name}": partial(collectives, CONFIGS[name]) for name in ("qwen3", "olmo2", "paper")},
    **{f"traffic/{name}": partial(collectives, config) for name, config in EXPERTS.items()},
    **{f"traffic/recompute/{name}": partial(collectives, CONFIGS[name], recompute=True) for name in AGAIN},
    "components": lambda: alike(itertools.chain.from_iterable([
        answered("multi_head_attention", CONFIGS["paper"], query_btd="b t d", memory_bsd="b s d", bias_bhts="b h t s"),
        answered("multi_head_attention", CONFIGS["olmo2"], query_btd="b t d", memory_bsd="b t d", bias_bhts="o o t t", causal=True),
        answered("training_loss", CONFIGS["gemma3"], source=None, target=batch(CONFIGS["gemma3"])[1], smoothing=0.1),
        answered("masked_language_logits", MASKED, source=batch(MASKED)[0]),
    ])),
    "components/experts": lambda: alike(itertools.chain.from_iterable([
        *(answered("mixture_of_experts", config, x_btd="b t d") for config in EXPERTS.values()),
        # all tokens choose the same expert: other processes have none to compute
        answered("mixture_of_experts", EXPERTS["mixtral"].replace(experts_per_token=1), x_btd=np.ones((5, 6, 12))),
        answered("decoder_layer", EXPERTS["granite"], x_btd="b t d"),
        answered("transformer", EXPERTS["glm"], source=None, target=batch(EXPERTS["glm"])[1]),
    ])),
    "components/lengths": lambda: alike(itertools.chain.from_iterable([
        answered("transformer", CONFIGS["dynamic"], source=batch(CONFIGS["dynamic"])[0], target=batch(CONFIGS["dynamic"])[1]),
        answered("training_loss", CONFIGS["dynamic"], source=batch(CONFIGS["dynamic"])[0], target=batch(CONFIGS["dynamic"])[1]),
        answered("states", CONFIGS["longrope"], source=None, target=batch(CONFIGS["longrope"])[1])[:1],
        answered("decoder", CONFIGS["longrope"], x_btd="b t d", position_bt=PLACES),
        answered("decoder_layer", CONFIGS["longrope"], x_btd="b t d", position_bt=PLACES),
    ])),
    **{f"suite/{part}": partial(of_the_suite, 12, part) for part in range(12)},
}  # fmt: skip


def work(rank: int, mesh: Mesh, device: str, runs: Mapping[str, Run], folder: str) -> None:
    """Runs one process of the mesh: the checks, and a record of their errors; after an error the others cannot continue."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(mesh.devices))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=mesh.devices)
    wrong: dict[str, str] = dict.fromkeys(runs, "it was not run: a check before it failed")
    for name, run in runs.items():
        try:
            run(mesh, device)
            wrong[name] = ""
        except BaseException:
            wrong[name] = traceback.format_exc()
            break
        finally:
            Path(folder, str(rank)).write_text(json.dumps(wrong))
    os._exit(any(wrong.values()))  # without waiting for the others


def main(mesh: Mesh, device: str, names: list[str]) -> dict[str, str]:
    """Returns each check's error in the first process that reports one; "" if there is none."""
    runs = {name: CHECKS[name]() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(ProcessExitedException):  # one process recorded the error, and the others were ended
            start_processes(work, (mesh, device, runs, folder), nprocs=mesh.devices, start_method="fork")
        said = [json.loads(file.read_text()) for file in Path(folder).iterdir() if file.name != "store"]
    found = {name: sorted((one[name] for one in said), key=len)[-1] for name in names}
    return found if said else dict.fromkeys(names, "no process has said anything")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Mesh.parse(sys.argv[1]), sys.argv[2], sys.argv[3:])))
