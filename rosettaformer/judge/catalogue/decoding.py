"""Known bugs of decoding (cache, token choice, beam search); settings of incremental decoding."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import beams, softmax
from reference_numpy.cache import Cache, KeyValues
from reference_numpy.values import Attending

from .alteration import Alteration, Altered, Array, Variants, on_arguments, on_call, on_result, setting, settings
from .beam_settings import ends_among, penalised_by
from .choice_settings import cut

STEP = "cache.decoder_layer_step"
Chosen = Callable[[int], Array]  # number of cached tokens -> indices that are read


def numbered(number: Callable[[Array, int], Array]) -> Mapping[str, Callable]:
    """Changes the positions of steps: (positions `b t`, number of earlier tokens) -> positions."""

    def altered(original: Callable, config: Any, read_bt: Array, length: int) -> Array:
        return number(original(config, read_bt, length), read_bt.shape[1] - length)

    return {"cache.positions": altered}


def with_mask(change: Callable[[Array, int], Array]) -> Mapping[str, Callable]:
    """Changes the target mask of steps: (mask `b 1 1 s`, number of earlier tokens) -> mask."""

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, cache: Any, attending: Attending, *rest: Any) -> Any:
        if (mask_bhts := attending.mask_bhts) is not None:
            attending = attending._replace(mask_bhts=change(mask_bhts, mask_bhts.shape[-1] - x_btd.shape[1]))
        return original(parameters, config, x_btd, cache, attending, *rest)

    return {STEP: altered}


def seeing(keys: Chosen, values: Chosen | None = None) -> Callable:
    """Attends to these cached tokens and to the step's own tokens."""

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, cache: Any, attending: Attending, *rest: Any) -> Any:
        old, own = cache["self_attention"], np.arange(x_btd.shape[1])
        count = old[0].shape[1]
        chosen = keys(count), (values or keys)(count)
        if attending.mask_bhts is not None:
            attending = attending._replace(mask_bhts=attending.mask_bhts[..., np.concatenate([chosen[0], count + own])])
        read = KeyValues(*(array[:, index] for array, index in zip(old, chosen, strict=True)))
        y_btd, new = original(parameters, config, x_btd, {**cache, "self_attention": read}, attending, *rest)
        last = (array[:, len(index) :] for array, index in zip(new["self_attention"], chosen, strict=True))
        return y_btd, {**new, "self_attention": old.update(*last)}

    return altered


_SEEN: dict[str, tuple[str, Chosen, Chosen | None]] = {
    "none": ("a decoding step does not see earlier tokens", lambda count: np.arange(0), None),
    "last": ("a decoding step sees only the last earlier token", lambda count: np.arange(count)[-1:], None),
    "first": ("a decoding step sees only the first earlier token", lambda count: np.arange(count)[:1], None),
    "all but the first": ("a decoding step does not see the first token", lambda count: np.arange(count)[1:], None),
    "all but the last": ("a decoding step does not see the previous token", lambda count: np.arange(count)[:-1], None),
    "last repeated": ("the cache holds the last token twice and lacks the first",
                      lambda count: np.minimum(np.arange(count) + 1, count - 1), None),
    "values before": ("the cached values are one place ahead of their keys", np.arange, lambda count: np.roll(np.arange(count), -1)),
    "values behind": ("the cached values are one place behind their keys", np.arange, lambda count: np.roll(np.arange(count), 1)),
    "values reversed": ("the cached values are in reverse order", np.arange, lambda count: np.arange(count)[::-1]),
}  # fmt: skip


def _memory_of(choose: Callable[[int, int], int]) -> Callable[[Cache], Cache]:
    """Gives every layer another layer's memory keys and values: (layer, layer count) -> layer."""

    def change(cache: Cache) -> Cache:
        layers = cache.layers
        if not layers or "cross_attention" not in layers[0]:
            return cache
        others = [layers[choose(index, len(layers))]["cross_attention"] for index in range(len(layers))]
        return cache._replace(layers=[{**layer, "cross_attention": other} for layer, other in zip(layers, others, strict=True)])

    return change


def caches() -> Iterator[Alteration]:
    """Yields the settings of incremental decoding."""
    fix = "append every step's keys and values, and attend to all of them"
    for name, (title, keys, values) in _SEEN.items():
        yield setting(f"cache={name}", "decode_in_steps", title, fix, seeing(keys, values), STEP)
    fix = "cache each layer's own keys and values of the memory"
    memories: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "of the first layer": ("every layer uses the first layer's keys and values of the memory", _memory_of(lambda own, count: 0)),
        "of the last layer": ("every layer uses the last layer's keys and values of the memory",
                              _memory_of(lambda own, count: count - 1)),
    }  # fmt: skip
    yield from settings("memory=", "decode_in_steps", fix, memories, "cache.start_cache", of=on_result)
    title, altered = "every row attends to the first row's memory", on_arguments(memory_bsd=_first_row)
    yield setting("memory=of the first row", "decode_in_steps", title, "give every row its own memory", altered, "cache.start_cache")


def _first_row(memory_bsd: Any) -> Any:
    return None if memory_bsd is None else np.repeat(memory_bsd[:1], len(memory_bsd), axis=0)


def _always_divided(
    original: Callable, scores_bv: np.ndarray, token_bn: np.ndarray, repetition_penalty: float = 1.0, no_repeat_ngram: int = 0,
    mask_bn: Any = None,
) -> np.ndarray:  # fmt: skip
    held_bv = original(np.ones_like(scores_bv), token_bn, 2.0, 0, mask_bn) < 1
    divided_bv = np.where(held_bv, scores_bv / scores_bv.dtype.type(repetition_penalty), scores_bv)
    return original(divided_bv, token_bn, 1.0, no_repeat_ngram, mask_bn)


def _temperature_last(original: Callable, logits_bv: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Any:
    return original(original(logits_bv, 1.0, top_k, top_p), temperature)


def _before_the_crossing_one(x_bv: np.ndarray, top_p: float) -> np.ndarray:
    return (np.cumsum(softmax.softmax(x_bv), axis=1) <= top_p) | (np.arange(x_bv.shape[1]) == 0)


def _bound_of_this_length(original: Callable, live: list[beams.Beam], kept: list[beams.Beam], strategy: Any) -> bool:
    return original(live, kept, strategy.replace(max_new_tokens=max(len(live[0].tokens), strategy.min_new_tokens + 1)))


def _places_after_the_first(original: Callable, config: Any, read_bt: np.ndarray, length: int) -> np.ndarray:
    past = read_bt.shape[1] - length
    return np.broadcast_to(np.arange(past, past + length), (len(read_bt), length)) if past else original(config, read_bt, length)


ALTERED: Altered = {
    "PE13": {"cache.positions": on_call(lambda read_bt, length, **others: {"read_bt": read_bt[:, -length:]})},
    "GEN1": penalised_by(lambda n, alpha: n**alpha),
    "GEN2": {"beams.stops": _bound_of_this_length},
    "GEN3": {"sampling.truncate": _temperature_last},
    "GEN4": {"sampling.truncate": cut(_before_the_crossing_one)},
    "GEN5": {"cache.reorder": lambda original, cache, row_b: cache},
    "GEN6": {"cache.start_cache": on_arguments(source_mask_bs=None)},
    "GEN7": {"sampling.penalise": _always_divided},
    "GEN8": penalised_by(lambda n, alpha: ((4 + n) / 6) ** alpha),
    "GEN9": with_mask(lambda mask, past: np.ones_like(mask)),
    "GEN10": ends_among(lambda size: 2 * size),
}
VARIANTS: Variants = {
    "PE13": {
        "positions in later steps are too small by 1": numbered(lambda position_bt, past: np.maximum(position_bt - (past > 0), 0)),
        "positions in later steps are too large by 1": numbered(lambda position_bt, past: position_bt + (past > 0)),
        "later steps count left padding as positions, the first step does not": {"cache.positions": _places_after_the_first},
    },
    "GEN1": {
        "the score is multiplied by the length penalty": penalised_by(lambda n, alpha: ((5 + n) / 6) ** -alpha),
        "the length penalty is alpha times (5 + n) / 6": penalised_by(lambda n, alpha: alpha * (5 + n) / 6 if alpha else 1.0),
        "the length penalty is (5 + n)^alpha": penalised_by(lambda n, alpha: (5 + n) ** alpha),
        "the length penalty is (5 + n)^alpha / 6": penalised_by(lambda n, alpha: (5 + n) ** alpha / 6),
        "the length penalty is ((5 + n) / 5)^alpha": penalised_by(lambda n, alpha: ((5 + n) / 5) ** alpha),
        "the length penalty is the length regardless of alpha": penalised_by(lambda n, alpha: float(n)),
        "the length penalty is the square root of the length": penalised_by(lambda n, alpha: n**0.5),
    },
    "GEN8": {
        "the start token counts in the length": penalised_by(lambda n, alpha: ((6 + n) / 6) ** alpha),
        "the length penalty is n^alpha without counting the end token": penalised_by(lambda n, alpha: max(n - 1, 1) ** alpha),
        "the length penalty is n^alpha and counts the start token": penalised_by(lambda n, alpha: (n + 1) ** alpha),
    },
    "GEN9": {
        "steps see earlier padding": with_mask(lambda mask, past: mask | (np.arange(mask.shape[-1]) < past)),
        "steps see their own padding, but not earlier padding": with_mask(lambda mask, past: mask | (np.arange(mask.shape[-1]) >= past)),
        "the target mask is shifted by one": with_mask(lambda mask, past: np.roll(mask, 1, axis=-1)),
    },
    "GEN10": {
        "a beam ends only if its end token is among the beam_size best continuations": ends_among(lambda size: size),
        "a finished beam permanently takes the place of a live one": ends_among(lambda size: size, takes_a_place=True),
    },
}
