"""Attention of many queries, chunk by chunk."""

from collections.abc import Callable

import tensorflow as tf

from .. import mask

__all__ = ["CHUNK_WEIGHTS", "chunk_length", "in_chunks"]

CHUNK_WEIGHTS = {
    "CPU": 1 << 22,
    "GPU": 1 << 28,
}  # weights that are computed together: on a CPU as many as its cache holds


def chunk_length(query_bthk: tf.Tensor, source: int | None) -> int | None:
    """The number of queries in a chunk; None where all are taken together: they are few, or a size is not known."""
    batch, target, heads, _ = query_bthk.shape
    if batch is None or target is None or source is None:
        return None
    weights = CHUNK_WEIGHTS[_device(query_bthk)]
    length = max(1, weights // max(1, batch * heads * source))
    return length if length < target else None


def _device(x: tf.Tensor) -> str:
    """The kind of the tensor's device; in a graph that names none, that of the process, on which TensorFlow places it."""
    names = x.device or " ".join(device.name for device in tf.config.list_physical_devices("GPU"))
    return "GPU" if "GPU" in names else "CPU"


def in_chunks(
    attend: Callable[..., tf.Tensor],
    length: int,
    query_bthk: tf.Tensor,
    key_bgks: tf.Tensor,
    value_bgse: tf.Tensor,
    mask_bhts: tf.Tensor | None,
    bias_bhts: tf.Tensor | None,
    causal: bool,
) -> tf.Tensor:
    """`attend` on so many queries c after another; the backward pass computes their weights again."""
    target, source = query_bthk.shape[1], value_bgse.shape[2]

    def part(
        x: tf.Tensor | None, axis: int, start: tf.Tensor | int, count: int
    ) -> tf.Tensor | None:
        """XLA takes a slice whose size is no tensor, as that of a Python slice would be."""
        if x is None or x.shape[axis] == 1:
            return x
        return tf.slice(
            x,
            [start if at == axis else 0 for at in range(4)],
            [*x.shape[:axis], count, *x.shape[axis + 1 :]],
        )

    def chunk(start: tf.Tensor | int, count: int) -> tf.Tensor:
        mask_bhcs = part(mask_bhts, 2, start, count)
        if causal:
            last_c1 = (start + tf.range(count) + source - target)[:, tf.newaxis]
            mask_bhcs = mask.combine_masks(
                mask_bhcs, (tf.range(source) <= last_c1)[tf.newaxis, tf.newaxis]
            )

        @tf.recompute_grad
        def attended(
            query_bchk: tf.Tensor, key_bgks: tf.Tensor, value_bgse: tf.Tensor, *bias_bhcs: tf.Tensor
        ) -> tf.Tensor:
            return attend(query_bchk, key_bgks, value_bgse, mask_bhcs, *bias_bhcs)

        bias_bhcs = () if bias_bhts is None else (part(bias_bhts, 2, start, count),)
        return attended(part(query_bthk, 1, start, count), key_bgks, value_bgse, *bias_bhcs)

    whole = target - target % length
    output_nbche = tf.map_fn(
        lambda start: chunk(start, length),
        tf.range(0, whole, length),
        fn_output_signature=value_bgse.dtype,
    )
    output_bnche = tf.transpose(output_nbche, [1, 0, 2, 3, 4])
    output_bthe = tf.reshape(output_bnche, [query_bthk.shape[0], whole, *output_nbche.shape[3:]])
    return (
        output_bthe
        if whole == target
        else tf.concat([output_bthe, chunk(whole, target - whole)], axis=1)
    )
