"""Cases of components as other models divide them: self-attention, sub-layers with residual connection and norm, stacks on token ids."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng
from .single_stack import alone
from .transformer import ONE_LAYER, ids

ATTENTION = "ATT1 ATT2 MHA1 MHA2 MHA4 PRC1"
SQUARE: dict[str, Any] = {"model_width": 12, "key_size": 4, "value_size": 4}


def cases(build: Builder) -> Iterator[Case]:
    """Yields the cases of the original components in which the border between modules could hide a mistake."""
    for part in (_self_attention_cases, _sublayer_cases, _stack_cases):
        yield from part(build)


def _self_attention_cases(build: Builder) -> Iterator[Case]:
    padded, left = ragged(B, T)[:, None, None], left_padding(B, T)[:, None, None]
    empty = padded & (np.arange(B) < B - 1)[:, None, None, None]  # the last row has nothing to attend to
    rows: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
        ("plain", ATTENTION, {}, {}),
        ("ragged", "ATT5 ATT6 ATT7", {}, {"mask_bhts": padded}),
        ("left_padding", "ATT7 ATT13", {}, {"mask_bhts": left}),
        ("empty_row", "ATT7 ATT13", {}, {"mask_bhts": empty}),
        ("ragged_weights", "ATT1 ATT2 MHA1", {}, {"mask_bhts": padded, "return_weights": True}),
        ("square", "MHA1 MHA2 MHA3 MHA4 MHA5 MHA6", SQUARE, {}),
        ("causal", f"CAU1 CAU2 {ATTENTION}", {}, {"causal": True}),
        ("causal_ragged", "CAU1 CAU2 CAU4", {}, {"causal": True, "mask_bhts": padded}),
        ("causal_no_bias", "CAU1 CAU2", {"attention_bias": False}, {"causal": True}),
        ("causal_grouped_heads", "CAU1 CAU2 MHA10", {"heads": 6, "key_value_heads": 2}, {"causal": True}),
        ("causal_square", "CAU1 CAU2 MHA3 MHA5 MHA6", SQUARE, {"causal": True}),
    )
    for name, catches, changes, given in rows:
        yield build.make("self_attention", name, build.config(**changes), catches, x_btd="b t d", **given)


def _sublayer_cases(build: Builder) -> Iterator[Case]:
    x: dict[str, Any] = {"x_btd": "b t d"}
    memory: dict[str, Any] = {"memory_bsd": "b s d"}
    for norm in ("post", "pre"):
        config, norms = build.config(norm_placement=norm), "NRM8 NRM9" if norm == "post" else "NRM8"
        both = f"{norms} {ATTENTION}"
        yield build.make("self_attention_sublayer", norm, config, both, **x)
        yield build.make("self_attention_sublayer", f"{norm}_causal", config, "CAU1 CAU2", causal=True, **x)
        yield build.make("cross_attention_sublayer", norm, config, both, **x, **memory)
        yield build.make("feed_forward_sublayer", norm, config, f"{norms} FFN3 PRC1", **x)
    plain, ragged_bhts = build.config(), ragged(B, T)[:, None, None]
    yield build.make("self_attention_sublayer", "ragged", plain, "ATT5 ATT6 ATT7", mask_bhts=ragged_bhts, **x)
    yield build.make("self_attention_sublayer", "left_padding", plain, "ATT7 ATT13", mask_bhts=left_padding(B, T)[:, None, None], **x)
    yield build.make("cross_attention_sublayer", "ragged", plain, "ATT5 ATT6 ATT7", mask_bhts=ragged(B, S)[:, None, None], **x, **memory)
    padded = left_padding(B, S)[:, None, None]
    yield build.make("cross_attention_sublayer", "left_padding", plain, "ATT7 ATT13", mask_bhts=padded, **x, **memory)
    yield build.make("feed_forward_sublayer", "gelu", build.config(activation="gelu_tanh"), "FFN1", **x)


def _stack_cases(build: Builder) -> Iterator[Case]:
    """Yields post- and pre-norm, tables of positions and segments; padding shown by ids, given masks; a decoder without memory."""
    config, pre = build.config(model_width=12, **ONE_LAYER), build.config(norm_placement="pre", encoder_layers=2, decoder_layers=2)
    encoder, decoder = (alone(build, stack, padding_id=2) for stack in ("encoder", "decoder"))
    segment_bs = rng("layouts segments").integers(0, encoder.segments, (B, S)) if encoder.segments else None
    sources: tuple[tuple[str, Any, str, Any, dict[str, Any]], ...] = (
        ("post", config, "EMB1 PE1 ATT9 ATT18 NRM8 PAD1", ragged(B, S), {}),
        ("pre_norm", pre, "EMB1 PE1 NRM8 NRM10", ragged(B, S), {}),
        ("left_padding", config, "PE11 ATT9 ATT18", left_padding(B, S), {}),
        ("explicit_mask", config, "ATT18", ragged(B, S) | True, {"source_mask_bs": ragged(B, S)}),
        ("learned", encoder, "PE15 NRM12 SEG1", ragged(B, S), {"segment_bs": segment_bs}),
    )
    for name, own, catches, mask_bs, given in sources:
        source = ids(f"layouts {name} source", own.source_vocabulary, own.padding_id, mask_bs)
        yield build.make("token_encoder", name, own, catches, source=source, **given)
    memory: dict[str, Any] = {"memory_bsd": "b s d"}
    targets: tuple[tuple[str, Any, str, Any, dict[str, Any]], ...] = (
        ("post", config, "EMB1 PE1 CAU1 CAU2 NRM8", ragged(B, T), memory | {"source_mask_bs": ragged(B, S)}),
        ("pre_norm", pre, "EMB1 PE1 CAU1 CAU2 NRM8", ragged(B, T), memory),
        ("left_padding", config, "PE11 CAU4", left_padding(B, T), memory | {"source_mask_bs": ragged(B, S)}),
        ("explicit_mask", config, "CAU1 CAU2", ragged(B, T) | True, memory | {"target_mask_bt": ragged(B, T)}),
        ("alone", decoder, "PE15 CAU1 CAU2", ragged(B, T), {}),
    )
    for name, own, catches, mask_bt, given in targets:
        target = ids(f"layouts {name} target", own.target_vocabulary, own.padding_id, mask_bt)
        yield build.make("token_decoder", name, own, catches, target=target, **given)
