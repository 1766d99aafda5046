"""Settings of decoders since Llama: entries of a folder's config that ports take otherwise, and other readings of its tensors."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .alteration import CONFIGURED, LOADED, Alteration, setting
from .combinators import on_arguments, on_call
from .kernels import FUSED, SITES

Tree = Mapping[str, Any]
RMS = "normalization.rms_norm"
EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12)
FRACTIONS = (0.25, 0.5, 0.75)
# a window as a function of the config's
WINDOWS: dict[str, Callable[[int], int]] = {"half as long": lambda window: max(window // 2, 1), "twice as long": lambda window: 2 * window}


def readings() -> Iterator[Alteration]:
    """Yields the settings."""
    fix = "give the norm the config's epsilon (rms_norm_eps)"
    for value in EPSILONS:
        title, altered = f"epsilon of the RMS norm is {value:g}", on_arguments(epsilon=value)
        yield setting(f"rms_norm.epsilon={value:g}", "rms_norm", title, fix, altered, RMS, elsewhere=CONFIGURED)
    title, altered = "the RMS norm's scale is not applied", on_arguments(parameters=_neutral)
    yield setting("rms_norm.scale=none", "rms_norm", title, "multiply by the norm's scale", altered, RMS, elsewhere=LOADED)
    title, fix = "1 is added twice to the norm's scale: in the loaded weights and in the norm", "add 1 once"
    yield setting("norm.scale=2+", "rms_norm", title, fix, on_call(_twice_one), RMS, elsewhere=LOADED)
    for fraction in FRACTIONS:
        title, fix = f"a part of {fraction:g} of each head rotates", "rotate the config's partial_rotary_factor of each head"
        altered = on_arguments(config=lambda config, fraction=fraction: _with_fraction(config, fraction))
        yield setting(f"rotary_fraction={fraction:g}", "rotary_embedding", title, fix, altered, "rotary.rotation", elsewhere=CONFIGURED)
    title, fix = (
        "the attention is scaled by 1 / sqrt(width / heads)",
        "scale by the size of a head, or by the config's query_pre_attn_scalar",
    )
    altered = on_arguments(config=lambda config: config and config.replace(score_scale=(config.model_width // config.heads) ** -0.5))
    yield setting("score_scale=width / heads", "multi_head_attention", title, fix, altered, "attention._settings", elsewhere=CONFIGURED)
    for name, change in WINDOWS.items():
        title, fix = f"the window is {name}", "use the config's sliding_window"
        yield setting(f"window={name}", "window_mask", title, fix, on_arguments(window=change), elsewhere=CONFIGURED)
    fix = "split the fused kernel in the order query, key, value"
    for order in itertools.permutations(FUSED):
        if order != FUSED:
            words = ", ".join(order)
            title, altered = f"a fused kernel of query, key and value is split as {words}", on_arguments(parameters=_split(order))
            yield setting(
                f"fused={' '.join(order)}", "multi_head_attention", title, fix, altered, *SITES, elsewhere=LOADED,
            )  # fmt: skip


def _neutral(parameters: Tree) -> Tree:
    return dict(parameters) | {"scale": np.ones_like(parameters["scale"])}


def _twice_one(parameters: Tree, one_plus_scale: bool, **others: Any) -> dict[str, Any]:
    scale = parameters["scale"]
    return {"parameters": dict(parameters) | {"scale": scale + scale.dtype.type(1)}} if one_plus_scale else {}


def _with_fraction(config: Any, fraction: float) -> Any:
    size = int(config.key_size * fraction)
    fits = size >= 2 and size % 2 == 0 and config.rotary_scaling.kind != "longrope"
    return config.replace(rotary_fraction=fraction) if fits else config


def _split(order: tuple[str, ...]) -> Callable[[Tree], Tree]:
    """Reads the columns query | key | value in another order, each as wide as it is, where groups have heads of one size."""

    def read(parameters: Tree) -> Tree:
        if len({parameters[name]["kernel"].shape[1:] for name in FUSED}) == 1:
            return parameters  # `projections=` is about these
        found: dict[str, dict[str, np.ndarray]] = {name: {} for name in FUSED}
        for leaf in parameters["query"]:
            shapes = {name: parameters[name][leaf].shape for name in FUSED}
            outer = len(shapes["query"]) - 2
            fused = np.concatenate([parameters[name][leaf].reshape(*shapes[name][:outer], -1) for name in FUSED], axis=-1)
            widths = [int(np.prod(shapes[name][outer:])) for name in order]
            for name, part in zip(order, np.split(fused, np.cumsum(widths)[:-1], axis=-1), strict=True):
                found[name][leaf] = part.reshape(shapes[name])
        return dict(parameters) | found

    return read
