"""Known bugs of the query and key norms: place, axes, parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import normalization

from .alteration import Altered, Array, Replaces, Variants, on_arguments

NORM = "attention.query_key_norm"


def _order(after: bool) -> Replaces:
    """Normalizes queries and keys after or before the rotation."""
    return {"attention.placed": on_arguments(config=lambda config: config.replace(query_key_norm_after_rotation=after))}


def _normed(change: Callable[..., Array]) -> Replaces:
    """Replaces the query and key norms by a function of the correct norm and its arguments."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array) -> Array:
        if config.query_key_norm == "none":
            return x_bthk
        return change(original, parameters, config, name, x_bthk)

    return {NORM: altered}


def _over_each_head(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array) -> Array:
    if config.query_key_norm != "width":
        return original(parameters, config, name, x_bthk)
    heads, size = x_bthk.shape[2:]
    own = {leaf: value.reshape(heads, size) for leaf, value in parameters.get(f"{name}_norm", {}).items()}
    normed = [normalization.norm({leaf: value[head] for leaf, value in own.items()}, config, x_bthk[:, :, head]) for head in range(heads)]
    return np.stack(normed, axis=2)


def _over_all_heads(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array) -> Array:
    if config.query_key_norm == "width":
        return original(parameters, config, name, x_bthk)
    count = x_bthk.shape[2] if config.query_key_norm == "head" else 1
    alike = {leaf: np.tile(value, (count, 1)) for leaf, value in parameters.get(f"{name}_norm", {}).items()}
    return original({f"{name}_norm": alike}, config.replace(query_key_norm="width"), name, x_bthk)


def _first_scale(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array) -> Array:
    if config.query_key_norm != "each_head":
        return original(parameters, config, name, x_bthk)
    first = {leaf: value[0] for leaf, value in parameters.get(f"{name}_norm", {}).items()}
    return original({f"{name}_norm": first}, config.replace(query_key_norm="head"), name, x_bthk)


def _missing(*names: str) -> Replaces:
    """Skips these norms."""
    return _normed(
        lambda original, parameters, config, name, x_bthk: x_bthk if name in names else original(parameters, config, name, x_bthk)
    )


def _read(**others: str) -> Replaces:
    """Gives these norms the parameters of other norms, if the shapes are equal."""

    def read(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array) -> Array:
        own, other = (parameters.get(f"{each}_norm", {}) for each in (name, others.get(name, name)))
        same = all(own[leaf].shape == other[leaf].shape for leaf in own)
        return original({**parameters, f"{name}_norm": other if same else own}, config, name, x_bthk)

    return _normed(read)


ALTERED: Altered = {
    "QKN1": _order(after=True),
    "QKN2": _normed(_over_each_head),
    "QKN3": _missing("query", "key"),
    "QKN4": _read(query="key", key="query"),
    "QKN5": _normed(_over_all_heads),
    "QKN6": _order(after=False),
    "QKN7": _normed(_first_scale),
}
VARIANTS: Variants = {
    "QKN3": {f"the norm of {words} is missing": _missing(name) for name, words in (("query", "queries"), ("key", "keys"))},
    "QKN4": {"the query norm also serves the keys": _read(key="query"), "the key norm also serves the queries": _read(query="key")},
}
