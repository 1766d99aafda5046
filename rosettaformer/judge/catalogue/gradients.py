"""Known bugs that only gradients show: the forward pass is correct."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import attention, inputs, parameters

from ..expectation.patching import patched, signature
from .alteration import Altered, on_result
from .embedding import without_padding_row

Tree = dict[str, Any]


def _masked_row_poisons(original: Callable, *args: Any, **options: Any) -> Tree:
    gradients, given = original(*args, **options), signature(original).bind(*args, **options)
    given.apply_defaults()
    (query_bthk, key_bsgk, _, sink_h), mask_bhts, scores, _ = given.args
    weights_bhts = attention.attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
    empty_bht = weights_bhts.max(axis=-1, initial=0) <= 0
    poison = query_bthk.dtype.type(np.nan)
    # The NaN reaches the row's query and, through the product with it, every key of the head.
    grouped_bgrt = empty_bht.reshape(len(empty_bht), key_bsgk.shape[2], -1, empty_bht.shape[-1])
    return gradients | {
        "query_bthk": np.where(empty_bht.swapaxes(1, 2)[..., None], poison, gradients["query_bthk"]),
        "key_bsgk": np.where(grouped_bgrt.any(axis=(2, 3))[:, None, :, None], poison, gradients["key_bsgk"]),
    }


def _deviation_of_a_constant_row(original: Callable, parameters: Any, x_btd: np.ndarray, *rest: Any, **options: Any) -> Tree:
    gradients = original(parameters, x_btd, *rest, **options)
    constant = x_btd.max(axis=-1, keepdims=True) == x_btd.min(axis=-1, keepdims=True)
    return gradients | {"x_btd": np.where(constant, x_btd.dtype.type(np.nan), gradients["x_btd"])}


def _padding_row_without(original: Callable, parameters: Any, config: Any, side: str, *rest: Any, **options: Any) -> Tree:
    gradients, name = original(parameters, config, side, *rest, **options), inputs.table(config, side)
    own = gradients["parameters"]
    return gradients | {"parameters": own | {name: without_padding_row(own[name], config)}}


def _copied_head(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> Tree:
    if not config.tie_logits:
        return original(parameters, config, *rest, **options)

    def of_the_copy(logits_vjp: Callable, head: Any, x_btd: np.ndarray, *rest: Any, cotangent: np.ndarray) -> Tree:
        gradients = logits_vjp(head, x_btd, *rest, cotangent=cotangent)
        kernel_dv = np.zeros_like(gradients["parameters"]["kernel"])
        return gradients | {"parameters": gradients["parameters"] | {"kernel": kernel_dv}}

    with patched({"embedding.logits_vjp": of_the_copy}):
        return original(parameters, config, *rest, **options)


def _untracked(gradients: Tree) -> Tree:
    layers = {name: np.zeros_like(value) for name, value in parameters.flatten(gradients["parameters"]["layers"]).items()}
    return gradients | {"parameters": gradients["parameters"] | {"layers": parameters.nest(layers)}}


ALTERED: Altered = {
    "ATT14": {"attention.scaled_dot_product_attention_vjp": _masked_row_poisons},
    "NRM11": {"normalization.layer_norm_vjp": _deviation_of_a_constant_row},
    "EMB4": {"transformer.embed_vjp": _padding_row_without},
    "EMB5": dict.fromkeys(("transformer.decode_vjp", "heads.output_vjp"), _copied_head),
    "STR3": dict.fromkeys(("stacks.encoder_vjp", "stacks.decoder_vjp"), on_result(_untracked)),
}
