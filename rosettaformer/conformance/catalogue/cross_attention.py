"""Defects of the cross-attention: what it reads, and under which mask."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, attention, layers, mask, stacks

from .defect import Defect, on_call
from .mask import top_left

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]


def _crossing(change: Callable[..., Mapping[str, Any]]) -> Replaces:
    """Other arguments of the cross-attention."""
    return {"layers._attend": on_call(lambda name, **given: change(**given) if name == "cross_attention" else {})}


def _slice(kept: slice) -> Replaces:
    """Only these positions of the memory."""

    def change(memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
        own = mask_bhts is not None and mask_bhts.shape[-1] == memory_bsd.shape[1]
        return {"memory_bsd": memory_bsd[:, kept], "mask_bhts": mask_bhts[..., kept] if own else mask_bhts}

    return _crossing(change)


def _one_vector(of: Callable[[Array, Array], Array]) -> Replaces:
    """A memory of one vector, a function of the memory `b s d` and of its mask `b s 1`, without a mask."""

    def change(memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
        hidden = mask_bhts is None or mask_bhts.shape[1:3] != (1, 1)
        real_bs1 = np.ones((*memory_bsd.shape[:2], 1), bool) if hidden else mask_bhts[:, 0, 0, :, None]
        return {"memory_bsd": of(memory_bsd, real_bs1), "mask_bhts": None} if memory_bsd.shape[1] else {}

    return _crossing(change)


def _mean_of_real(memory_bsd: Array, real_bs1: Array) -> Array:
    count = np.maximum(real_bs1.sum(axis=1, keepdims=True), 1).astype(memory_bsd.dtype)
    return arithmetic.divide(arithmetic.sum(memory_bsd * real_bs1.astype(memory_bsd.dtype), 1), count)


def _of_decoder(query_btd: Array, **others: Any) -> dict[str, Any]:
    return {"memory_bsd": query_btd, "mask_bhts": None}


def _of_decoder_causal(query_btd: Array, **others: Any) -> dict[str, Any]:
    return {"memory_bsd": query_btd, "mask_bhts": None, "causal": True}


def _causal_top_left(query_btd: Array, memory_bsd: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    future = top_left(mask.causal_mask, query_btd.shape[1], memory_bsd.shape[1])
    return {"mask_bhts": mask.combine_masks(mask_bhts, future)}


def _exchanged(query_btd: Array, memory_bsd: Array, **others: Any) -> dict[str, Any]:
    return {"query_btd": memory_bsd, "memory_bsd": query_btd} if query_btd.shape == memory_bsd.shape else {}


def _one_from_decoder(index: int) -> Replaces:
    """The keys (0) or the values (1) of the cross-attention made of the decoder's vectors, where both are of one length."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, query_btd: Array, memory_bsd: Array, *rest: Any) -> Array:
        if name != "cross_attention" or query_btd.shape != memory_bsd.shape:
            return original(parameters, config, name, query_btd, memory_bsd, *rest)
        both = attention.keys_and_values

        def mixed(parameters: Any, memory_bsd: Array) -> tuple[Array, Array]:
            own, others = both(parameters, memory_bsd), both(parameters, query_btd)
            return (others[0], own[1]) if index == 0 else (own[0], others[1])

        with mock.patch.object(attention, "keys_and_values", mixed):
            return original(parameters, config, name, query_btd, memory_bsd, *rest)

    return {"layers._attend": altered}


def _same_depth(original: Callable, *args: Any, **options: Any) -> Array:
    """The model whose decoder layer of each depth attends to what the encoder layer of that depth gives, the last to the memory."""
    encoder_layer, decoder_layer, outputs = layers.encoder_layer, layers.decoder_layer, list[Array]()

    def kept(*given: Any) -> Array:
        outputs.append(encoder_layer(*given))
        return outputs[-1]

    def reading(parameters: Any, config: Any, x_btd: Array, memory_bsd: Any, *rest: Any) -> Array:
        own_bsd = outputs.pop(0) if len(outputs) > 1 else memory_bsd
        return decoder_layer(parameters, config, x_btd, own_bsd, *rest)

    with mock.patch.object(layers, "encoder_layer", kept), mock.patch.object(layers, "decoder_layer", reading):
        return original(*args, **options)


def _source_embedding(original: Callable, parameters: Any, config: Any, x_bsd: Array, *rest: Any, **options: Any) -> Array:
    return stacks.final_norm(parameters, config, x_bsd)


def _its_input(original: Callable, parameters: Any, config: Any, x_bsd: Array, *rest: Any, **options: Any) -> Array:
    return x_bsd


_MEMORY: dict[str, Any] = {
    "torch": "x, _ = self.cross_attention(x, memory, memory, key_padding_mask=~source_mask)  # query, key, value; no causal mask",
    "tf": "x = self.cross_attention(query=x, value=memory, key=memory, attention_mask=source_mask[:, None, :])",
    "jax": "x = self.cross_attention(x, memory, memory, mask=nn.make_attention_mask(target_mask, source_mask))",
}
DEFECTS = (
    Defect(
        id="ATT21",
        title="the cross-attention's keys and values come from the decoder",
        component="decoder_layer",
        what="`attend(x, x)` instead of `attend(x, memory)`: a second self-attention, or one argument of three is the other sequence.",
        shows="The logits do not depend on the source, or only in part. Any decoder input shows it; one argument alone, equal lengths.",
        variants={
            "the cross-attention's keys and values come from the decoder, under a causal mask": _crossing(_of_decoder_causal),
            "the cross-attention's values come from the decoder": _one_from_decoder(1),
            "the cross-attention's keys come from the decoder": _one_from_decoder(0),
            "the cross-attention's query is the memory, its keys and values come from the decoder": _crossing(_exchanged),
        },
        **_MEMORY,
        evidence="Practical_NLP_in_PyTorch#1, nlp_torchtext#2",
        replaces=_crossing(_of_decoder),
    ),
    Defect(
        id="CAU7",
        title="the cross-attention is causal, aligned top-left",
        component="decoder_layer",
        what="Target position i sees the source only up to position i: the look-ahead mask of the self-attention is passed on.",
        shows="The first target tokens do not see most of the source. Any decoder input shows it.",
        variants={"the cross-attention is causal, aligned bottom-right": _crossing(lambda **given: {"causal": True})},
        **_MEMORY,
        evidence="SeekDeeper#3",
        replaces=_crossing(_causal_top_left),
    ),
    Defect(
        id="STR9",
        title="the memory is the source's embedding",
        component="encoder",
        what="The decoder attends to the encoder's input: no encoder layer reaches the output (a final norm is there).",
        shows="The parameters of the encoder's layers do not matter. Any source shows it.",
        variants={"the memory is the source's embedding, without a final norm": {"stacks.encoder": _its_input}},
        torch="memory = self.encoder(self.embed(source), source_mask); logits = self.decoder(target, memory)",
        tf="memory = self.encoder(self.embed(source), source_mask); logits = self.decoder(target, memory)",
        jax="memory = self.encoder(self.embed(source), source_mask); logits = self.decoder(target, memory)",
        evidence="derived, not reported",
        replaces={"stacks.encoder": _source_embedding},
    ),
    Defect(
        id="STR10",
        title="each decoder layer attends to the encoder layer of its depth",
        component="transformer",
        what="Decoder layer i reads the output of encoder layer i, instead of every one the encoder's last output.",
        shows="Nothing with one layer. Two layers show it.",
        torch="for layer in self.decoder_layers: x = layer(x, memory)  # one memory: the encoder's last output, after its final norm",
        tf="for block in self.decoder_blocks: x = block(x, memory)  # one memory: the encoder's last output, after its final norm",
        jax="for layer in self.decoder_layers: x = layer(x, memory)  # one memory: the encoder's last output, after its final norm",
        evidence="attention-is-all-you-need-pytorch#27",
        replaces={"transformer.transformer": _same_depth},
    ),
    Defect(
        id="ATT35",
        title="the memory is one vector, the mean of its positions",
        component="decoder_layer",
        what="The cross-attention is given a summary of the source, as a recurrent model's decoder is, or a part of the memory.",
        shows="Every target token attends to the same, or one source token is never seen. A source of two tokens shows it.",
        **_MEMORY,
        variants={
            "the memory is one vector, the mean of its real positions": _one_vector(_mean_of_real),
            "the memory is its first position alone": _one_vector(lambda memory_bsd, real_bs1: memory_bsd[:, :1]),
            "the memory is its last position alone": _one_vector(lambda memory_bsd, real_bs1: memory_bsd[:, -1:]),
            "the memory lacks its last position": _slice(slice(None, -1)),
            "the memory lacks its first position": _slice(slice(1, None)),
        },
        evidence="derived, not reported",
        replaces=_one_vector(lambda memory_bsd, real_bs1: arithmetic.mean(memory_bsd, 1)),
    ),
)
