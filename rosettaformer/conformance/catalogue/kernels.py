"""Defects of the projections' kernels and biases: their layout, their order, which is which."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .defect import LOADED, Defect, on_arguments

__all__ = [
    "DEFECTS", "FUSED", "OUTPUT", "PROJECTIONS", "exchanged", "interleaved", "of_bias", "of_projection", "spread", "transposed",
    "without_bias",
]  # fmt: skip

Array = np.ndarray
Tree = Mapping[str, Any]
OUTPUT = "bthe,hed->btd"
PROJECTIONS = {"query": "btd,dhk->bthk", "key": "bsd,dgk->bsgk", "value": "bsd,dge->bsge", "output": OUTPUT}  # by their contractions
FUSED = ("query", "key", "value")


def of_projection(change: Callable[..., Tree], *names: str) -> Callable:
    """The alteration of what these projections read, or all: a function of the parameters and of how many axes of the kernel are inputs."""
    meant = {PROJECTIONS[name] for name in names or PROJECTIONS}

    def altered(original: Callable, subscripts: str, parameters: Tree, x: Array) -> Array:
        return original(subscripts, change(parameters, 1 + (subscripts == OUTPUT)) if subscripts in meant else parameters, x)

    return altered


def without_bias(parameters: Tree, inputs: int = 1) -> Tree:
    """The kernel alone."""
    return {"kernel": parameters["kernel"]}


def transposed(parameters: Tree, inputs: int = 1) -> Tree:
    """A kernel stored with its outputs first and read, by its bytes, with its inputs first; a square one is transposed."""
    kernel = parameters["kernel"]
    stored = np.moveaxis(kernel, range(inputs), range(-inputs, 0))
    return dict(parameters) | {"kernel": np.ascontiguousarray(stored).reshape(kernel.shape)}


def _transposed_if_square(parameters: Tree, inputs: int) -> Tree:
    rows, columns = (math.prod(axes) for axes in np.split(parameters["kernel"].shape, [inputs]))
    return transposed(parameters, inputs) if rows == columns else parameters


def interleaved(parameters: Tree, inputs: int) -> Tree:
    """`d h k` read as `d k h`, `h e d` as `e h d`, and the bias `h k` as `k h`."""
    first, second, third = parameters["kernel"].shape
    if inputs == 2:
        return dict(parameters) | {"kernel": parameters["kernel"].reshape(second, first, third).swapaxes(0, 1)}
    return {name: value.reshape(*value.shape[:-2], third, second).swapaxes(-2, -1) for name, value in parameters.items()}


def spread(parameters: Tree, inputs: int) -> Tree:
    """`d k h` read as `d h k`, `e h d` as `h e d`, and the bias `k h` as `h k`: the inverse of `interleaved`."""
    kernel = parameters["kernel"]
    if inputs == 2:
        return dict(parameters) | {"kernel": kernel.swapaxes(0, 1).reshape(kernel.shape)}
    return {name: value.swapaxes(-2, -1).reshape(value.shape) for name, value in parameters.items()}


def of_bias(change: Callable[[Tree, int], Tree]) -> Callable[[Tree, int], Tree]:
    """The change of a projection's bias alone, where it has heads."""

    def changed(parameters: Tree, inputs: int) -> Tree:
        heads = "bias" in parameters and parameters["bias"].ndim == 2
        return dict(parameters) | {"bias": change(parameters, inputs)["bias"]} if heads else parameters

    return changed


def exchanged(names: Sequence[str], order: Sequence[str]) -> Callable:
    """The attention that reads the projections of these names in another order, where their kernels have one shape."""

    def in_order(parameters: Tree) -> Tree:
        same = len({parameters[name]["kernel"].shape for name in names}) == 1
        return dict(parameters) | {name: parameters[other] for name, other in zip(names, order, strict=True) if same}

    return on_arguments(parameters=in_order)


def _interleaved_by_head(parameters: Tree) -> Tree:
    """The columns query | key | value, each `h k`, read as `h (query | key | value) k`."""
    if len({parameters[name]["kernel"].shape for name in FUSED}) > 1:
        return parameters
    read: dict[str, dict[str, Array]] = {name: {} for name in FUSED}
    for leaf in parameters["query"]:
        fused = np.stack([parameters[name][leaf] for name in FUSED], axis=-3)  # d 3 h k, or 3 h k
        *outer, _, heads, size = fused.shape
        for index, name in enumerate(FUSED):
            read[name][leaf] = fused.reshape(*outer, heads, 3, size)[..., index, :]
    return dict(parameters) | read


_ORDER: dict[str, Any] = {
    "torch": "query, key, value = F.linear(x, in_proj_weight, in_proj_bias).chunk(3, dim=-1)  # rows: all of q, all of k, all of v",
    "tf": "query, key, value = tf.split(fused, 3, axis=-1)  # before the heads are split; Keras' own weights: query, key, value, output",
    "jax": "query, key, value = jnp.split(fused, 3, axis=-1)  # before the heads are split",
}
_KERNEL: dict[str, Any] = {
    "torch": "linear.weight.data = kernel.reshape(width, heads * size).T.contiguous()  # from d h k: first flatten, then transpose",
    "tf": "attention.query_dense.kernel.assign(tf.reshape(tf.transpose(linear_weight), [width, heads, size]))  # Keras: d h k",
    "jax": 'params["query"]["kernel"] = linear_weight.T.reshape(width, heads, size)  # Flax: d h k',
}
_BIAS: dict[str, Any] = {
    "torch": "self.query = nn.Linear(width, heads * size, bias=True)  # the same for key, value and output",
    "tf": "keras.layers.MultiHeadAttention(heads, size, use_bias=True)",
    "jax": "nn.MultiHeadDotProductAttention(heads, use_bias=True)",
}

DEFECTS = (
    Defect(
        id="MHA3",
        title="a fused query-key-value kernel is read head by head",
        what="The columns `[q | k | v]`, each `h k`, are read as `h [q | k | v] k`, as GPT-NeoX and BLOOM store them (or the reverse).",
        shows="No error, since the sizes agree; the projections are scrambled. Any input with more than one head and k = e shows it.",
        **_ORDER,
        elsewhere="the heads are split before query, key and value are",
        evidence="vllm#53114, swift-models#564, tensor_parallel#103",
        replaces={"attention.multi_head_attention": on_arguments(parameters=_interleaved_by_head)},
    ),
    Defect(
        id="MHA4",
        title="a kernel's head and size axes are exchanged",
        component="multi_head_attention",
        what="`d (h k)` is read as `d (k h)`, and the output's `(h e) d` as `(e h) d`.",
        shows="A head gets every h-th column instead of a block of them. More than one head shows it.",
        **_KERNEL,
        elsewhere="the heads are split or merged with the size first: h k are the axes, the head before the size",
        evidence="keras#18373, transformers#10809",
        replaces={"attention._projection": of_projection(interleaved)},
    ),
    Defect(
        id="MHA5",
        title="a square kernel is not transposed",
        component="multi_head_attention",
        what="torch's Linear stores `(h k) d`; where h k = d the untransposed kernel fits without an error.",
        shows="No error, another projection. Kernels with h k = d show it.",
        **_KERNEL,
        elsewhere="the kernel is applied transposed",
        evidence="nntile#370, AutoGPTQ#139",
        replaces={"attention._projection": of_projection(_transposed_if_square)},
    ),
    Defect(
        id="MHA6",
        title="the parameters of value and key are exchanged",
        what="`m W^V` are the keys and `m W^K` the values: the order is query, value, key in Keras' call and query, key, value elsewhere.",
        shows="No error where k = e. Any input with a key kernel unlike the value kernel shows it.",
        torch="self.attention(query, key, value)",
        tf="self.attention(query=query, value=value, key=key)  # by name: positionally Keras takes query, value, key",
        jax="self.attention(query, key, value)",
        elsewhere=LOADED,
        evidence="jsbaan/transformer-from-scratch#1",
        replaces={"attention.multi_head_attention": exchanged(("key", "value"), ("value", "key"))},
    ),
    Defect(
        id="MHA8",
        title="the projections' biases are missing",
        component="multi_head_attention",
        what="`x W` instead of `x W + b` for query, key, value and output.",
        shows="Outputs are shifted. Biases that are not zero show it.",
        **_BIAS,
        elsewhere=LOADED,
        evidence="keras_lab",
        replaces={"attention._projection": of_projection(without_bias)},
    ),
    Defect(
        id="MHA12",
        title="the key projection's bias is missing",
        component="multi_head_attention",
        what="`m W^K` instead of `m W^K + b^K`: every logit of a query shifts by `q b^K`, which the softmax cancels.",
        shows="Nothing in a model whose positions are added to the input; with rotary positions it would show.",
        **_BIAS,
        elsewhere=LOADED,
        evidence="derived, not reported",
        replaces={"attention._projection": of_projection(without_bias, "key")},
        unobservable="the softmax does not change when all logits of a query shift by the same number",
    ),
)
