"""Defects of multi-head attention: heads, projections, layouts of their kernels."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .defect import Defect, on_arguments, on_result

__all__ = ["DEFECTS", "FUSED", "PROJECTIONS", "exchanged", "interleaved", "of_projection", "transposed", "without_bias"]

Array = np.ndarray
Tree = Mapping[str, Any]
OUTPUT = "bthe,hed->btd"
PROJECTIONS = {"query": "btd,dhk->bthk", "key": "bsd,dgk->bsgk", "value": "bsd,dge->bsge", "output": OUTPUT}  # by their contractions
FUSED = ("query", "key", "value")


def _split_without_transpose(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    y = original(subscripts, parameters, x)
    if subscripts == OUTPUT:
        return y
    b, t, h, k = y.shape
    return y.reshape(b, h, t, k).swapaxes(1, 2)


def _merged_without_transpose(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    if subscripts == OUTPUT:
        x = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    return original(subscripts, parameters, x)


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
        id="MHA1",
        title="heads are split without a transpose",
        component="multi_head_attention",
        what="`b t (h k)` is reshaped to `b h t k` at once: a head gets a stretch of positions instead of a slice of the width.",
        shows="Heads mix positions. More than one head and more than one position show it.",
        torch="query = query.view(b, t, heads, size).transpose(1, 2)  # not .view(b, heads, t, size)",
        tf="query = tf.transpose(tf.reshape(query, [b, t, heads, size]), [0, 2, 1, 3])",
        jax="query = query.reshape(b, t, heads, size)  # jax.nn.dot_product_attention takes b t h k",
        evidence="FuxiCTR#30",
        replaces={"attention._projection": _split_without_transpose},
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
        id="MHA3",
        title="a fused query-key-value kernel is read head by head",
        what="The columns `[q | k | v]`, each `h k`, are read as `h [q | k | v] k`, as GPT-NeoX and BLOOM store them (or the reverse).",
        shows="No error, since the sizes agree; the projections are scrambled. Any input with more than one head and k = e shows it.",
        **_ORDER,
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
        evidence="nntile#370, AutoGPTQ#139",
        replaces={"attention._projection": of_projection(_transposed_if_square)},
    ),
    Defect(
        id="MHA6",
        title="value and key are exchanged",
        what="The arguments' or the weights' order is query, value, key in Keras' call and query, key, value elsewhere.",
        shows="No error where k = e. Any input with a key kernel unlike the value kernel shows it.",
        torch="self.attention(query, key, value)",
        tf="self.attention(query=query, value=value, key=key)  # by name: positionally Keras takes query, value, key",
        jax="self.attention(query, key, value)",
        evidence="jsbaan/transformer-from-scratch#1",
        replaces={"attention.multi_head_attention": exchanged(("key", "value"), ("value", "key"))},
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
        id="MHA8",
        title="the projections' biases are missing",
        component="multi_head_attention",
        what="`x W` instead of `x W + b` for query, key, value and output.",
        shows="Outputs are shifted. Biases that are not zero show it.",
        **_BIAS,
        evidence="keras_lab",
        replaces={"attention._projection": of_projection(without_bias)},
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
        id="MHA12",
        title="the key projection's bias is missing",
        component="multi_head_attention",
        what="`m W^K` instead of `m W^K + b^K`: every logit of a query shifts by `q b^K`, which the softmax cancels.",
        shows="Nothing in a model whose positions are added to the input; with rotary positions it would show.",
        **_BIAS,
        evidence="derived, not reported",
        replaces={"attention._projection": of_projection(without_bias, "key")},
        unobservable="the softmax does not change when all logits of a query shift by the same number",
    ),
)
