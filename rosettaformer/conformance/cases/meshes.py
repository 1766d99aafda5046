"""Cases for ports that answer on several devices: a list of their own, for `--mesh`.

Under no mesh is anything alike: batches and vocabularies do not divide, rows are ragged, so that parts of a batch have unequal numbers of
labels or none, key heads are fewer than the parts of the model axis, tables are tied or shared. Keep masks are given, whole.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sharding, sites
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh

from ..case import Case
from .build import Builder, left_padding, ragged, rng
from .excluded import excluded
from .gradients import gradients
from .transformer import ids

ROWS, T, S, STEPS = 5, 6, 7, 10
EVEN = 6  # rows that microbatches divide
SINCE = 9
SINGLE = ("float64", "float32")
SIZES: dict[str, Any] = {
    "source_vocabulary": 37, "target_vocabulary": 37, "model_width": 16, "key_size": 6, "value_size": 10, "feed_forward_width": 24,
    "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
HEADS: dict[str, Any] = {"heads": 8, "key_value_heads": 8}
GROUPS: dict[str, Any] = {"key_value_heads": 2}
DECODER: dict[str, Any] = {"encoder_layers": 0, "padding_id": 0} | GROUPS
RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
NONE = dict.fromkeys((*RATES, "classifier_dropout_rate"), 0.0)
# steps so small that ten of them do not part what differs by a rounding; beside this epsilon what is left of a gradient that is zero is little
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
    """Returns the cases for each mesh. Raises one ValueError that says which mesh does not divide their configs, and why."""
    configs = {case.config: None for case in cases}
    problems = [
        f"the mesh {mesh} does not fit: {why}"
        for mesh in meshes
        for why in dict.fromkeys(_misfit(config, mesh) for config in configs)
        if why
    ]
    if problems:
        raise ValueError("\n  ".join(problems))
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
    return dataclasses.replace(case, name=PREFIX + case.name, core=own in CORE, since=SINCE, dtypes=SINGLE, twice=False)


def _cases(build: Builder) -> Iterator[Case]:
    yield from _table_cases(build)
    yield from _attention_cases(build)
    yield from _part_cases(build)
    yield from _layer_cases(build)
    yield from _head_cases(build)
    for name, config in _models(build).items():
        yield from _model_cases(build, name, config)
    yield from _step_cases(build)


def _config(build: Builder, dialect: str, **changes: Any) -> TransformerConfig:
    """Returns a dialect's config at these sizes, without dropout if no rate is given."""
    return build.config(dialect, NONE | HEADS, **SIZES | {"padding_id": 0} | changes)


def _models(build: Builder) -> dict[str, TransformerConfig]:
    """Returns a whole model of each kind, and the paper's with tables of its own."""
    llama: dict[str, Any] = DECODER | {"epsilon": 1e-3, "rotary_base": 500.0}
    gemma: dict[str, Any] = {"score_scale": 0.45, "score_cap": 2.0, "logit_cap": 3.0, "window": 3, "decoder_layers": 2}
    bert: dict[str, Any] = {"decoder_layers": 0, "max_positions": 11, "segments": 3, "epsilon": 1e-3}
    return {
        "paper": _config(build, "paper_base"),
        "untied": _config(build, "semillero", target_vocabulary=41, **GROUPS),
        "bert": _config(build, "bert_base", classes=3, masked_language_head=False, **bert),
        "bert_words": _config(build, "bert_base", pooler=False, **bert),
        "gpt2": _config(build, "gpt2_small", encoder_layers=0, max_positions=11, decoder_layers=2),
        "llama": _config(build, "llama2_7b", **llama | {"decoder_layers": 2}),
        "qwen3": _config(build, "qwen3_600m", **llama),
        "olmo2": _config(build, "llama2_7b", norm_placement="after", query_key_norm="width", norm_cast_before_scale=False, **llama),
        "gemma": _config(build, "gemma2_2b", **llama | gemma),
    }


def _table_cases(build: Builder) -> Iterator[Case]:
    models = _models(build)
    token = rng("mesh tokens").integers(0, models["paper"].source_vocabulary, (ROWS, T))
    position = rng("mesh positions").integers(0, 11, (ROWS, T))
    yield build.make("embedding", "table", models["paper"], token=token)
    yield build.make("position_embedding", "table", models["gpt2"], position_bt=position)
    yield build.make("segment_embedding", "table", models["bert"], segment_bs=position % 3)


def _attention_cases(build: Builder) -> Iterator[Case]:
    """Yields attention alone; projections with biases; fewer groups than parts; norms of a head and of the width; keep masks."""
    models, mask = _models(build), ragged(ROWS, S)[:, None, None]
    heads: dict[str, Any] = {"query_bthk": f"{ROWS} {T} h k", "key_bsgk": f"{ROWS} {S} g k", "value_bsge": f"{ROWS} {S} g e"}
    yield build.make("scaled_dot_product_attention", "grouped", models["llama"], mask_bhts=mask, **heads)
    x: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {S} d"}
    own: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {T} d", "causal": True}
    dropped = models["untied"].replace(key_value_heads=models["untied"].heads, attention_dropout_rate=0.3)
    keep = rng("mesh keep weights").random((ROWS, dropped.heads, T, S)) >= 0.3
    yield build.make("multi_head_attention", "keep", dropped, mask_bhts=mask, keep_bhts=keep, **x)
    yield build.make("multi_head_attention", "grouped", models["untied"], mask_bhts=mask, **x)
    yield build.make("multi_head_attention", "norm_head", models["qwen3"], **own)
    yield build.make("multi_head_attention", "norm_width", models["olmo2"], **own)
    yield build.make("multi_head_attention", "window_cap", models["gemma"], **own)


def _part_cases(build: Builder) -> Iterator[Case]:
    models, x = _models(build), {"x_btd": f"{ROWS} {T} d"}
    keep = rng("mesh keep hidden").random((ROWS, T, models["untied"].feed_forward_width)) >= 0.4
    yield build.make("feed_forward", "keep", models["untied"].replace(hidden_dropout_rate=0.4), keep_btf=keep, **x)
    yield build.make("feed_forward", "gated", models["llama"], **x)
    yield build.make("layer_norm", "plain", models["untied"], **x)
    yield build.make("rms_norm", "plain", models["llama"], **x)


def _layer_cases(build: Builder) -> Iterator[Case]:
    """Yields layers and stacks with ragged rows, among them keep masks of every site."""
    models = _models(build)
    crossed, dropped = models["untied"], models["untied"].replace(**RATES)
    masks = _drawn(dropped, "layer", S, S)
    keep = {name.replace("encoder.layers.0.", "keep."): mask for name, mask in masks.items() if name.startswith("encoder.layers.0.")}
    source, target = ragged(ROWS, S)[:, None, None], left_padding(ROWS, T)[:, None, None]
    x, memory = {"x_btd": f"{ROWS} {T} d"}, {"memory_bsd": f"{ROWS} {S} d"}
    both: dict[str, Any] = {**x, **memory, "self_mask_bhts": target, "cross_mask_bhts": source}
    yield build.make("encoder_layer", "keep", dropped, x_btd=f"{ROWS} {S} d", mask_bhts=source, **keep)
    yield build.make("decoder_layer", "crossed", crossed, **both)
    for name in ("llama", "olmo2", "gemma"):
        yield build.make("decoder_layer", name, models[name], self_mask_bhts=target, **x)
    two = crossed.replace(encoder_layers=2, decoder_layers=2)
    yield build.make("encoder", "layers", two, x_bsd=f"{ROWS} {S} d", mask_bhts=source)
    yield build.make("decoder", "layers", two, **both)


def _head_cases(build: Builder) -> Iterator[Case]:
    """Yields logits whose vocabulary does not divide, heads of an encoder, and the loss on logits."""
    models, x = _models(build), {"x_btd": f"{ROWS} {T} d"}
    label = rng("mesh labels").integers(0, models["paper"].source_vocabulary, (ROWS, T))
    yield build.make("logits", "bias", models["untied"], **x)
    yield build.make("logits", "cap", models["gemma"], **x)
    yield build.make("pooler", "plain", models["bert"], x_bsd=f"{ROWS} {S} d")
    keep = rng("mesh keep classifier").random((ROWS, models["bert"].model_width)) >= 0.3
    yield build.make("classifier", "keep", models["bert"].replace(classifier_dropout_rate=0.3), pooled_br=f"{ROWS} d", keep_br=keep)
    yield build.make("masked_language_head", "tied", models["bert_words"], x_bsd=f"{ROWS} {S} d")
    yield build.make(
        "cross_entropy", "smoothed", models["paper"], logits_btv=f"{ROWS} {T} v", label_bt=label, mask_bt=ragged(ROWS, T), smoothing=0.1
    )


def _model_cases(build: Builder, name: str, config: TransformerConfig) -> Iterator[Case]:
    """Yields the model with padding on either side and its loss, with every keep mask of a model of the paper, of BERT or GPT-2."""
    if config.decoder_layers:
        yield build.make("transformer", name, config, **_tokens(config, ragged(ROWS, S), ragged(ROWS, T)))
        yield build.make("transformer", f"{name}_left_padding", config, **_tokens(config, left_padding(ROWS, S), left_padding(ROWS, T)))
        yield build.make("training_loss", name, config, smoothing=0.1, **_tokens(config, ragged(ROWS, S), ragged(ROWS, T)))
    else:
        read = _tokens(config, ragged(ROWS, S), ragged(ROWS, T)) | _of_encoder()
        yield build.make("classify" if config.classes else "masked_language_logits", "bert", config, **read)
    if name not in ("paper", "bert", "gpt2"):
        return
    dropped = config.replace(**RATES)
    given = _tokens(config, ragged(ROWS, S), ragged(ROWS, T)) | _keep(dropped, name, S, T - 1)
    if config.classes:
        yield build.make("classification_loss", "bert_keep", dropped, label_b=_classes(ROWS), **given | _of_encoder())
    else:
        yield build.make("training_loss", f"{name}_keep", dropped, smoothing=0.1, **given)


def _tokens(config: TransformerConfig, source: np.ndarray, target: np.ndarray, step: int = 0) -> dict[str, Any]:
    """Returns the ids that the model reads, with padding where the masks are False."""
    sides = {
        "source": (source, config.source_vocabulary, config.encoder_layers),
        "target": (target, config.target_vocabulary, config.decoder_layers),
    }
    found = {
        side: ids(f"mesh {side} {step}", size, config.padding_id, mask) if layers else None for side, (mask, size, layers) in sides.items()
    }
    return found if config.decoder_layers else {"source": found["source"]}


def _of_encoder() -> dict[str, Any]:
    return {"source_mask_bs": ragged(ROWS, S), "segment_bs": rng("mesh segments").integers(0, 3, (ROWS, S))}


def _classes(rows: int, step: int = 0) -> np.ndarray:
    return rng(f"mesh classes {step}").integers(0, 3, rows)


def _drawn(config: TransformerConfig, name: str, source: int, target: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    return parameters.flatten(sites.draw(config, rows, source, 0 if config.classes else target, rng(f"mesh keep {name}")))


def _keep(config: TransformerConfig, name: str, source: int, target: int) -> dict[str, Any]:
    return {f"keep.{site}": mask for site, mask in _drawn(config, name, source, target).items()}


def _step_cases(build: Builder) -> Iterator[Case]:
    """Yields ten steps of every model: with keep masks, clipped, in microbatches, with activations that are computed again."""
    models = _models(build)
    for name, recipe in {"paper": {"clip_norm": 0.5}, "bert": {}, "gpt2": {}}.items():
        yield _steps(build, f"{name}_keep", models[name].replace(**RATES), **recipe)
    for name in ("untied", "llama", "qwen3", "olmo2", "gemma"):
        yield _steps(build, name, models[name])
    yield _steps(build, "microbatches", models["llama"], EVEN, microbatches=2, clip_norm=0.5)
    yield _steps(build, "recompute", models["gpt2"].replace(**RATES), recompute=True)


def _steps(build: Builder, name: str, config: TransformerConfig, rows: int = ROWS, recompute: bool = False, **recipe: Any) -> Case:
    """Returns ten steps of training on ten batches, whose rows are ragged, each batch otherwise."""
    batches = [
        _tokens(config, np.roll(ragged(rows, S), step, axis=0), np.roll(ragged(rows, T), step, axis=0), step) for step in range(STEPS)
    ]
    given: dict[str, Any] = {side: _stacked([batch[side] for batch in batches]) for side in batches[0]}
    if config.classes:
        given["target"] = np.stack([_classes(rows, step) for step in range(STEPS)])
    masks = [_drawn(config, f"{name} {step}", S, T - 1, rows) for step in range(STEPS)]
    given |= {f"keep.{site}": np.stack([mask[site] for mask in masks]) for site in masks[0]}
    given |= {f"recipe.{field}": value for field, value in (RECIPE | recipe).items()}
    return build.make("training_steps", name, config, **given | ({"recompute": True} if recompute else {}))


def _stacked(batches: list[np.ndarray | None]) -> np.ndarray | None:
    return None if batches[0] is None else np.stack([batch for batch in batches if batch is not None])
