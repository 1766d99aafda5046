"""Cases for ports that answer on several devices: a list of their own, for `--mesh`.

Under no mesh is anything alike: batches and vocabularies do not divide, parts of a batch have unequal numbers of labels or none, key heads
are fewer than the parts of the model axis, tables are tied or shared. Keep masks are given, whole.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, sharding
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh

from ..case import Case
from .build import Builder, left_padding
from .excluded import excluded
from .gradients import gradients
from .mesh_models import RATES, ROWS, S, T, classes, drawn, models, of_encoder, tokens, uneven
from .mesh_parts import part_cases

SINGLE = ("float64", "float32")
STEPS, EVEN = 10, 6  # EVEN: rows that microbatches divide
# steps so small that ten do not part what differs by a rounding; an epsilon that is large beside what is left of a gradient of zero
RECIPE = PAPER.to_dict() | {"warmup": 40, "epsilon": 1e-3, "weight_decay": 0.02}
PREFIX = "sharded_"
CORE = """
    embedding/table position_embedding/table segment_embedding/table multi_head_attention/grouped multi_head_attention/norm_width
    feed_forward/gated layer_norm/plain rms_norm/plain encoder_layer/keep decoder_layer/crossed encoder/layers decoder/layers
    logits/bias pooler/plain classifier/keep masked_language_head/tied
    transformer/paper transformer/gpt2 transformer/llama transformer/qwen3 transformer/olmo2 transformer/gemma classify/bert
    masked_language_logits/bert training_loss/paper_keep training_loss/gpt2 training_loss/llama classification_loss/bert_keep
    training_steps/paper_keep training_steps/bert_keep training_steps/microbatches
""".split()  # noqa: SIM905 - a long list of names reads better in lines


def mesh_cases(meshes: Sequence[Mesh], fixed: Mapping[str, Any] | None = None, shared: Sequence[str] = ()) -> list[Case]:
    """Returns the cases for each mesh: components with parameters, whole models, losses, the gradients of all, and steps of training.

    fixed, shared: what a port fixes and what its heads share, as `cases.all_cases` takes them; a case that asks for another value is
    excluded, with the reason, and so is one that a mesh does not divide. Raises ValueError if a mesh does not divide the cases that nobody
    fixed.
    """
    build = Builder(fixed or {}, shared)
    forward = [_named(case) for case in _cases(build)]
    cases = [*forward, *gradients(forward)]
    if not build.fixed and not shared:
        return on_meshes(cases, meshes)
    known = [excluded(case, build.fixed) for case in cases]
    return [_undivided(dataclasses.replace(case, mesh=mesh)) for mesh in meshes for case in known]


def on_meshes(cases: Sequence[Case], meshes: Sequence[Mesh]) -> list[Case]:
    """Returns the cases for each mesh. Raises ValueError on the first that does not divide their configs."""
    for mesh, case in itertools.product(meshes, cases):
        if why := _misfit(case.config, mesh):
            raise ValueError(f"the mesh {mesh} does not fit {case.id}: {why}")
    return [dataclasses.replace(case, mesh=mesh) for mesh in meshes for case in cases]


def _misfit(config: TransformerConfig, mesh: Mesh) -> str:
    try:
        sharding.check(config, mesh)
    except ValueError as error:
        return str(error)
    return ""


def _undivided(case: Case) -> Case:
    reason = case.excluded or (_misfit(case.config, case.mesh) if case.mesh else "")
    return dataclasses.replace(case, excluded=reason)


def _named(case: Case) -> Case:
    own = f"{case.component}/{case.name}"
    return dataclasses.replace(case, name=PREFIX + case.name, core=own in CORE, dtypes=SINGLE, twice=False)


def _cases(build: Builder) -> Iterator[Case]:
    yield from part_cases(build)
    for name, config in models(build).items():
        yield from _model_cases(build, name, config)
    yield from _step_cases(build)


def _model_cases(build: Builder, name: str, config: TransformerConfig) -> Iterator[Case]:
    """Yields the model with padding on either side and its loss, with every keep mask of a model of the paper, of BERT or GPT-2."""
    if config.decoder_layers:
        yield build.make("transformer", name, config, **tokens(config, uneven(ROWS, S), uneven(ROWS, T)))
        yield build.make("transformer", f"{name}_left_padding", config, **tokens(config, left_padding(ROWS, S), left_padding(ROWS, T)))
        yield build.make("training_loss", name, config, smoothing=0.1, **tokens(config, uneven(ROWS, S), uneven(ROWS, T)))
    else:
        read = tokens(config, uneven(ROWS, S), uneven(ROWS, T)) | of_encoder()
        yield build.make("classify" if config.classes else "masked_language_logits", "bert", config, **read)
    if name not in ("paper", "bert", "gpt2"):
        return
    dropped = config.replace(**RATES)
    given = tokens(config, uneven(ROWS, S), uneven(ROWS, T)) | _keep(dropped, name, S, T - 1)
    if config.classes:
        yield build.make("classification_loss", "bert_keep", dropped, label_b=classes(ROWS), **given | of_encoder())
    else:
        yield build.make("training_loss", f"{name}_keep", dropped, smoothing=0.1, **given)


def _keep(config: TransformerConfig, name: str, source: int, target: int) -> dict[str, Any]:
    return {f"keep.{site}": mask for site, mask in drawn(config, name, source, target).items()}


def _step_cases(build: Builder) -> Iterator[Case]:
    """Yields ten steps of every model: with keep masks, clipped, in microbatches, with activations that are computed again."""
    whole = models(build)
    yield _steps(build, "paper_keep", whole["paper"].replace(**RATES), clip_norm=0.5)
    for name in ("bert", "gpt2"):
        yield _steps(build, f"{name}_keep", whole[name].replace(**RATES))
    for name in ("untied", "llama", "qwen3", "olmo2", "gemma"):
        yield _steps(build, name, whole[name])
    yield _steps(build, "microbatches", whole["llama"], EVEN, microbatches=2, clip_norm=0.5)
    yield _steps(build, "recompute", whole["gpt2"].replace(**RATES), recompute=True)


def _steps(build: Builder, name: str, config: TransformerConfig, rows: int = ROWS, recompute: bool = False, **recipe: Any) -> Case:
    """Returns ten steps of training on ten batches, whose rows are ragged, each batch otherwise."""
    batches = [
        tokens(config, np.roll(uneven(rows, S), step, axis=0), np.roll(uneven(rows, T), step, axis=0), step) for step in range(STEPS)
    ]
    given: dict[str, Any] = {side: _stacked([batch[side] for batch in batches]) for side in batches[0]}
    if config.classes:
        given["target"] = np.stack([classes(rows, step) for step in range(STEPS)])
    masks = [drawn(config, f"{name} {step}", S, T - 1, rows) for step in range(STEPS)]
    given |= {f"keep.{site}": np.stack([mask[site] for mask in masks]) for site in masks[0]}
    given |= {f"recipe.{field}": value for field, value in (RECIPE | recipe).items()}
    return build.make("training_steps", name, config, **given | ({"recompute": True} if recompute else {}))


def _stacked(batches: list[np.ndarray | None]) -> np.ndarray | None:
    return None if batches[0] is None else np.stack([batch for batch in batches if batch is not None])
