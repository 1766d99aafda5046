"""Known bugs of the cross-attention: its inputs and its mask."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, mask, stacks

from ..expectation.patching import patched, within
from .alteration import Altered, Array, Replaces, Variants, on_call
from .mask import top_left

MULTI_HEAD = "attention.multi_head_attention"


def _crossing(change: Callable[..., Mapping[str, Any]]) -> Replaces:
    """Changes the arguments of the cross-attention."""
    return {"layers.cross_attention": within({MULTI_HEAD: on_call(change)})}


def _slice(kept: slice) -> Replaces:
    """Attends only to these positions of the memory."""

    def change(memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
        own = mask_bhts is not None and mask_bhts.shape[-1] == memory_bsd.shape[1]
        return {"memory_bsd": memory_bsd[:, kept], "mask_bhts": mask_bhts[..., kept] if own else mask_bhts}

    return _crossing(change)


def _one_vector(of: Callable[[Array, Array], Array]) -> Replaces:
    """Replaces the memory by one vector: (memory `b s d`, mask `b s 1`) -> vector."""

    def change(memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
        hidden = mask_bhts is None or mask_bhts.shape[1:3] != (1, 1)
        real_bs1 = np.ones((*memory_bsd.shape[:2], 1), bool) if hidden else mask_bhts[:, 0, 0, :, None]
        return {"memory_bsd": of(memory_bsd, real_bs1), "mask_bhts": None} if memory_bsd.shape[1] else {}

    return _crossing(change)


def _mean_of_real(memory_bsd: Array, real_bs1: Array) -> Array:
    count = np.maximum(real_bs1.sum(axis=1, keepdims=True), 1).astype(memory_bsd.dtype)
    return arithmetic.divide(arithmetic.sum(memory_bsd * real_bs1.astype(memory_bsd.dtype), 1), count)


def _of_decoder_causal(query_btd: Array, **others: Any) -> dict[str, Any]:
    return {"memory_bsd": query_btd, "mask_bhts": None, "causal": True}


def _causal_top_left(query_btd: Array, memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    future = top_left(mask.causal_mask, query_btd.shape[1], memory_bsd.shape[1])
    return {"mask_bhts": mask.combine_masks(mask_bhts, future)}


def _exchanged(query_btd: Array, memory_bsd: Array, **others: Any) -> dict[str, Any]:
    return {"query_btd": memory_bsd, "memory_bsd": query_btd} if query_btd.shape == memory_bsd.shape else {}


def _one_from_decoder(index: int) -> Replaces:
    """Computes cross-attention keys (0) or values (1) from the decoder, if lengths fit."""

    def altered(original: Callable, parameters: Any, config: Any, query_btd: Array, memory_bsd: Array, *rest: Any, **options: Any) -> Array:
        if query_btd.shape != memory_bsd.shape:
            return original(parameters, config, query_btd, memory_bsd, *rest, **options)

        def mixed(both: Callable, parameters: Any, config: Any, memory_bsd: Array, *rotation: Any) -> tuple[Array, Array]:
            own, others = (both(parameters, config, x, *rotation) for x in (memory_bsd, query_btd))
            return (others[0], own[1]) if index == 0 else (own[0], others[1])

        with patched({"attention.keys_and_values": mixed}):
            return original(parameters, config, query_btd, memory_bsd, *rest, **options)

    return {"layers.cross_attention": within({MULTI_HEAD: altered})}


def _same_depth(original: Callable, *args: Any, **options: Any) -> Array:
    """Makes decoder layers attend to encoder layers of the same depth; the last, to the memory."""
    outputs: list[Array] = []

    def kept(encoder_layer: Callable, *given: Any) -> Array:
        outputs.append(encoder_layer(*given))
        return outputs[-1]

    def reading(decoder_layer: Callable, parameters: Any, config: Any, x_btd: Array, memory: Any, *rest: Any) -> Array:
        own = memory._replace(vectors_bsd=outputs.pop(0)) if len(outputs) > 1 else memory
        return decoder_layer(parameters, config, x_btd, own, *rest)

    with patched({"layers.encoder_layer": kept, "layers.decoder_layer": reading}):
        return original(*args, **options)


def _encoded(encode: Callable[..., Array]) -> Replaces:
    """Replaces the encoder's output: (parameters, config, embedding) -> output."""
    return {"stacks.encoder": lambda original, parameters, config, x_bsd, *rest, **options: encode(parameters, config, x_bsd)}


ALTERED: Altered = {
    "ATT21": _crossing(lambda query_btd, **others: {"memory_bsd": query_btd, "mask_bhts": None}),
    "CAU7": _crossing(_causal_top_left),
    "STR9": _encoded(stacks.final_norm),
    "STR10": {"transformer.transformer": _same_depth},
    "ATT35": _one_vector(lambda memory_bsd, real_bs1: arithmetic.mean(memory_bsd, 1)),
}
VARIANTS: Variants = {
    "ATT21": {
        "the cross-attention's keys and values come from the decoder, with a causal mask": _crossing(_of_decoder_causal),
        "the cross-attention's values come from the decoder": _one_from_decoder(1),
        "the cross-attention's keys come from the decoder": _one_from_decoder(0),
        "the cross-attention's query and memory are swapped": _crossing(_exchanged),
    },
    "CAU7": {"the cross-attention is causal, aligned bottom-right": _crossing(lambda **others: {"causal": True})},
    "STR9": {"the memory is the source's embedding, without a final norm": _encoded(lambda parameters, config, x_bsd: x_bsd)},
    "ATT35": {
        "the memory is reduced to the mean of its real positions": _one_vector(_mean_of_real),
        "the memory is reduced to its first position": _one_vector(lambda memory_bsd, real_bs1: memory_bsd[:, :1]),
        "the memory is reduced to its last position": _one_vector(lambda memory_bsd, real_bs1: memory_bsd[:, -1:]),
        "the memory lacks its last position": _slice(slice(None, -1)),
        "the memory lacks its first position": _slice(slice(1, None)),
    },
}
