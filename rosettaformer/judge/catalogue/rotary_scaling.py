"""Known bugs of RoPE scaling: missing, in the wrong layers, with the wrong parameters."""

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
    """Replaces the scaling by a function of it, if it is one of these kinds."""
    return {FREQUENCIES: on_arguments(scaling=lambda scaling: change(scaling) if scaling.kind in kinds else scaling)}


def _replaced(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replaces these parameters of a scaling, each by a function of that scaling."""
    return lambda scaling: dataclasses.replace(scaling, **{name: change(scaling) for name, change in changes.items()})


def _factor(change: Callable[[Any], float]) -> Replaces:
    """Replaces the attention factor, if there is one, by a function of the scaling."""

    def own(config: Any, kind: Any) -> Any:
        scaling = kind.scaling
        return kind if scaling.attention_factor is None else kind._replace(scaling=_replaced(attention_factor=change)(scaling))

    return of_kind(own)


def _unscaled_steps(unscaled: Callable[[int], bool]) -> Replaces:
    """Skips the scaling in some decoding steps: number of earlier tokens -> whether to skip."""

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
    """YaRN's default attention factor; for other scalings, their own."""
    return 0.1 * math.log(scaling.factor) + 1 if scaling.kind == "yarn" else scaling.attention_factor


def _of_queries(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    """Multiplies the rotation by the root of the attention factor."""
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
        "RoPE scaling is missing for the prompt, but applied in later steps": _unscaled_steps(lambda past: past == 0),
        "RoPE scaling is applied to the prompt, but missing in later steps": _unscaled_steps(lambda past: past > 0),
        "RoPE scaling is skipped for texts up to the original length": {FREQUENCIES: on_call(_within_original)},
    },
    "RSC2": {
        "the RoPE scalings of local and global layers are swapped": of_kind(
            lambda config, kind: kind._replace(scaling=exchanged(config.rotary_scaling, config.local_rotary_scaling, kind.scaling))
        )
    },
    "RSC4": {
        "the RoPE ramp swaps kept and scaled frequencies": {KEPT: on_result(lambda kept_j: kept_j.dtype.type(1) - kept_j)},
        "RoPE scaling has no ramp: every frequency not fully kept is fully scaled": {KEPT: on_result(np.floor)},
        "2 pi is missing in Llama 3's wavelengths": {
            KEPT: on_arguments(frequency_j=lambda frequency_j: frequency_j * frequency_j.dtype.type(2 * math.pi))
        },
    },
    "RSC5": {
        "the attention factor multiplies only the queries": {ROTATION: _of_queries},
        "the attention factor is applied twice": _factor(lambda scaling: scaling.attention_factor**2),
        "the attention factor is 0.1 ln(factor) + 1 regardless of the config": _factor(_of_yarn),
    },
    "RSC6": {
        "YaRN's ramp uses beta_fast = 32 and beta_slow = 1 regardless of the config": _scaling(
            _replaced(beta_fast=lambda scaling: 32.0, beta_slow=lambda scaling: 1.0), "yarn"
        )
    },
    "RSC7": {
        "LongRoPE's length is the call's token count instead of the largest position plus 1": {ROTATION: _by_tokens},
    },
    "RSC8": {
        "LongRoPE uses the long factors at exactly the original length": {
            FREQUENCIES: on_call(lambda length, scaling, **others: {"length": length + (scaling.kind == "longrope")})
        },
    },
}
