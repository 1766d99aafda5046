"""Cases of the loss: on given logits, and of the whole model."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng
from .transformer import ONE_LAYER, tokens

V = 5  # few enough tokens that each one's share shows what smoothing does to it
SMOOTHED, PADDED, PART = "LOS1 LOS8 LOS9 LOS10", "LOS1 LOS2 LOS7 LOS8 LOS9 LOS10", "LOS1 LOS2 LOS3 LOS8 LOS9 LOS10"


def cases(build: Builder) -> Iterator[Case]:
    """Yields smoothing from none to much, ragged rows and rows without a label, part of a batch, large logits; every model dialect."""
    yield from _cross_entropy_cases(build)
    yield from _training_loss_cases(build)


def _cross_entropy_cases(build: Builder) -> Iterator[Case]:
    label = rng("loss labels").integers(0, V, (B, T))
    unequal = ragged(B, T)
    some = np.where(left_padding(B, T), label, 0)  # a row of padding only

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
    yield case("all_equal", "LOS3", logits_btv=np.full((B, T, V), 2.5), smoothing=0.1, total=7)
    for dtype in ("int32", "uint8"):
        yield case(f"{dtype}_labels", SMOOTHED, label_bt=label.astype(dtype), smoothing=0.1)
    yield case("one_label", "", logits_btv=(1, 1, V), label_bt=label[:1, :1])
    many = rng("loss many").integers(0, 997, (2, 50))
    yield case("many_tokens", "", logits_btv=(2, 50, 997), label_bt=many, smoothing=0.9, mask_bt=ragged(2, 50))


def _training_loss_cases(build: Builder) -> Iterator[Case]:
    model = "LOS2 LOS4 LOS5 LOS6"
    for dialect in ("paper_base", "semillero", "guide", "keras_lab", "sapiens"):
        config = build.config(dialect, **ONE_LAYER)
        yield _model(build, dialect, config, f"LOS1 LOS7 LOS8 {model}", smoothing=0.1)
    tiny = build.config("paper_base", source_vocabulary=V, target_vocabulary=V, **ONE_LAYER)
    yield _model(build, "few_tokens", tiny, f"LOS1 LOS9 LOS10 {model}", smoothing=0.1)
    yield _model(build, "unsmoothed", build.config(**ONE_LAYER), model)
    yield _model(build, "part_of_a_batch", build.config("sapiens", **ONE_LAYER), f"LOS1 {model} LOS3", smoothing=0.1, total=31)
    without: dict[str, Any] = {"target": np.full((B, T), 2), "total": 31}
    yield _model(build, "part_without_a_label", build.config(padding_id=2, **ONE_LAYER), "LOS2", **without)
    yield _model(build, "left_padding", build.config(model_width=12, **ONE_LAYER), model, left_padding(B, S), left_padding(B, T))
    every: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
    config = build.config("sapiens", **every, **ONE_LAYER)
    masks = parameters.flatten(sites.draw(config, B, S, T - 1, rng("keep training loss")))
    keep: dict[str, Any] = {f"keep.{name}": mask for name, mask in masks.items()}
    yield _model(build, "keep", config, "LOS1 LOS2 DRP3 DRP4", smoothing=0.1, **keep)


def _model(build: Builder, name: str, config: TransformerConfig, catches: str, *masks: np.ndarray, **inputs: Any) -> Case:
    drawn = tokens(config, *(masks or (ragged(B, S), ragged(B, T))))
    return build.make("training_loss", name, config, catches, **(drawn | inputs))
