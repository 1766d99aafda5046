"""Cases for ports on several devices, for `--mesh`.

On every mesh the shards differ: batches and vocabularies do not divide evenly, shards of a batch
have different numbers of labels or none, there are fewer key heads than devices on the model axis,
and tables are tied or shared. Keep masks are given unsharded.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sharding, sites
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh

from ..case import Case
from .build import Builder, excluded, left_padding, rng
from .gradients import gradients
from .transformer import ids

ROWS, T, S = 5, 6, 7
SIZES: dict[str, Any] = {
    "source_vocabulary": 37, "target_vocabulary": 37, "model_width": 16, "key_size": 6, "value_size": 10, "feed_forward_width": 24,
    "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
HEADS: dict[str, Any] = {"heads": 8, "key_value_heads": 8}
GROUPS: dict[str, Any] = {"key_value_heads": 2}
DECODER: dict[str, Any] = {"encoder_layers": 0, "padding_id": 0} | GROUPS
RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
NONE = dict.fromkeys((*RATES, "classifier_dropout_rate"), 0.0)


def _config(build: Builder, dialect: str, **changes: Any) -> TransformerConfig:
    """Returns a dialect's config at these sizes, without dropout unless rates are given."""
    return build.config(dialect, NONE | HEADS, **SIZES | {"padding_id": 0} | changes)


def models(build: Builder) -> dict[str, TransformerConfig]:
    """Returns a whole model of each kind, and one of the paper's kind with separate tables."""
    llama: dict[str, Any] = DECODER | {"epsilon": 1e-3, "rotary_base": 500.0}
    gemma: dict[str, Any] = {"score_scale": 0.45, "score_cap": 2.0, "logit_cap": 3.0, "window": 3, "decoder_layers": 2}
    bert: dict[str, Any] = {"decoder_layers": 0, "max_positions": 11, "segments": 3, "epsilon": 1e-3}
    return {
        "paper": _config(build, "paper_base"),
        "untied": _config(build, "nn_transformer", target_vocabulary=41, **GROUPS),
        "bert": _config(build, "bert_base", classes=3, masked_language_head=False, **bert),
        "bert_words": _config(build, "bert_base", pooler=False, **bert),
        "gpt2": _config(build, "gpt2_small", encoder_layers=0, max_positions=11, decoder_layers=2),
        "llama": _config(build, "llama2_7b", **llama | {"decoder_layers": 2}),
        "qwen3": _config(build, "qwen3_600m", **llama),
        "olmo2": _config(build, "llama2_7b", norm_placement="after", query_key_norm="width", norm_cast_before_scale=False, **llama),
        "gemma": _config(build, "gemma2_2b", **llama | gemma),
    }


def uneven(rows: int, length: int) -> np.ndarray:
    """Returns a mask with right padding that gives shards different token counts. True = real."""
    lengths = [length, 1, length - 2, 2, 3, length - 1]
    return np.arange(length) < np.array(lengths[:rows])[:, None]


def tokens(config: TransformerConfig, source: np.ndarray, target: np.ndarray, step: int = 0) -> dict[str, Any]:
    """Returns the token ids, with padding where the masks are False."""
    found: dict[str, Any] = {"source": None}
    if config.encoder_layers:
        found["source"] = ids(f"mesh source {step}", config.source_vocabulary, config.padding_id, source)
    if config.decoder_layers:
        found["target"] = ids(f"mesh target {step}", config.target_vocabulary, config.padding_id, target)
    return found


def of_encoder() -> dict[str, Any]:
    """Returns an encoder's inputs other than its tokens."""
    return {"source_mask_bs": uneven(ROWS, S), "segment_bs": rng("mesh segments").integers(0, 3, (ROWS, S))}


def classes(rows: int, step: int = 0) -> np.ndarray:
    """Returns the class of each row."""
    return rng(f"mesh classes {step}").integers(0, 3, rows)


def drawn(config: TransformerConfig, name: str, source: int, target: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Returns the keep masks of all dropout sites, by name, for texts of these lengths."""
    return parameters.flatten(sites.draw(config, rows, source, 0 if config.classes else target, rng(f"mesh keep {name}")))


SINGLE = ("float64", "float32")
STEPS, EVEN = 10, 6  # EVEN: a number of rows that microbatches divide
# Small enough steps that rounding does not grow over ten of them; epsilon exceeds the rounding error of a zero gradient.
RECIPE = {name: value for name, value in PAPER.to_dict().items() if not name.startswith("router_")}  # those weights need one device
RECIPE |= {"warmup": 40, "epsilon": 1e-3, "weight_decay": 0.02}
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
    """Returns the cases for each mesh: components, models, losses, gradients, training steps.

    fixed, shared: see `all_cases`. A case that needs another value, or that a mesh does not divide,
    is excluded, with the reason. Raises ValueError if a mesh does not divide the cases of an
    unrestricted port.
    """
    build = Builder(fixed or {}, shared)
    forward = [_named(case) for case in _cases(build)]
    cases = [*forward, *gradients(forward)]
    if not build.fixed and not shared:
        return on_meshes(cases, meshes)
    known = [excluded(case, build.fixed) for case in cases]
    return [_undivided(dataclasses.replace(case, mesh=mesh)) for mesh in meshes for case in known]


def on_meshes(cases: Sequence[Case], meshes: Sequence[Mesh]) -> list[Case]:
    """Returns the cases for each mesh. Raises ValueError if one does not divide a config."""
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
    """Yields the model with both paddings, its loss, and for some models all keep masks."""
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
    """Yields ten steps per model: keep masks, clipping, microbatches, recomputation."""
    whole = models(build)
    yield _steps(build, "paper_keep", whole["paper"].replace(**RATES), clip_norm=0.5)
    for name in ("bert", "gpt2"):
        yield _steps(build, f"{name}_keep", whole[name].replace(**RATES))
    for name in ("untied", "llama", "qwen3", "olmo2", "gemma"):
        yield _steps(build, name, whole[name])
    yield _steps(build, "microbatches", whole["llama"], EVEN, microbatches=2, clip_norm=0.5)
    yield _steps(build, "recompute", whole["gpt2"].replace(**RATES), recompute=True)


def _steps(build: Builder, name: str, config: TransformerConfig, rows: int = ROWS, recompute: bool = False, **recipe: Any) -> Case:
    """Returns ten training steps on ten different ragged batches."""
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


def part_cases(build: Builder) -> Iterator[Case]:
    """Yields tables, attention, feed-forward, norms, layers, stacks, heads and the loss."""
    yield from _table_cases(build)
    yield from _attention_cases(build)
    yield from _part_cases(build)
    yield from _layer_cases(build)
    yield from _head_cases(build)


def _table_cases(build: Builder) -> Iterator[Case]:
    whole = models(build)
    token = rng("mesh tokens").integers(0, whole["paper"].source_vocabulary, (ROWS, T))
    position = rng("mesh positions").integers(0, 11, (ROWS, T))
    yield build.make("embedding", "table", whole["paper"], token=token)
    yield build.make("position_embedding", "table", whole["gpt2"], position_bt=position)
    yield build.make("segment_embedding", "table", whole["bert"], segment_bs=position % 3)


def _attention_cases(build: Builder) -> Iterator[Case]:
    """Yields attention, biases, few groups, both query-key norms, and keep masks."""
    whole, mask = models(build), uneven(ROWS, S)[:, None, None]
    heads: dict[str, Any] = {"query_bthk": f"{ROWS} {T} h k", "key_bsgk": f"{ROWS} {S} g k", "value_bsge": f"{ROWS} {S} g e"}
    yield build.make("scaled_dot_product_attention", "grouped", whole["llama"], mask_bhts=mask, **heads)
    x: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {S} d"}
    own: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {T} d", "causal": True}
    dropped = whole["untied"].replace(key_value_heads=whole["untied"].heads, attention_dropout_rate=0.3)
    keep = rng("mesh keep weights").random((ROWS, dropped.heads, T, S)) >= 0.3
    yield build.make("multi_head_attention", "keep", dropped, mask_bhts=mask, keep_bhts=keep, **x)
    yield build.make("multi_head_attention", "grouped", whole["untied"], mask_bhts=mask, **x)
    yield build.make("multi_head_attention", "norm_head", whole["qwen3"], **own)
    yield build.make("multi_head_attention", "norm_width", whole["olmo2"], **own)
    yield build.make("multi_head_attention", "window_cap", whole["gemma"], **own)


def _part_cases(build: Builder) -> Iterator[Case]:
    whole = models(build)
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    keep = rng("mesh keep hidden").random((ROWS, T, whole["untied"].feed_forward_width)) >= 0.4
    yield build.make("feed_forward", "keep", whole["untied"].replace(hidden_dropout_rate=0.4), keep_btf=keep, **x)
    yield build.make("feed_forward", "gated", whole["llama"], **x)
    yield build.make("layer_norm", "plain", whole["untied"], **x)
    yield build.make("rms_norm", "plain", whole["llama"], **x)


def _layer_cases(build: Builder) -> Iterator[Case]:
    """Yields layers and stacks with ragged rows, some with the keep masks of all dropout sites."""
    whole = models(build)
    crossed, dropped = whole["untied"], whole["untied"].replace(**RATES)
    masks = drawn(dropped, "layer", S, S)
    keep: dict[str, Any] = {
        name.replace("encoder.layers.0.", "keep."): mask for name, mask in masks.items() if name.startswith("encoder.layers.0.")
    }
    source, target = uneven(ROWS, S)[:, None, None], left_padding(ROWS, T)[:, None, None]
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    memory = {"memory_bsd": f"{ROWS} {S} d"}
    both: dict[str, Any] = {**x, **memory, "self_mask_bhts": target, "cross_mask_bhts": source}
    yield build.make("encoder_layer", "keep", dropped, x_btd=f"{ROWS} {S} d", mask_bhts=source, **keep)
    yield build.make("decoder_layer", "crossed", crossed, **both)
    for name in ("llama", "olmo2", "gemma"):
        yield build.make("decoder_layer", name, whole[name], self_mask_bhts=target, **x)
    two = crossed.replace(encoder_layers=2, decoder_layers=2)
    yield build.make("encoder", "layers", two, x_bsd=f"{ROWS} {S} d", mask_bhts=source)
    yield build.make("decoder", "layers", two, **both)


def _head_cases(build: Builder) -> Iterator[Case]:
    """Yields logits with an indivisible vocabulary, encoder heads, and the loss on logits."""
    whole = models(build)
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    label = rng("mesh labels").integers(0, whole["paper"].source_vocabulary, (ROWS, T))
    yield build.make("logits", "bias", whole["untied"], **x)
    yield build.make("logits", "cap", whole["gemma"], **x)
    yield build.make("pooler", "plain", whole["bert"], x_bsd=f"{ROWS} {S} d")
    keep = rng("mesh keep classifier").random((ROWS, whole["bert"].model_width)) >= 0.3
    yield build.make("classifier", "keep", whole["bert"].replace(classifier_dropout_rate=0.3), pooled_br=f"{ROWS} d", keep_br=keep)
    yield build.make("masked_language_head", "tied", whole["bert_words"], x_bsd=f"{ROWS} {S} d")
    yield build.make(
        "cross_entropy", "smoothed", whole["paper"], logits_btv=f"{ROWS} {T} v", label_bt=label, mask_bt=uneven(ROWS, T), smoothing=0.1
    )
