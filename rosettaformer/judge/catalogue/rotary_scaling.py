"""Defects of the scaling of rotary frequencies: whether it is there, of which layers, with which numbers."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy.rotary_scaling import RotaryScaling

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call, on_result
from .rotary import FREQUENCIES, ROTATION, exchanged, of_kind

NONE, KEPT, STEP = RotaryScaling(), "rotary.kept", "cache.decode_step"


def _scaling(change: Callable[[Any], Any], *kinds: str) -> Replaces:
    """Scales frequencies otherwise, by a function of the scaling, if it is of one of these kinds."""
    return {FREQUENCIES: on_arguments(scaling=lambda scaling: change(scaling) if scaling.kind in kinds else scaling)}


def _replaced(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replaces these parameters of a scaling, each by a function of the scaling."""
    return lambda scaling: dataclasses.replace(scaling, **{name: change(scaling) for name, change in changes.items()})


def _factor(change: Callable[[Any], float]) -> Replaces:
    """Multiplies cosine and sine by another number, a function of the scaling, where they are multiplied."""

    def own(config: Any, kind: Any) -> Any:
        scaling = kind.scaling
        return kind if scaling.attention_factor is None else kind._replace(scaling=_replaced(attention_factor=change)(scaling))

    return of_kind(own)


def _unscaled_steps(unscaled: Callable[[int], bool]) -> Replaces:
    """Leaves the scaling out in those steps of decoding of which a function of the number of tokens before says so."""

    def change(config: Any, cache: Any, **others: Any) -> dict[str, Any]:
        left_out = unscaled(cache.target_mask_bt.shape[1])
        return {"config": config.replace(rotary_scaling=NONE, local_rotary_scaling=NONE)} if left_out else {}

    return {STEP: on_call(change)}


def _within_original(length: int, scaling: Any, **others: Any) -> dict[str, Any]:
    within = scaling.kind in ("llama3", "yarn") and length <= scaling.original_length
    return {"scaling": NONE} if within else {}


def _by_tokens(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    with patched({FREQUENCIES: on_arguments(length=position_bt.shape[-1])}):
        return original(config, kind, position_bt, dtype)


def _largest_base(size: int, base: float, scaling: Any, **others: Any) -> dict[str, Any]:
    return {"scaling": NONE, "base": base * scaling.factor ** (size / (size - 2))} if scaling.kind == "dynamic" else {}


def _of_yarn(scaling: Any) -> float:
    """The attention factor that YaRN has by default; of another scaling its own."""
    return 0.1 * math.log(scaling.factor) + 1 if scaling.kind == "yarn" else scaling.attention_factor


def _of_queries(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    """The rotation by the root of the attention factor, so that the logits have it once."""
    factor = kind.scaling.attention_factor
    own = kind if factor is None else kind._replace(scaling=dataclasses.replace(kind.scaling, attention_factor=factor**0.5))
    return original(config, own, position_bt, dtype)


ALTERED: Altered = {
    "RSC1": of_kind(lambda config, kind: kind._replace(scaling=NONE)),
    "RSC2": of_kind(lambda config, kind: kind._replace(scaling=config.rotary_scaling)),
    "RSC3": _scaling(_replaced(factor=lambda scaling: 1 / scaling.factor), "linear", "llama3", "yarn"),
    "RSC4": _scaling(lambda scaling: RotaryScaling(kind="linear", factor=scaling.factor), "llama3", "yarn"),
    "RSC5": _factor(lambda scaling: 1.0),
    "RSC6": _scaling(_replaced(truncate=lambda scaling: not scaling.truncate), "yarn"),
    "RSC7": _scaling(_replaced(long_factors=lambda scaling: scaling.short_factors), "longrope"),
    "RSC8": _scaling(_replaced(short_factors=lambda scaling: scaling.long_factors), "longrope"),
    "RSC9": {FREQUENCIES: on_call(_largest_base)},
}
VARIANTS: Variants = {
    "RSC1": {
        "the prompt's keys are not scaled, those of the steps after it are": _unscaled_steps(lambda past: past == 0),
        "the prompt's keys are scaled, those of the steps after it are not": _unscaled_steps(lambda past: past > 0),
        "texts that are not longer than the original length are not scaled": {FREQUENCIES: on_call(_within_original)},
    },
    "RSC2": {
        "local layers alone have the scaling of the global ones": of_kind(
            lambda config, kind: kind._replace(scaling=exchanged(config.rotary_scaling, config.local_rotary_scaling, kind.scaling))
        )
    },
    "RSC4": {
        "what is kept is scaled, and the reverse": {KEPT: on_result(lambda kept_j: kept_j.dtype.type(1) - kept_j)},
        "there is no ramp: what is not wholly kept is wholly scaled": {KEPT: on_result(np.floor)},
        "2 pi is missing in the waves of llama3": {
            KEPT: on_arguments(frequency_j=lambda frequency_j: frequency_j * frequency_j.dtype.type(2 * math.pi))
        },
    },
    "RSC5": {
        "the attention factor multiplies the logits once: queries alone": {ROTATION: _of_queries},
        "the attention factor is applied twice": _factor(lambda scaling: scaling.attention_factor**2),
        "the attention factor is 0.1 ln(factor) + 1, whatever the config says": _factor(_of_yarn),
    },
    "RSC6": {
        "the bounds are those of 32 turns and of 1, whatever the config says": _scaling(
            _replaced(beta_fast=lambda scaling: 32.0, beta_slow=lambda scaling: 1.0), "yarn"
        )
    },
    "RSC7": {
        "the length is the number of tokens that are read, not the largest position and 1": {ROTATION: _by_tokens},
    },
    "RSC8": {
        "a text of exactly the original length has the long factors": {
            FREQUENCIES: on_call(lambda length, scaling, **others: {"length": length + (scaling.kind == "longrope")})
        },
    },
}
