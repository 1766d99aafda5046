"""Attention contractions as matrix products per head, and attention in chunks of queries.

On a CPU, `tf.einsum` is 1.1 to 1.7 times slower than these in a backward pass, and in a forward
pass without XLA; a softmax that zeroes its empty rows itself is up to 1.15 times slower.
"""

from collections.abc import Callable

import tensorflow as tf

from reference_numpy import checks
from reference_numpy.scores import Scores

from .. import mask
from ..framework import sizes
from ..precision import upcast_half
from ..values import Heads

__all__ = [
    "CHUNK_WEIGHTS",
    "chunk_length",
    "in_chunks",
    "mask_logits",
    "query_key",
    "weights_value",
    "zero_empty_rows",
]

# Weights computed at once: on a CPU, as many as fit its cache.
CHUNK_WEIGHTS = {"CPU": 1 << 22, "GPU": 1 << 28}


def query_key(query_bthk: tf.Tensor, key_bsgk: tf.Tensor) -> tf.Tensor:
    """`einsum("bthk,bshk->bhts")`, where query heads h share key heads g.

    The queries of heads that share a key head are rows n of one product, so no key is repeated.
    Half precision multiplies in float32, since a CPU would also sum in half precision.
    """
    batch, target, heads, size = sizes(query_bthk)
    _, source, groups, _ = sizes(key_bsgk)
    query_bhtk = tf.transpose(upcast_half(query_bthk), [0, 2, 1, 3])
    query_bgnk = tf.reshape(query_bhtk, [batch, groups, heads // groups * target, size])
    key_bgks = upcast_half(tf.transpose(key_bsgk, [0, 2, 3, 1]))
    return tf.reshape(tf.matmul(query_bgnk, key_bgks), [batch, heads, target, source])


def weights_value(weights_bhts: tf.Tensor, value_bsge: tf.Tensor) -> tf.Tensor:
    """`einsum("bhts,bshe->bthe")`, where query heads h share value heads g; see `query_key`."""
    batch, heads, target, source = sizes(weights_bhts)
    _, _, groups, size = sizes(value_bsge)
    weights_bgns = tf.reshape(
        upcast_half(weights_bhts), [batch, groups, heads // groups * target, source]
    )
    value_bgse = upcast_half(tf.transpose(value_bsge, [0, 2, 1, 3]))
    output_bhte = tf.reshape(tf.matmul(weights_bgns, value_bgse), [batch, heads, target, size])
    return tf.cast(tf.transpose(output_bhte, [0, 2, 1, 3]), value_bsge.dtype)


def mask_logits(x: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns x with -inf for masked entries, and which rows have an unmasked entry, `... 1`.

    The masked softmax is `tf.nn.softmax` of the first, zeroed in fully masked rows (EMPTY). Those
    rows are zeros here, since -inf would give NaN, and NaN times a zero cotangent is NaN.
    """
    if mask is None:
        return x, None
    present = tf.reduce_any(mask, axis=-1, keepdims=True)
    absent = tf.where(present, tf.constant(float("-inf"), x.dtype), tf.zeros((), x.dtype))
    return tf.where(mask, x, absent), present


def zero_empty_rows(y: tf.Tensor, present: tf.Tensor | None) -> tf.Tensor:
    """Zeroes the rows of y that are not present."""
    return y if present is None else tf.where(present, y, tf.zeros((), y.dtype))


def in_chunks(
    attention: Callable[[Heads, tf.Tensor | None, Scores], tf.Tensor],
    heads: Heads,
    mask_bhts: tf.Tensor | None,
    scores: Scores,
) -> tf.Tensor:
    """Computes `attention` for one chunk c of queries after another: memory in O(s), not O(t s).

    The backward pass recomputes the weights. With a window, a chunk reads only the keys n that its
    queries may attend to.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    source, window = key_bsgk.shape[1], scores.window
    length = chunk_length(query_bthk, source)
    if length is None:
        return attention(heads, mask_bhts, scores)
    batch, target, number, _ = query_bthk.shape
    if mask_bhts is not None:
        shape = batch, number, target, source
        checks.check_attention_mask(mask_bhts.shape, mask_bhts.dtype.name, shape)
    within = Scores(scores.scale, scores.cap)  # the mask of a chunk includes causality and window

    def chunk(start: tf.Tensor | int, count: int) -> tf.Tensor:
        first, keys = tf.constant(0), source
        if window:
            keys = min(source, count + window - 1 if scores.causal else count + 2 * (window - 1))
            first = tf.clip_by_value(start + source - target - window + 1, 0, source - keys)
        mask_bhcn = _part(_part(mask_bhts, 2, start, count), 3, first, keys)
        place_c1 = (start + tf.range(count) + source - target)[:, tf.newaxis]
        place_n = first + tf.range(keys)
        if scores.causal:
            mask_bhcn = mask.combine_masks(mask_bhcn, (place_n <= place_c1)[tf.newaxis, tf.newaxis])
        if window:
            near_cn = tf.abs(place_c1 - place_n) < window
            mask_bhcn = mask.combine_masks(mask_bhcn, near_cn[tf.newaxis, tf.newaxis])

        @tf.recompute_grad
        def attended(*given: tf.Tensor) -> tf.Tensor:
            own = dict(zip(tensors, given, strict=True))
            added_bhcn = own.pop("mask_bhts", mask_bhcn)
            return attention(Heads(**own), added_bhcn, within)

        # Tensors with a gradient must be arguments.
        key_bngk, value_bnge = (_part(x, 1, first, keys) for x in (key_bsgk, value_bsge))
        query_bchk = _part(query_bthk, 1, start, count)
        tensors = Heads(query_bchk, key_bngk, value_bnge, sink_h)._asdict()
        if mask_bhcn is not None and mask_bhcn.dtype != tf.bool:
            tensors["mask_bhts"] = mask_bhcn
        tensors = {name: tf.convert_to_tensor(x) for name, x in tensors.items() if x is not None}
        return attended(*tensors.values())

    whole = target - target % length
    output_nbche = tf.map_fn(
        lambda start: chunk(start, length),
        tf.range(0, whole, length),
        fn_output_signature=value_bsge.dtype,
    )
    output_bnche = tf.transpose(output_nbche, [1, 0, 2, 3, 4])
    output_bthe = tf.reshape(output_bnche, [batch, whole, *output_nbche.shape[3:]])
    if whole == target:
        return output_bthe
    return tf.concat([output_bthe, chunk(whole, target - whole)], axis=1)


def chunk_length(query_bthk: tf.Tensor, source: int | None) -> int | None:
    """Returns the number of queries in a chunk; None if one suffices or a size is unknown."""
    batch, target, heads, _ = query_bthk.shape
    if batch is None or target is None or source is None:
        return None
    weights = CHUNK_WEIGHTS[_device(query_bthk)]
    length = max(1, weights // max(1, batch * heads * source))
    return length if length < target else None


def _device(x: tf.Tensor) -> str:
    """Returns the kind of the tensor's device, by default where TensorFlow would place it."""
    names = x.device or " ".join(device.name for device in tf.config.list_physical_devices("GPU"))
    return "GPU" if "GPU" in names else "CPU"


def _part(x: tf.Tensor | None, axis: int, start: tf.Tensor | int, count: int) -> tf.Tensor | None:
    """Returns `count` entries of the axis from start; XLA rejects Python slices by a tensor."""
    if x is None or x.shape[axis] in (1, count):
        return x
    begin = [start if at == axis else 0 for at in range(4)]
    return tf.slice(x, begin, [*x.shape[:axis], count, *x.shape[axis + 1 :]])
