"""Defects that no output shows: the forward pass is right and its gradient is not."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import attention, embedding, inputs, parameters

from .defect import Defect, on_result
from .embedding import without_padding_row

__all__ = ["DEFECTS"]

Tree = dict[str, Any]


def _masked_row_poisons(original: Callable, query_bthk: np.ndarray, key_bsgk: np.ndarray, *rest: Any, **options: Any) -> Tree:
    gradients = original(query_bthk, key_bsgk, *rest, **options)
    forward = {name: value for name, value in options.items() if name != "cotangent"} | {"return_weights": True}
    _, weights_bhts = attention.scaled_dot_product_attention(query_bthk, key_bsgk, *rest, **forward)
    empty_bht = ~(weights_bhts > 0).any(axis=-1)
    poison = query_bthk.dtype.type(np.nan)
    # The NaN of the row's logits reaches its query, and through the product with the query every key of its head.
    grouped_bgrt = empty_bht.reshape(len(empty_bht), key_bsgk.shape[2], -1, empty_bht.shape[-1])
    return gradients | {
        "query_bthk": np.where(empty_bht.swapaxes(1, 2)[..., None], poison, gradients["query_bthk"]),
        "key_bsgk": np.where(grouped_bgrt.any(axis=(2, 3))[:, None, :, None], poison, gradients["key_bsgk"]),
    }


def _deviation_of_a_constant_row(original: Callable, parameters: Any, x_btd: np.ndarray, epsilon: float, *, cotangent: np.ndarray) -> Tree:
    gradients = original(parameters, x_btd, epsilon, cotangent=cotangent)
    constant = x_btd.max(axis=-1, keepdims=True) == x_btd.min(axis=-1, keepdims=True)
    return gradients | {"x_btd": np.where(constant, x_btd.dtype.type(np.nan), gradients["x_btd"])}


def _padding_row_without(original: Callable, parameters: Any, config: Any, side: str, *rest: Any, **options: Any) -> Tree:
    gradients, name = original(parameters, config, side, *rest, **options), inputs.table(config, side)
    own = gradients["parameters"]
    return gradients | {"parameters": own | {name: without_padding_row(own[name], config)}}


def _copied_head(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> Tree:
    if not config.tie_logits:
        return original(parameters, config, *rest, **options)
    logits_vjp = embedding.logits_vjp

    def of_the_copy(head: Any, x_btd: np.ndarray, *, cotangent: np.ndarray) -> Tree:
        gradients = logits_vjp(head, x_btd, cotangent=cotangent)
        kernel_dv = np.zeros_like(gradients["parameters"]["kernel"])
        return gradients | {"parameters": gradients["parameters"] | {"kernel": kernel_dv}}

    with mock.patch.object(embedding, "logits_vjp", of_the_copy):
        return original(parameters, config, *rest, **options)


def _untracked(gradients: Tree) -> Tree:
    layers = {name: np.zeros_like(value) for name, value in parameters.flatten(gradients["parameters"]["layers"]).items()}
    return gradients | {"parameters": gradients["parameters"] | {"layers": parameters.nest(layers)}}


DEFECTS = (
    Defect(
        id="ATT14",
        title="a masked row poisons the gradient",
        what="Where a query may attend to nothing the softmax gives NaN, which the forward pass replaces by 0 afterwards: the gradient "
        "still goes through the NaN, since 0 * NaN is NaN.",
        shows="Outputs are right; the gradient of such a query and of every key of its head is NaN, and with it that of the projections. A "
        "row that is padding throughout shows it, backward.",
        torch="logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)  # finite before the softmax; then zero the row",
        tf="safe = tf.where(empty, 0.0, logits); weights = tf.where(empty, 0.0, tf.nn.softmax(safe))  # where on both sides",
        jax="safe = jnp.where(empty, 0.0, logits); weights = jnp.where(empty, 0.0, nn.softmax(safe))  # where on both sides",
        evidence="tensorflow#11756, jax#17117",
        replaces={"attention.scaled_dot_product_attention_vjp": _masked_row_poisons},
    ),
    Defect(
        id="NRM11",
        title="the deviation of a constant row has no gradient",
        what="`(x - mean) / (std(x) + epsilon)`: the derivative of the root at variance 0 is infinite, and infinity times 0 is NaN. With "
        "epsilon inside the root it is finite.",
        shows="Outputs are finite; the gradient of a row whose features are all equal is NaN. A constant row shows it, backward.",
        torch="deviation = (x.var(-1, unbiased=False, keepdim=True) + epsilon).sqrt()  # not x.std() + epsilon",
        tf="deviation = tf.sqrt(tf.math.reduce_variance(x, -1, keepdims=True) + epsilon)  # not reduce_std(x) + epsilon",
        jax="deviation = jnp.sqrt(x.var(-1, keepdims=True) + epsilon)  # not x.std() + epsilon",
        evidence="run of the formula in torch, TensorFlow and JAX",
        replaces={"normalization.layer_norm_vjp": _deviation_of_a_constant_row},
    ),
    Defect(
        id="EMB4",
        title="the embedding gives the padding row no gradient",
        component="transformer_vjp",
        what="The lookup drops the gradient of the padding id's row (`padding_idx`), although the row is an ordinary one, and a tied head "
        "trains it all the same: one tensor is frozen in one use and not in the other.",
        shows="Outputs are right; the gradient of one row of the table differs. Padding in the target shows it, backward.",
        torch="self.embedding = nn.Embedding(vocabulary, width)  # without padding_idx; padding is masked in the attention",
        tf="self.embedding = keras.layers.Embedding(vocabulary, width)  # do not multiply the output by the mask",
        jax="x = table[token]  # do not multiply the rows by token != padding_id",
        evidence="sapiens",
        replaces={"transformer._embed_vjp": _padding_row_without},
    ),
    Defect(
        id="EMB5",
        title="the head is tied by copying",
        component="transformer_vjp",
        what="The logits' kernel is a copy of the table, or cut off from its gradient: `dtable` lacks the head's share `dW^T`.",
        shows="Outputs are right until the first update, and then drift apart; the gradient of the table differs. A tied head shows it, "
        "backward.",
        torch="logits = F.linear(x, self.embedding.weight)  # or self.head.weight = self.embedding.weight, the parameter itself",
        tf="logits = tf.matmul(x, self.embedding.embeddings, transpose_b=True)  # the variable, not its value",
        jax="logits = self.embedding.attend(x)  # read the table when called, not in __init__",
        evidence="flax#1263",
        replaces=dict.fromkeys(("transformer.decode_vjp", "encoder_only.masked_language_logits_vjp"), _copied_head),
    ),
    Defect(
        id="STR3",
        title="the layers' variables are not tracked",
        what="The layers stand where the framework does not look for parameters (a plain list, a dictionary of lists): they have no "
        "gradient and no update.",
        shows="Outputs are right; the gradients of the layers are missing, and training leaves them as they were. Any input shows it, "
        "backward.",
        torch="self.layers = nn.ModuleList(Layer(config) for _ in range(depth))  # not a plain list",
        tf="self.blocks = [Layer(config) for _ in range(depth)]  # an attribute of a keras.layers.Layer, made in __init__ or build",
        jax="self.layers = nnx.List([Layer(config, rngs) for _ in range(depth)])  # Linen: setup(), or nn.compact",
        evidence="keras_lab, keras#16797",
        replaces=dict.fromkeys(("stacks.encoder_vjp", "stacks.decoder_vjp"), on_result(_untracked)),
    ),
)
