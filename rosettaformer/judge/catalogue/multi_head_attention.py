"""Known bugs of multi-head attention: how heads are split, ordered and merged, and the output."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import attention

from ..expectation.patching import within
from .alteration import LOADED, Alteration, Altered, Array, Variants, on_arguments, on_call, on_result, setting
from .kernels import FUSED, OUTPUT, PROJECTIONS, of_projection

# number of heads -> the head at each place
HEADS: dict[str, Callable[[int], Array]] = {
    "reversed": lambda count: np.arange(count)[::-1],
    "rolled by 1": lambda count: np.roll(np.arange(count), 1),
    "rolled by -1": lambda count: np.roll(np.arange(count), -1),
    "exchanged in pairs": lambda count: np.minimum(np.arange(count) ^ 1, count - 1) if count % 2 == 0 else _but_the_last(count),
    "even ones first": lambda count: np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2)]),
}
# `b t d` read with another memory layout
READ: dict[str, Callable[[Array], Array]] = {
    "read as b d t": lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(1, 2),
    "laid out as b d t": lambda x: x.swapaxes(1, 2).reshape(x.shape),
    "read as t b d": lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1),
    "laid out as t b d": lambda x: x.swapaxes(0, 1).reshape(x.shape),
}


def _but_the_last(count: int) -> Array:
    return np.append(np.arange(count - 1) ^ 1, count - 1)


def _permuted(order: Callable[[int], Array]) -> Callable[[Array], Array]:
    return lambda x: x[:, :, order(x.shape[2])]


def _exchanged(weights_bhts: Array) -> Array:
    return weights_bhts.swapaxes(2, 3) if weights_bhts.shape[2] == weights_bhts.shape[3] else weights_bhts


# attention whose weights `b h t s` are transposed before they multiply the values, if t equals s
_transposed_weights = within({"dropout.dropout": on_result(_exchanged)})


def orders() -> Iterator[Alteration]:
    """Yields settings with heads in another order and reshapes instead of transposes."""
    fix, component = "use the same head order for queries, keys, values and output", "scaled_dot_product_attention"
    for name, order in HEADS.items():
        change = _permuted(order)
        for what, altered in (
            ("queries", on_arguments(query_bthk=change)),
            ("values", on_arguments(value_bsge=change)),
            ("output", on_result(change)),
        ):
            title = f"the heads of the {what} are in the wrong order: {name}"
            yield setting(f"heads of {what}={name}", component, title, fix, altered, elsewhere=LOADED)
    title, fix = "the weighted sum runs over the queries instead of the keys", "sum over the keys: b h t s, b s h e -> b t h e"
    yield setting("weights=transposed", component, title, fix, _transposed_weights)
    rows: dict[str, tuple[str, Callable[[Callable[[Array], Array]], Callable]]] = {
        "the input of the feed-forward": ("feed_forward", lambda change: on_arguments(x_btd=change)),
        "the output of the feed-forward": ("feed_forward", lambda change: on_result(change)),
        "the input of the attention": ("multi_head_attention", lambda change: on_arguments(query_btd=change, memory_bsd=change)),
        "the output of the attention": ("multi_head_attention", lambda change: on_result(change)),
        "the input of the logits": ("logits", lambda change: on_arguments(x_btd=change)),
    }
    for what, (component, altering) in rows.items():
        for name, change in READ.items():
            title = f"{what}, b t d, is {name}: reshaped instead of transposed"
            yield setting(f"{what}={name}", component, title, "transpose the axes, then reshape", altering(change))


ATTENTION = "attention.scaled_dot_product_attention"
PARTS = ("query", "key", "value", "key and value", "query and key")


def _split_without_transpose(*names: str) -> Mapping[str, Callable]:
    """Splits these projections into heads that are runs of positions."""
    meant = {PROJECTIONS[name] for name in names}

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        y = original(subscripts, parameters, x)
        if subscripts not in meant:
            return y
        b, t, h, k = y.shape
        return y.reshape(b, h, t, k).swapaxes(1, 2)

    return {"attention.projection": altered}


def _keys_reshaped(key_bsgk: Array, **others: Any) -> dict[str, Any]:
    """Reads the bytes of `b g s k` as `b g k s`."""
    batch, source, heads, size = key_bsgk.shape
    stored = np.ascontiguousarray(key_bsgk.swapaxes(1, 2)).reshape(batch, heads, size, source)
    return {"key_bsgk": stored.transpose(0, 3, 1, 2)}


def _mean_of_heads(weights_bhts: Array) -> Array:
    return np.broadcast_to(weights_bhts.mean(axis=1, keepdims=True, dtype=weights_bhts.dtype), weights_bhts.shape)


def _merged(change: Callable[[Array], Array]) -> Mapping[str, Callable]:
    """Changes the heads `b t h e` before the output projection."""

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        return original(subscripts, parameters, change(x) if subscripts == OUTPUT else x)

    return {"attention.projection": altered}


def _first_head(x_bthe: Array) -> Array:
    return np.where(np.arange(x_bthe.shape[2])[:, None] == 0, x_bthe, x_bthe.dtype.type(0))


def _bias_for_every_head(parameters: Any) -> Any:
    output = parameters["output"]
    if "bias" not in output:
        return parameters
    return dict(parameters) | {"output": output | {"bias": output["bias"] * output["bias"].dtype.type(output["kernel"].shape[0])}}


def _clipped_if(queries_and_keys: bool, values: bool) -> Mapping[str, Callable]:
    """Clips only some of queries, keys and values."""

    def read(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> Any:
        raw = config.replace(query_key_value_clip=None)
        query_bthk, key_bsgk, *_ = original(parameters, config if queries_and_keys else raw, *rest, **options)
        return original(parameters, config if values else raw, *rest, **options)._replace(query_bthk=query_bthk, key_bsgk=key_bsgk)

    return {"attention.project": read}


def _clipped_before_norm(original: Callable, parameters: Any, config: Any, name: str, x_bthk: Array, rotation: Any) -> Array:
    if (limit := config.query_key_value_clip) is not None and not config.query_key_norm_after_rotation:
        x_bthk, config = attention.clipped(x_bthk, limit), config.replace(query_key_value_clip=None)
    return original(parameters, config, name, x_bthk, rotation)


def _twice(*names: str) -> Mapping[str, Callable]:
    """Adds the biases of these projections twice."""
    doubled = of_projection(lambda parameters, inputs: {name: x + x if name == "bias" else x for name, x in parameters.items()}, *names)
    return {"attention.projection": doubled}


def _merged_without_transpose(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    if subscripts == OUTPUT:
        x = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    return original(subscripts, parameters, x)


def _first_of_the_batch(output: Array) -> Array:
    """Returns the first row's output in every row."""
    return np.broadcast_to(output[:1], output.shape)


def _concatenated_to_key_width(original: Callable, parameters: Any, *rest: Any, **options: Any) -> Any:
    _, heads, key_size = parameters["query"]["kernel"].shape
    value_size = parameters["value"]["kernel"].shape[2]
    if key_size != value_size:
        raise ValueError(f"cannot reshape heads of size {value_size} into width {heads * key_size}")
    return original(parameters, *rest, **options)


ALTERED: Altered = {
    "MHA1": _split_without_transpose(*FUSED),
    "MHA2": {"attention.projection": _merged_without_transpose},
    "MHA7": {"attention.multi_head_attention": on_result(_first_of_the_batch)},
    "MHA9": {"attention.multi_head_attention": _concatenated_to_key_width},
    "MHA18": _merged(lambda x_bthe: x_bthe[:, :, ::-1]),
    "MHA20": {ATTENTION: on_call(_keys_reshaped)},
    "MHA21": {"attention.multi_head_attention": on_arguments(parameters=_bias_for_every_head)},
    "MHA22": {"attention.clipped": lambda original, x_bthk, limit: x_bthk},
    "MHA23": {"attention.placed": _clipped_before_norm},
}
VARIANTS: Variants = {
    "MHA1": {f"the heads of {words} are split without a transpose": _split_without_transpose(*words.split(" and ")) for words in PARTS},
    "MHA18": {
        "every head uses the mean of all heads' weights": {ATTENTION: within({"softmax.softmax": on_result(_mean_of_heads)})},
        "only the first head reaches the output": _merged(_first_head),
        "every head's output is the first head's": _merged(lambda x_bthe: np.repeat(x_bthe[:, :, :1], x_bthe.shape[2], axis=2)),
        "every head's output is the mean of all heads": _merged(
            lambda x_bthe: np.repeat(x_bthe.mean(axis=2, keepdims=True, dtype=x_bthe.dtype), x_bthe.shape[2], axis=2)
        ),
    },
    "MHA22": {
        "the values are not clipped": _clipped_if(queries_and_keys=True, values=False),
        "only the values are clipped": _clipped_if(queries_and_keys=False, values=True),
    },
    "MHA21": {f"the {name} projection's bias is added twice": _twice(name) for name in ("query", "value", "output")}
    | {"all projection biases are added twice": _twice(*PROJECTIONS)},
}
