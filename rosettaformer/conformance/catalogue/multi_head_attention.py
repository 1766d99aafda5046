"""Defects of multi-head attention: how heads are split and merged, and what becomes of the result."""

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import softmax

from .defect import LOADED, Defect, bound, on_arguments, on_call, on_result
from .kernels import FUSED, OUTPUT, PROJECTIONS, of_projection

__all__ = ["DEFECTS"]

Array = np.ndarray
ATTENTION = "attention.scaled_dot_product_attention"
PARTS = ("query", "key", "value", "key and value", "query and key")
Tree = Mapping[str, Any]


def _split_without_transpose(*names: str) -> Mapping[str, Callable]:
    """Heads that are stretches of positions, of these projections."""
    meant = {PROJECTIONS[name] for name in names}

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        y = original(subscripts, parameters, x)
        if subscripts not in meant:
            return y
        b, t, h, k = y.shape
        return y.reshape(b, h, t, k).swapaxes(1, 2)

    return {"attention._projection": altered}


def _keys_reshaped(key_bsgk: Array, **others: Any) -> dict[str, Any]:
    """`b g s k` read as `b g k s` by its bytes."""
    batch, source, heads, size = key_bsgk.shape
    stored = np.ascontiguousarray(key_bsgk.swapaxes(1, 2)).reshape(batch, heads, size, source)
    return {"key_bsgk": stored.transpose(0, 3, 1, 2)}


def _mean_weights(original: Callable, *args: Any, **options: Any) -> Any:
    """Every head with the mean of all heads' weights."""
    given = bound(original, *args, **options)
    with mock.patch.object(softmax, "softmax", functools.partial(_of_all_heads, softmax.softmax)):
        return original(**given)


def _of_all_heads(inner: Callable, logits_bhts: Array, mask_bhts: Any = None) -> Array:
    weights_bhts = inner(logits_bhts, mask_bhts)
    return np.broadcast_to(weights_bhts.mean(axis=1, keepdims=True, dtype=weights_bhts.dtype), weights_bhts.shape)


def _merged(change: Callable[[Array], Array]) -> Mapping[str, Callable]:
    """Another array `b t h e` of heads before the output projection."""

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        return original(subscripts, parameters, change(x) if subscripts == OUTPUT else x)

    return {"attention._projection": altered}


def _first_head(x_bthe: Array) -> Array:
    return np.where(np.arange(x_bthe.shape[2])[:, None] == 0, x_bthe, x_bthe.dtype.type(0))


def _bias_for_every_head(parameters: Any) -> Any:
    output = parameters["output"]
    if "bias" not in output:
        return parameters
    return dict(parameters) | {"output": output | {"bias": output["bias"] * output["bias"].dtype.type(output["kernel"].shape[0])}}


def _twice(*names: str) -> Mapping[str, Callable]:
    """Biases of these projections that are added twice."""
    doubled = of_projection(lambda parameters, inputs: {name: x + x if name == "bias" else x for name, x in parameters.items()}, *names)
    return {"attention._projection": doubled}


def _merged_without_transpose(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    if subscripts == OUTPUT:
        x = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    return original(subscripts, parameters, x)


def _first_of_the_batch(output: Any) -> Any:
    """The output, or output and weights, with the first row's output in every row."""
    if isinstance(output, tuple):
        return _first_of_the_batch(output[0]), output[1]
    return np.broadcast_to(output[:1], output.shape)


def _concatenated_to_key_width(original: Callable, parameters: Any, *rest: Any, **options: Any) -> Any:
    _, heads, key_size = parameters["query"]["kernel"].shape
    value_size = parameters["value"]["kernel"].shape[2]
    if key_size != value_size:
        raise ValueError(f"cannot reshape heads of size {value_size} into width {heads * key_size}")
    return original(parameters, *rest, **options)


DEFECTS = (
    Defect(
        id="MHA1",
        title="heads are split without a transpose",
        component="multi_head_attention",
        what="`b t (h k)` is reshaped to `b h t k` at once: a head gets a stretch of positions instead of a slice of the width.",
        shows="Heads mix positions. More than one head and more than one position show it.",
        torch="query = query.view(b, t, heads, size).transpose(1, 2)  # not .view(b, heads, t, size)",
        tf="query = tf.transpose(tf.reshape(query, [b, t, heads, size]), [0, 2, 1, 3])",
        jax="query = query.reshape(b, t, heads, size)  # jax.nn.dot_product_attention takes b t h k",
        evidence="FuxiCTR#30",
        variants={
            f"the heads of {words} are split without a transpose": _split_without_transpose(*words.split(" and ")) for words in PARTS
        },
        replaces=_split_without_transpose(*FUSED),
    ),
    Defect(
        id="MHA2",
        title="heads are merged without a transpose",
        component="multi_head_attention",
        what="`b h t e` is reshaped to `b t (h e)` at once: a position gets a stretch of one head instead of its part of every head.",
        shows="Positions mix. More than one head and more than one position show it.",
        torch="output = output.transpose(1, 2).reshape(b, t, heads * size)",
        tf="output = tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [b, t, heads * size])",
        jax="output = output.swapaxes(1, 2).reshape(b, t, heads * size)",
        evidence="keras_lab, jadore801120#7",
        replaces={"attention._projection": _merged_without_transpose},
    ),
    Defect(
        id="MHA7",
        title="the output is unpacked over the batch",
        what="`a, _ = attention(x)` unpacks a tensor whose batch size is 2; its first row then broadcasts over the batch.",
        shows="All rows of the batch are equal to the first. A batch of 2 shows it, where every other size is an error.",
        torch="output, _ = self.attention(x, x, x)  # nn.MultiheadAttention returns a pair; your own module must, too",
        tf="output = self.attention(x, x)  # one tensor, unless return_attention_scores=True",
        jax="output = self.attention(x)  # one array",
        evidence="semillero",
        replaces={"attention.multi_head_attention": on_result(_first_of_the_batch)},
    ),
    Defect(
        id="MHA9",
        title="heads are concatenated to h k instead of h e",
        what="The merged heads are reshaped to the width of the keys, which is that of the values only where k = e.",
        shows="An error about shapes. A value head of another size than the key head shows it.",
        torch="output = output.transpose(1, 2).flatten(2)  # h e, whatever e is",
        tf="output = tf.reshape(output, [b, t, heads * value_size])",
        jax="output = output.reshape(b, t, -1)  # h e, whatever e is",
        evidence="semillero",
        replaces={"attention.multi_head_attention": _concatenated_to_key_width},
    ),
    Defect(
        id="MHA18",
        title="the heads are merged in reverse",
        component="multi_head_attention",
        what="The output projection is given the heads in another order, some of them, or their mean.",
        shows="The weights are right, and the output is not. More than one head shows it.",
        variants={
            "every head has the mean of all heads' weights": {ATTENTION: _mean_weights},
            "only the first head reaches the output": _merged(_first_head),
            "every head's output is the first one's": _merged(lambda x_bthe: np.repeat(x_bthe[:, :, :1], x_bthe.shape[2], axis=2)),
            "every head's output is the mean of all": _merged(
                lambda x_bthe: np.repeat(x_bthe.mean(axis=2, keepdims=True, dtype=x_bthe.dtype), x_bthe.shape[2], axis=2)
            ),
        },
        torch="output = self.output(output.transpose(1, 2).flatten(2))  # every head, in order",
        tf="output = self.output(tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [b, t, heads * size]))  # every head, in order",
        jax="output = self.output(output.reshape(b, t, -1))  # every head, in order",
        evidence="derived, not reported",
        replaces=_merged(lambda x_bthe: x_bthe[:, :, ::-1]),
    ),
    Defect(
        id="MHA20",
        title="the keys are reshaped to b h k s, not transposed",
        component="scaled_dot_product_attention",
        what="`q key.reshape(b, h, k, s)` instead of `q key.transpose(-2, -1)`: the sizes agree, the entries do not.",
        shows="Every logit mixes the keys. More than one key shows it.",
        torch="logits = query @ key.transpose(-2, -1)  # not key.view(b, heads, size, s)",
        tf="logits = tf.matmul(query, key, transpose_b=True)  # not tf.reshape(key, [b, heads, size, s])",
        jax='logits = jnp.einsum("bthk,bshk->bhts", query, key)  # not key.reshape(b, heads, size, s)',
        evidence="derived, not reported",
        replaces={ATTENTION: on_call(_keys_reshaped)},
    ),
    Defect(
        id="MHA21",
        title="the output's bias is added once for every head",
        component="multi_head_attention",
        what="`sum_i (head_i W_i^O + b^O)` instead of `sum_i head_i W_i^O + b^O`; or a projection's bias is added twice.",
        shows="Every output is shifted. Biases that are not zero show it.",
        torch="output = self.output(heads.transpose(1, 2).flatten(2))  # one layer, with one bias, for all heads",
        tf="output = self.output(merged)  # one layer, with one bias, for all heads",
        jax="output = self.output(merged)  # one layer, with one bias, for all heads",
        elsewhere=LOADED,
        variants={f"the bias of the {name} projection is added twice": _twice(name) for name in ("query", "value", "output")}
        | {"the projections' biases are added twice": _twice(*PROJECTIONS)},
        evidence="derived, not reported",
        replaces={"attention.multi_head_attention": on_arguments(parameters=_bias_for_every_head)},
    ),
)
