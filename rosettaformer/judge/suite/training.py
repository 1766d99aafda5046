"""Cases of the training: the loss, the update and the learning rate, and what is drawn at random."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng
from .transformer import ONE_LAYER, tokens

V = 5  # so few that smoothing visibly changes each token's share
SMOOTHED, PADDED, PART = "LOS1 LOS8 LOS9 LOS10", "LOS1 LOS2 LOS7 LOS8 LOS9 LOS10", "LOS1 LOS2 LOS3 LOS8 LOS9 LOS10"


def cases(build: Builder) -> Iterator[Case]:
    """Yields the cases of each part of training."""
    for part in (_cross_entropy_cases, _training_loss_cases, _update_cases, _random_cases):
        yield from part(build)


def _cross_entropy_cases(build: Builder) -> Iterator[Case]:
    """Yields smoothing, ragged rows, rows without labels, part of a batch, and large logits."""
    label = rng("loss labels").integers(0, V, (B, T))
    unequal = ragged(B, T)
    some = np.where(left_padding(B, T), label, 0)  # one row is all padding

    def case(name: str, catches: str = "", **inputs: Any) -> Case:
        given: dict[str, Any] = {"logits_btv": (B, T, V), "label_bt": label} | inputs
        return build.make("cross_entropy", name, build.config(), catches, **given)

    yield case("plain", "LOS6")
    yield case("smoothed", SMOOTHED, smoothing=0.1)
    yield case("smoothed_much", SMOOTHED, smoothing=0.75)
    yield case("padded", "LOS2", mask_bt=unequal)
    yield case("padded_smoothed", PADDED, mask_bt=unequal, smoothing=0.1)
    yield case("empty_row", "LOS2", label_bt=some, mask_bt=left_padding(B, T), smoothing=0.1)
    yield case("no_label", "LOS2", mask_bt=np.zeros((B, T), bool), smoothing=0.1)
    yield case("part_of_a_batch", PART, mask_bt=unequal, smoothing=0.1, total=31)
    yield case("part_without_a_label", "LOS2", mask_bt=np.zeros((B, T), bool), total=31)
    large = 3e4 * rng("loss large").standard_normal((B, T, V)).clip(-2, 2)
    yield case("large_logits", "", logits_btv=large)
    yield case("large_logits_smoothed", SMOOTHED, logits_btv=large, smoothing=0.1, mask_bt=unequal)
    infinite = np.where(unequal[..., None] | (np.arange(V) != label[..., None]), large / 3e4, -np.inf)
    yield case("infinite_where_not_counted", "LOS2", logits_btv=infinite, mask_bt=unequal)
    yield case("all_equal", "LOS3", logits_btv=np.full((B, T, V), 2.5), smoothing=0.1, total=7)
    for dtype in ("int32", "uint8"):
        yield case(f"{dtype}_labels", SMOOTHED, label_bt=label.astype(dtype), smoothing=0.1)
    yield case("one_label", "", logits_btv=(1, 1, V), label_bt=label[:1, :1])
    many = rng("loss many").integers(0, 997, (2, 50))
    yield case("many_tokens", "", logits_btv=(2, 50, 997), label_bt=many, smoothing=0.9, mask_bt=ragged(2, 50))


def _training_loss_cases(build: Builder) -> Iterator[Case]:
    """Yields every dialect, few tokens, part of a batch, left padding, and keep masks."""
    model = "LOS2 LOS4 LOS5 LOS6"
    for dialect in ("paper_base", "nn_transformer", "separate_tables", "unscaled_embedding", "feed_forward_dropout"):
        config = build.config(dialect, **ONE_LAYER)
        yield _loss(build, dialect, config, f"LOS1 LOS7 LOS8 {model}", smoothing=0.1)
    tiny = build.config("paper_base", source_vocabulary=V, target_vocabulary=V, **ONE_LAYER)
    yield _loss(build, "few_tokens", tiny, f"LOS1 LOS9 LOS10 {model}", smoothing=0.1)
    yield _loss(build, "unsmoothed", build.config(**ONE_LAYER), model)
    yield _loss(build, "part_of_a_batch", build.config("feed_forward_dropout", **ONE_LAYER), f"LOS1 {model} LOS3", smoothing=0.1, total=31)
    without: dict[str, Any] = {"target": np.full((B, T), 2), "total": 31}
    yield _loss(build, "part_without_a_label", build.config(padding_id=2, **ONE_LAYER), "LOS2", **without)
    yield _loss(build, "left_padding", build.config(model_width=12, **ONE_LAYER), model, left_padding(B, S), left_padding(B, T))
    every: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
    config = build.config("feed_forward_dropout", **every, **ONE_LAYER)
    masks = parameters.flatten(sites.draw(config, B, S, T - 1, rng("keep training loss")))
    keep: dict[str, Any] = {f"keep.{name}": mask for name, mask in masks.items()}
    yield _loss(build, "keep", config, "LOS1 LOS2 DRP3 DRP4", smoothing=0.1, **keep)


def _loss(build: Builder, name: str, config: TransformerConfig, catches: str, *masks: np.ndarray, **inputs: Any) -> Case:
    drawn = tokens(config, *(masks or (ragged(B, S), ragged(B, T))))
    return build.make("training_loss", name, config, catches, **(drawn | inputs))


# one tensor of each kind that weight decay distinguishes
SHAPES = {
    "embedding.table": (11, 6), "hidden.kernel": (6, 7), "hidden.bias": (7,), "norm.scale": (6,), "norm.offset": (6,),
    "query.kernel": (6, 3, 2),
}  # fmt: skip
PAPER: dict[str, Any] = {"learning_rate": 0.03, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
PRECISE = ("float64", "float32")


def _update_cases(build: Builder) -> Iterator[Case]:
    """Yields tiny gradients, early and late steps, weight decay, all norms and warm-up phases."""
    for case in (*_adam_cases(build), *_clip_cases(build), *_noam_cases(build)):
        yield dataclasses.replace(case, dtypes=PRECISE)


def _adam_cases(build: Builder) -> Iterator[Case]:
    def case(name: str, catches: str, step: int, scale: float = 1.0, **changes: Any) -> Case:
        generator = rng(f"adam {name}")
        trees = {
            "parameters": {key: generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "gradients": {key: scale * generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "first_moment": {key: (step > 1) * scale / 3 * generator.standard_normal(shape) for key, shape in SHAPES.items()},
            "second_moment": {key: (step > 1) * scale**2 / 9 * generator.random(shape) for key, shape in SHAPES.items()},
        }
        given: dict[str, Any] = {f"{tree}.{key}": value for tree, arrays in trees.items() for key, value in arrays.items()}
        return build.make("adam", name, build.config(), catches, **given, **{"step": step, "weight_decay": 0.0} | PAPER | changes)

    yield case("first_step", "OPT2", 1)
    yield case("second_step", "OPT2", 2)
    yield case("later_step", "", 4000)
    yield case("small_gradients", "OPT1 OPT2 OPT7", 1, 1e-8)
    yield case("small_gradients_later", "OPT1 OPT2 OPT7", 3, 1e-8)
    yield case("large_epsilon", "OPT1 OPT2 OPT7", 3, 1e-3, epsilon=1e-3)
    yield case("zero_gradients", "", 3, 0.0)
    yield case("decay", "OPT2 OPT3 OPT4 OPT6", 3, weight_decay=0.1)
    yield case("decay_of_small_gradients", "OPT1 OPT2 OPT3 OPT4 OPT6 OPT7", 3, 1e-8, weight_decay=0.1)
    yield case("no_momentum", "OPT2", 2, beta_1=0.0, beta_2=0.999)


def _clip_cases(build: Builder) -> Iterator[Case]:
    generator = rng("clip gradients")
    gradients = {f"gradients.{name}": generator.standard_normal(shape) for name, shape in SHAPES.items()}  # of norm about 11
    factors = {"above": 1.0, "below": 1.0, "zero": 0.0, "small": 1e-20, "large": 1e15}
    for name, factor in factors.items():
        given: dict[str, Any] = {key: factor * value for key, value in gradients.items()}
        yield build.make("clip_global_norm", name, build.config(), **given, limit=100.0 if name == "below" else 1.0)


def _noam_cases(build: Builder) -> Iterator[Case]:
    for name, step, warmup in (("first", 1, 4000), ("warmup", 2000, 4000), ("warmup_end", 4000, 4000), ("late", 100_000, 4000)):
        yield build.make("noam", name, build.config(), "OPT5 OPT8" if name == "late" else "OPT5", step=step, warmup=warmup)
    yield build.make("noam", "no_warmup", build.config(), "OPT5", step=1, warmup=1)
    yield build.make("noam", "trace", build.config(), "OPT5 OPT8", step=np.arange(1, 30), warmup=10)


# Large enough that statistics distinguish the formulas for fan-in and fan-out; small enough to draw often.
SIZES = {"model_width": 48, "key_size": 16, "value_size": 24, "feed_forward_width": 64, "encoder_layers": 1, "decoder_layers": 1}


def _random_cases(build: Builder) -> Iterator[Case]:
    """Yields a new model with each kind of head, and dropout of vectors and weights."""
    for dialect in ("nn_transformer", "unscaled_embedding"):
        config = build.config(dialect, source_vocabulary=97, target_vocabulary=97, **SIZES)
        yield build.make("initialise", dialect, config, "INI1 INI2", dtypes=PRECISE, seed=1007)
    alone: dict[str, Any] = {"max_positions": 32, "source_vocabulary": 97, "target_vocabulary": 97}
    for name, dialect, own in (
        ("bert", "bert_base", {"segments": 16, "classes": 32, "decoder_layers": 0}),
        ("gpt2", "gpt2_small", {"encoder_layers": 0}),
    ):
        config = build.config(dialect, **SIZES | alone | own)
        yield build.make("initialise", name, config, "INI1 INI2", dtypes=PRECISE, seed=1007)
    wide = build.config(**SIZES | {"model_width": 96, "source_vocabulary": 1009, "target_vocabulary": 1009})
    yield build.make("initialise", "wide", wide, "INI1 INI2", dtypes=PRECISE, seed=1007)
    for name, catches, shape in (("vectors", "", (48, 32, 24)), ("weights", "DRP5", (16, 6, 16, 24))):
        x = rng(f"random dropout {name}").uniform(0.5, 1.5, shape)
        yield build.make("random_dropout", name, build.config(dropout_rate=0.3), catches, dtypes=PRECISE, x=x, seed=1007)
