"""Settings of decoding in steps: the cached values, masks and positions that a step is given."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .alteration import Alteration, setting, settings
from .combinators import on_arguments, on_result

Array = np.ndarray
STEP = "cache.decoder_layer_step"
Chosen = Callable[[int], Array]  # the number of cached tokens -> the indices that are read


def numbered(number: Callable[[Array, int], Array]) -> Mapping[str, Callable]:
    """Gives steps other positions, a function of the right ones `b t` and of the number of tokens before."""

    def altered(original: Callable, config: Any, read_bt: Array, length: int) -> Array:
        return number(original(config, read_bt, length), read_bt.shape[1] - length)

    return {"cache._positions": altered}


def with_mask(change: Callable[[Array, int], Array]) -> Mapping[str, Callable]:
    """Gives steps another mask of the target, a function of the right one `b 1 1 s` and of the number of tokens before."""

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, cache: Any, self_mask_bhts: Any = None, *rest: Any) -> Any:
        mask_bhts = None if self_mask_bhts is None else change(self_mask_bhts, self_mask_bhts.shape[-1] - x_btd.shape[1])
        return original(parameters, config, x_btd, cache, mask_bhts, *rest)

    return {STEP: altered}


def seeing(keys: Chosen, values: Chosen | None = None) -> Callable:
    """Attends to these cached tokens and to the step's own."""

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, cache: Any, self_mask_bhts: Any = None, *rest: Any) -> Any:
        old, own = cache["self_attention"], np.arange(x_btd.shape[1])
        count = old[0].shape[1]
        chosen = keys(count), (values or keys)(count)
        if self_mask_bhts is not None:
            self_mask_bhts = self_mask_bhts[..., np.concatenate([chosen[0], count + own])]
        read = tuple(array[:, index] for array, index in zip(old, chosen, strict=True))
        y_btd, new = original(parameters, config, x_btd, {**cache, "self_attention": read}, self_mask_bhts, *rest)
        last = (array[:, len(index) :] for array, index in zip(new["self_attention"], chosen, strict=True))
        kept = tuple(np.concatenate(pair, axis=1) for pair in zip(old, last, strict=True))
        return y_btd, {**new, "self_attention": kept}

    return altered


_SEEN: dict[str, tuple[str, Chosen, Chosen | None]] = {
    "none": ("a step does not see the tokens before it", lambda count: np.arange(0), None),
    "last": ("a step sees of the tokens before it the last alone", lambda count: np.arange(count)[-1:], None),
    "first": ("a step sees of the tokens before it the first alone", lambda count: np.arange(count)[:1], None),
    "all but the first": ("a step does not see the first token", lambda count: np.arange(count)[1:], None),
    "all but the last": ("a step does not see the token before it", lambda count: np.arange(count)[:-1], None),
    "last repeated": ("the last token is in the cache twice, the first is not",
                      lambda count: np.minimum(np.arange(count) + 1, count - 1), None),
    "values before": ("the cached values stand one place before their keys", np.arange, lambda count: np.roll(np.arange(count), -1)),
    "values behind": ("the cached values stand one place behind their keys", np.arange, lambda count: np.roll(np.arange(count), 1)),
    "values reversed": ("the cached values stand in reverse order", np.arange, lambda count: np.arange(count)[::-1]),
}  # fmt: skip


def _memory_of(choose: Callable[[int, int], int]) -> Callable[[Any], Any]:
    """Gives every layer the memory's keys and values of another layer, a function of the layer and their number."""

    def change(cache: Any) -> Any:
        layers = cache["layers"]
        if not layers or "cross_attention" not in layers[0]:
            return cache
        others = [layers[choose(index, len(layers))]["cross_attention"] for index in range(len(layers))]
        return {**cache, "layers": [{**layer, "cross_attention": other} for layer, other in zip(layers, others, strict=True)]}

    return change


def caches() -> Iterator[Alteration]:
    """The settings of decoding in steps."""
    fix = "append the keys and values of every step, and attend to all of them"
    for name, (title, keys, values) in _SEEN.items():
        yield setting(f"cache={name}", "decode_in_steps", title, fix, seeing(keys, values), STEP)
    fix = "cache, for every layer, the keys and values that it makes of the memory"
    memories: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "of the first layer": ("every layer attends to the memory's keys and values of the first layer", _memory_of(lambda own, count: 0)),
        "of the last layer": ("every layer attends to the memory's keys and values of the last layer",
                              _memory_of(lambda own, count: count - 1)),
    }  # fmt: skip
    yield from settings("memory=", "decode_in_steps", fix, memories, "cache.start_cache", of=on_result)
    title, altered = "every row attends to the memory of the first", on_arguments(memory_bsd=_first_row)
    yield setting("memory=of the first row", "decode_in_steps", title, "give every row its own memory", altered, "cache.start_cache")


def _first_row(memory_bsd: Any) -> Any:
    return None if memory_bsd is None else np.repeat(memory_bsd[:1], len(memory_bsd), axis=0)
