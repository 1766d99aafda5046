"""Defects of the residual connections and of what the sub-layers are given."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import dropout, layers, mask, normalization

from .defect import CONFIGURED, Defect, on_arguments, on_call

__all__ = ["DEFECTS"]


def _other_placement(config: Any) -> Any:
    return config.replace(norm_placement="post" if config.norm_placement == "pre" else "pre")


def _norm_before_residual(
    original: Callable, parameters: Any, config: Any, name: str, x_btd: np.ndarray, y_btd: np.ndarray, keep: Any
) -> np.ndarray:
    if config.norm_placement == "pre":
        return original(parameters, config, name, x_btd, y_btd, keep)
    y_btd = dropout.dropout(y_btd, dropout.part(keep, f"{name}_dropout"), config.dropout_rate)
    return x_btd + normalization.layer_norm(parameters[f"{name}_norm"], y_btd, config.epsilon)


def _cross_mask_dropped(name: str, **others: Any) -> dict[str, Any]:
    return {"mask_bhts": None} if name == "cross_attention" else {}


def _target_mask_for_cross(memory_bsd: Any, self_mask_bhts: Any, **others: Any) -> dict[str, Any]:
    given = memory_bsd is not None and self_mask_bhts is not None
    fits = given and self_mask_bhts.shape[-1] == memory_bsd.shape[1]
    return {"cross_mask_bhts": self_mask_bhts} if fits else {}


def _source_mask_for_target(cross_mask_bhts: Any, x_btd: np.ndarray, **others: Any) -> dict[str, Any]:
    fits = cross_mask_bhts is not None and cross_mask_bhts.shape[-1] == x_btd.shape[1]
    return {"self_mask_bhts": cross_mask_bhts} if fits else {}


def _causal(x_btd: np.ndarray, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    return {"mask_bhts": mask.combine_masks(mask_bhts, mask.causal_mask(x_btd.shape[1], x_btd.shape[1]))}


def _cross_query_from_attention(original: Callable, *args: Any, **options: Any) -> np.ndarray:
    """The layer whose cross-attention is asked with the self-attention's output, before residual and norm."""
    attend, outputs = layers._attend, dict[str, np.ndarray]()

    def of_output(parameters: Any, config: Any, name: str, query_btd: np.ndarray, *others: Any) -> np.ndarray:
        outputs[name] = attend(parameters, config, name, outputs["self_attention"] if name == "cross_attention" else query_btd, *others)
        return outputs[name]

    with mock.patch.object(layers, "_attend", of_output):
        return original(*args, **options)


def _cross_query_from_input(original: Callable, parameters: Any, config: Any, x_btd: np.ndarray, *rest: Any, **options: Any) -> np.ndarray:
    attend = layers._attend

    def from_input(parameters: Any, config: Any, name: str, query_btd: np.ndarray, *others: Any) -> np.ndarray:
        return attend(parameters, config, name, x_btd if name == "cross_attention" else query_btd, *others)

    with mock.patch.object(layers, "_attend", from_input):
        return original(parameters, config, x_btd, *rest, **options)


_RESIDUAL = ("layers.residual_in", "layers.residual_out", "layers.residual_in_vjp", "layers.residual_out_vjp")
DEFECTS = (
    Defect(
        id="NRM8",
        title="pre-norm for post-norm, or the reverse",
        component="encoder_layer",
        what="`x + f(norm(x))` where the config says `norm(x + f(x))`, or the reverse.",
        shows="Every layer's output differs. Any input shows it.",
        torch="x = self.norm(x + self.dropout(f(x)))  # post; nn.TransformerEncoderLayer(norm_first=False)",
        tf="x = self.norm(x + self.dropout(f(x), training=training))  # post; keras-hub: normalize_first=False",
        jax="x = self.norm(x + self.dropout(f(x)))  # post",
        elsewhere=CONFIGURED,
        evidence="annotated-transformer#1",
        replaces=dict.fromkeys(_RESIDUAL, on_arguments(config=_other_placement)),
    ),
    Defect(
        id="NRM9",
        title="the norm precedes the residual's sum",
        component="encoder_layer",
        what="`x + norm(f(x))` instead of post-norm's `norm(x + f(x))`.",
        shows="The residual stream is never normalised and grows with depth. Any post-norm input shows it.",
        torch="x = self.norm(x + self.dropout(f(x)))",
        tf="x = self.norm(x + self.dropout(f(x), training=training))",
        jax="x = self.norm(x + self.dropout(f(x)))",
        evidence="Compact-Transformers#25",
        replaces={"layers.residual_out": _norm_before_residual},
    ),
    Defect(
        id="ATT16",
        title="the memory's padding mask is dropped",
        component="decoder_layer",
        what="The cross-attention sees the padding of the source: its mask is not passed on.",
        shows="Logits change with the length of the source's padding. A padded source shows it.",
        torch="decoder(target, memory, memory_key_padding_mask=source == padding_id)  # beside src_key_padding_mask",
        tf="self.cross_attention(x, memory, attention_mask=source_mask[:, None, :])",
        jax="self.cross_attention(x, memory, mask=nn.make_attention_mask(target_mask, source_mask))",
        evidence="guide, transformers#47946",
        replaces={"layers._attend": on_call(_cross_mask_dropped)},
    ),
    Defect(
        id="ATT17",
        title="the target's mask hides the memory",
        what="The cross-attention is given the self-attention's padding mask, which fits without an error where s = t.",
        shows="Real source tokens are hidden and padding is seen. Equal lengths with different padding show it.",
        torch="decoder(target, memory, tgt_key_padding_mask=~target_mask, memory_key_padding_mask=~source_mask)",
        tf="self.cross_attention(x, memory, attention_mask=source_mask[:, None, :])  # of the memory, not of x",
        jax="mask = nn.make_attention_mask(target_mask, source_mask)  # query's, key's",
        evidence="keras-io#1964, SeekDeeper#3",
        replaces={"layers.decoder_layer": on_call(_target_mask_for_cross)},
    ),
    Defect(
        id="ATT30",
        title="the source's mask hides the target",
        what="The decoder's self-attention is given the memory's padding mask, which fits without an error where s = t.",
        shows="Real target tokens are hidden. Equal lengths with different padding show it.",
        component="decoder_layer",
        torch="decoder(target, memory, tgt_key_padding_mask=~target_mask, memory_key_padding_mask=~source_mask)",
        tf="self.self_attention(x, x, attention_mask=target_mask[:, None, :], use_causal_mask=True)  # of x, not of the memory",
        jax="mask = nn.combine_masks(nn.make_attention_mask(target_mask, target_mask), nn.make_causal_mask(target))",
        evidence="Practical_NLP_in_PyTorch#1",
        replaces={"layers.decoder_layer": on_call(_source_mask_for_target)},
    ),
    Defect(
        id="CAU10",
        title="the encoder is causal",
        what="The look-ahead mask of the decoder is given to the encoder's self-attention, too.",
        shows="A source token does not see those after it. Any source of two tokens shows it.",
        torch="memory = encoder(source, src_key_padding_mask=~source_mask)  # no mask, is_causal=False",
        tf="x = self.self_attention(x, x, attention_mask=source_mask[:, None, :])  # no use_causal_mask",
        jax="x = self.self_attention(x, mask=nn.make_attention_mask(source_mask, source_mask))  # no causal mask",
        evidence="transformers#42820, DR4SR#7",
        replaces={"layers.encoder_layer": on_call(_causal)},
    ),
    Defect(
        id="ATT18",
        title="the padding mask is lost in the encoder's self-attention",
        what="The implicit mask that travels with the embedding's output is not passed on; the cross-attention keeps its own.",
        shows="The memory changes with the length of the source's padding. A padded source shows it.",
        torch="encoder(source, src_key_padding_mask=~source_mask)",
        tf="self.self_attention(x, x, attention_mask=source_mask[:, None, :])  # pass it; do not rely on x._keras_mask",
        jax="self.self_attention(x, mask=nn.make_attention_mask(source_mask, source_mask))",
        evidence="keras-hub#2220",
        replaces={"layers.encoder_layer": on_arguments(mask_bhts=None)},
    ),
    Defect(
        id="MHA11",
        title="the cross-attention's query is the layer's input",
        what="`attend(x, memory)` with x from before the self-attention, its residual and its norm, or from between them.",
        shows="The self-attention's result reaches the output by the residual alone, or its residual does not reach the query. Any decoder "
        "input shows it.",
        torch="x = self.norm1(x + self.self_attention(x)); x = self.norm2(x + self.cross_attention(x, memory))",
        tf="x = self.norm1(x + self.self_attention(x, x)); x = self.norm2(x + self.cross_attention(x, memory))",
        jax="x = self.norm1(x + self.self_attention(x)); x = self.norm2(x + self.cross_attention(x, memory))",
        variants={
            "the cross-attention's query is the self-attention's output, before residual and norm": {
                "layers.decoder_layer": _cross_query_from_attention
            }
        },
        evidence="keras_lab, mlx#3382, Practical_NLP_in_PyTorch#1",
        replaces={"layers.decoder_layer": _cross_query_from_input},
    ),
)
