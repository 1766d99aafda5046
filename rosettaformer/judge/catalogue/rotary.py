"""Known bugs of RoPE: the pairs that rotate, their angles, and which tensors are rotated."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, attention, rotary
from reference_numpy.values import Heads

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call, on_result

Parts = tuple[Array, Array, Array]  # queries, keys and values
ROTATED, ROTATION, FREQUENCIES = "rotary.rotated", "rotary.rotation", "rotary.rotary_frequencies"
LAYOUTS = {"halves": "interleaved", "interleaved": "halves"}


def of_self_attention(parts: Callable[..., Parts]) -> Replaces:
    """Replaces the queries, keys and values of self-attention with RoPE.

    parts: a function of the parameters, the config, the inputs of queries and keys, and the
    rotation.
    """

    def project(original: Callable, parameters: Any, config: Any, query_btd: Array, memory_bsd: Array, rotation: Any = None) -> Heads:
        if rotation is None:
            return original(parameters, config, query_btd, memory_bsd, rotation)
        return Heads(*parts(parameters, config, query_btd, memory_bsd, rotation), parameters.get("sink"))

    return {"attention.project": project}


def turned_parts(turn: Callable[[Any, Parts], Parts]) -> Replaces:
    """Changes which parts are rotated, and how.

    turn: a function of (a function that rotates an array, with optional sign and factor) and of the
    three parts.
    """

    def parts(parameters: Any, config: Any, query_btd: Array, memory_bsd: Array, rotation: rotary.Rotation) -> Parts:
        def rotated(x_bthk: Array, sign: float = 1.0, factor: float = 1.0) -> Array:
            number = rotation.sine_btj.dtype.type
            own = rotary.Rotation(rotation.cosine_btj * number(factor), rotation.sine_btj * number(sign * factor))
            return rotary.rotated(x_bthk, own, config.rotary_layout)

        norm, after = attention.query_key_norm, config.query_key_norm_after_rotation
        with patched({"attention.query_key_norm": lambda original, parameters, config, name, x_bthk: x_bthk} if after else {}):
            key_bsgk, value_bsge = attention.keys_and_values(parameters, config, memory_bsd)
            turned = turn(rotated, (attention.queries(parameters, config, query_btd), key_bsgk, value_bsge))
        if not after:
            return turned
        query_bthk, key_bsgk, value_bsge = turned
        return norm(parameters, config, "query", query_bthk), norm(parameters, config, "key", key_bsgk), value_bsge

    return of_self_attention(parts)


def _permuted(names: tuple[str, ...], inverse: bool = False, heads: bool = True) -> Replaces:
    """Permutes kernels for the other layout. inverse: the wrong way. heads: per head."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array, rotation: Any) -> Array:
        if config.positions != "rotary" or name not in names:
            return original(parameters, config, name, x_bthk, rotation)
        whole = not heads and config.rotary_size == config.key_size
        flat = x_bthk.reshape(*x_bthk.shape[:2], 1, -1) if whole else x_bthk
        size = flat.shape[3] if whole else config.rotary_size
        order = np.arange(size).reshape(-1, 2).T.ravel()  # interleaved pairs, reordered to halves
        if (config.rotary_layout == "interleaved") != inverse:
            order = np.argsort(order)
        read = np.concatenate([flat[..., :size][..., order], flat[..., size:]], axis=-1).reshape(x_bthk.shape)
        return original(parameters, config, name, read, rotation)

    return {"attention.placed": altered}


def _regrouped(name: str, heads: Callable[[Any], int]) -> Replaces:
    """Permutes a kernel for the other layout with a wrong number of heads."""

    def altered(original: Callable, parameters: Any, config: Any, own: str, x_bthk: Array, rotation: Any) -> Array:
        count = heads(config) if own == name else 0
        own_count, size = x_bthk.shape[2], x_bthk.shape[2] * x_bthk.shape[3]
        if not count or config.positions != "rotary" or config.rotary_size != config.key_size or count == own_count or size % (2 * count):
            return original(parameters, config, own, x_bthk, rotation)
        wrong, right = (np.arange(size).reshape(number, 2, -1).swapaxes(1, 2).ravel() for number in (count, own_count))
        if config.rotary_layout == "interleaved":
            wrong, right = np.argsort(wrong), np.argsort(right)
        read = x_bthk.reshape(*x_bthk.shape[:2], size)[..., wrong][..., np.argsort(right)]
        return original(parameters, config, own, read.reshape(x_bthk.shape), rotation)

    return {"attention.placed": altered}


def _all_of_a_head(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    fits = config.key_size % 2 == 0 and kind.scaling.kind != "longrope"
    return original(config.replace(rotary_fraction=1.0) if fits else config, kind, position_bt, dtype)


def _frequencies_of_a_head(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    if kind.scaling.kind == "longrope":
        return original(config, kind, position_bt, dtype)

    def first(frequencies: Callable, size: int, *rest: Any) -> Array:
        return frequencies(config.key_size, *rest)[: size // 2]

    with patched({FREQUENCIES: first}):
        return original(config, kind, position_bt, dtype)


def _last_features(original: Callable, x_bthk: Array, turned: Any, layout: str) -> Array:
    kept = x_bthk.shape[3] - 2 * turned.cosine_btj.shape[-1]
    return np.concatenate([x_bthk[..., :kept], original(x_bthk[..., kept:], turned, layout)], axis=-1)


def of_kind(change: Callable[[Any, Any], Any]) -> Replaces:
    """Rotates like another kind of layer: a function of the config and the kind."""
    return {ROTATION: on_call(lambda config, kind, **others: {"kind": change(config, kind)})}


def exchanged(one: Any, other: Any, value: Any) -> Any:
    """Returns `other` for `one`, `one` for `other`, and any third value unchanged."""
    return other if value == one else one if value == other else value


def _turned(change: Callable[[Array, Array], tuple[Array, Array]]) -> Replaces:
    """Multiplies by other cosines and sines: a function of the correct ones."""
    return {ROTATED: on_arguments(turned=lambda turned: rotary.Rotation(*change(*turned)))}


def _without_minus(original: Callable, x_bthk: Array, turned: Any, layout: str) -> Array:
    y_bthk, back_bthk = original(x_bthk, turned, layout), original(x_bthk, turned._replace(sine_btj=-turned.sine_btj), layout)
    first, _ = rotary.pairs(layout, turned.cosine_btj.shape[-1])
    y_bthk[..., first] = back_bthk[..., first]
    return y_bthk


def _narrow_angles(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    if not arithmetic.is_half(dtype):
        return original(config, kind, position_bt, dtype)
    length, wide = int(position_bt.max(initial=0)) + 1, np.float32
    frequency_j = rotary.rotary_frequencies(config.rotary_size, kind.base, kind.scaling, length, wide)
    angle_btj = (position_bt[..., None].astype(dtype) * frequency_j.astype(dtype)).astype(wide)
    factor = wide(kind.scaling.attention_factor or 1)
    return rotary.Rotation(np.cos(angle_btj) * factor, np.sin(angle_btj) * factor)


def _narrow_frequencies(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> Any:
    rounded = on_result(lambda frequency_j: frequency_j.astype(dtype).astype(frequency_j.dtype))
    with patched({FREQUENCIES: rounded}):
        return original(config, kind, position_bt, dtype)


def _pattern(change: Callable[[tuple[bool, ...]], tuple[bool, ...]]) -> Replaces:
    """Changes the pattern of layers with and without RoPE."""

    def other(config: Any) -> Any:
        differ = len(set(config.rotary_pattern)) > 1
        return config.replace(rotary_pattern=change(config.rotary_pattern)) if differ else config

    return {"stacks.rotation": on_arguments(config=other)}


ALTERED: Altered = {
    "ROT1": {ROTATED: on_arguments(layout=LAYOUTS.get)},
    "ROT2": {ROTATION: _all_of_a_head},
    "ROT3": {FREQUENCIES: on_arguments(base=10000.0)},
    "ROT4": of_kind(lambda config, kind: kind._replace(base=config.rotary_base)),
    "ROT5": _turned(lambda cosine_btj, sine_btj: (cosine_btj, -sine_btj)),
    "ROT6": turned_parts(lambda rotated, parts: tuple(map(rotated, parts))),
    "ROT7": turned_parts(lambda rotated, parts: (rotated(parts[0]), *parts[1:])),
    "ROT8": {ROTATION: _narrow_angles},
    "ROT9": {ROTATION: _narrow_frequencies},
    "ROT10": _pattern(lambda pattern: (True,)),
}
VARIANTS: Variants = {
    "ROT1": {
        "query and key kernels are permuted for the other RoPE layout twice, or the wrong way": _permuted(("query", "key"), True),
        "only the key kernel is permuted for the other RoPE layout": _permuted(("key",)),
        "only the query kernel is permuted for the other RoPE layout": _permuted(("query",)),
        "the key kernel is permuted for the other RoPE layout as a single head": _permuted(("key",), heads=False),
        "the key kernel is permuted for the other RoPE layout with the head count of a group": _regrouped(
            "key", lambda config: config.heads // config.key_value_heads
        ),
        "the key kernel is permuted for the other RoPE layout with the query's head count": _regrouped("key", lambda config: config.heads),
        "the key kernel is permuted for the other RoPE layout with a head count of 1": _regrouped("key", lambda config: 1),
    },
    "ROT2": {
        "the RoPE frequencies are those of the whole head, base^(-2j/k)": {ROTATION: _frequencies_of_a_head},
        "RoPE rotates the last features of a head instead of the first": {ROTATED: _last_features},
    },
    "ROT3": {"the RoPE exponents are -j/n instead of -2j/n": {FREQUENCIES: on_arguments(base=lambda base: base**0.5)}},
    "ROT4": {
        "global layers use the RoPE base of the local layers": of_kind(lambda config, kind: kind._replace(base=config.local_rotary_base)),
        "the RoPE bases of local and global layers are swapped": of_kind(
            lambda config, kind: kind._replace(base=exchanged(config.rotary_base, config.local_rotary_base, kind.base))
        ),
    },
    "ROT5": {
        "rotate_half lacks its minus sign": {ROTATED: _without_minus},
        "the RoPE sine and cosine are swapped": _turned(lambda cosine_btj, sine_btj: (sine_btj, cosine_btj)),
        "the keys rotate in the opposite way": turned_parts(lambda rotated, parts: (rotated(parts[0]), rotated(parts[1], -1.0), parts[2])),
    },
    "ROT7": {
        "the queries are not rotated": turned_parts(lambda rotated, parts: (parts[0], rotated(parts[1]), parts[2])),
        "neither queries nor keys are rotated": turned_parts(lambda rotated, parts: parts),
    },
    "ROT10": {"the layers with and without RoPE are swapped": _pattern(lambda pattern: tuple(not rotates for rotates in pattern))},
}
