"""Cases of layers, their parts other than attention, embeddings, logits, and other layouts.

The other layouts are self-attention, sub-layers with residual connection and norm, and stacks on
token ids.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy.config import ACTIVATIONS

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng, shrinking_padding
from .single_stack import alone
from .transformer import ONE_LAYER, ids


def cases(build: Builder) -> Iterator[Case]:
    """Yields the cases of embeddings, parts, layers, sub-layers and stacks."""
    embedding = (_embedding_cases, _positional_encoding_cases)
    divisions = (_self_attention_cases, _sublayer_cases, _stack_cases)
    layers = (_feed_forward_cases, _normalization_cases, _dropout_cases, _whole_layer_cases)
    for part in (*embedding, *layers, *divisions):
        yield from part(build)


def _embedding_cases(build: Builder) -> Iterator[Case]:
    """Yields ids and soft one-hot rows, scaled or not; padding ids; one position."""
    scaled, plain = build.config(), build.config("unscaled_embedding")
    vocabulary = scaled.source_vocabulary
    ids = rng("embedding ids").integers(0, vocabulary, (B, T))
    ids[0, :2] = 2  # the padding id
    yield build.make("embedding", "ids", scaled, "EMB1 EMB7 EMB12 EMB13 EMB14", token=ids)
    yield build.make("embedding", "ids_unscaled", plain, token=ids)
    yield build.make("embedding", "one_token", scaled, "EMB1", token=ids[:, :1])
    yield build.make("embedding", "int32_ids", scaled, token=ids.astype(np.int32))
    yield build.make("embedding", "every_id", scaled, token=np.arange(vocabulary)[None])
    soft = rng("embedding soft").dirichlet(np.ones(vocabulary), (B, T))
    yield build.make("embedding", "soft_rows", plain, token=soft)
    yield build.make("embedding", "one_hot_rows", scaled, "EMB1", token=np.eye(vocabulary)[ids])
    yield build.make("embedding", "batch_0", scaled, token=ids[:0])
    yield build.make("logits", "bias", scaled, "EMB2 EMB8 EMB9 OUT1 PRC1 PRC5", x_btd="b t d")
    yield build.make("logits", "no_bias", plain, "EMB2 PRC1", x_btd="b t d")
    yield build.make("logits", "one_token", scaled, "EMB2", x_btd="1 1 d")


def _positional_encoding_cases(build: Builder) -> Iterator[Case]:
    """Yields both paddings, even and odd widths, and one, many and far positions."""
    odd, even = build.config(), build.config(model_width=12)
    yield build.make("token_positions", "no_padding", odd, mask_bt=np.ones((B, T), bool))
    yield build.make("token_positions", "right_padding", odd, "PE22 PE23", mask_bt=ragged(B, S))
    yield build.make("token_positions", "left_padding", odd, "PE11", mask_bt=left_padding(4, S))
    yield build.make("token_positions", "shrinking_padding", odd, "PE11 PE27", mask_bt=shrinking_padding(B, S))
    yield build.make("token_positions", "gap", odd, "PE11 PE22 PE23", mask_bt=np.array([[False, True, False, True, False]]))
    steps = np.tile(np.arange(S), (B, 1))
    yield build.make("positional_encoding", "even_width", even, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE9 PE10 PE20 PE24 PRC2", position_bt=steps)
    yield build.make("positional_encoding", "odd_width", odd, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE8 PE9 PE10 PE20 PRC2", position_bt=steps)
    yield build.make("positional_encoding", "one_position", even, "PE9 PE10", position_bt=np.zeros((B, 1), int))
    yield build.make("positional_encoding", "width_1", build.config(model_width=1), position_bt=steps)
    yield build.make("positional_encoding", "long", even, "PE1 PE2 PE6 PE7", position_bt=np.arange(200)[None])
    yield build.make("positional_encoding", "far", even, "PE21", position_bt=np.array([[9_999, 10_000, 65_537, 1_000_000]]))
    yield build.make("positional_encoding", "scattered", odd, "PE5 PE9", position_bt=np.array([[0, 0, 1, 2], [3, 1, 4, 1]]))


def _feed_forward_cases(build: Builder) -> Iterator[Case]:
    """Yields every activation over its whole range, networks, one position."""
    sweep = np.linspace(-9, 9, 361).reshape(1, 19, 19)
    for name in ACTIVATIONS:
        gelu = "FFN1 FFN2 FFN4 PRC6" if name.startswith("gelu") else "FFN4"
        yield build.make("activation", name, build.config(activation=name), gelu, x=sweep)
        yield build.make("feed_forward", name, build.config(activation=name), f"{gelu} FFN3 FFN5 FFN6 FFN7 PRC1", x_btd="b t d")
    yield build.make("feed_forward", "one_position", build.config(), "FFN3", x_btd="1 1 d")
    yield build.make("feed_forward", "hidden_dropout", build.config("feed_forward_dropout"), x_btd="b t d")


def _normalization_cases(build: Builder) -> Iterator[Case]:
    """Yields small variances, where epsilon matters; large means; constant rows; T = d."""
    generator = rng("normalization values")
    narrow, width = build.config(model_width=4), build.config().model_width
    shrinking = generator.standard_normal((B, S, narrow.model_width)) * np.logspace(0, -3, S)[:, None]
    far = 100 + generator.standard_normal((B, T, width))
    constant = np.repeat(generator.standard_normal((B, T, 1)), width, axis=2)
    formula = "NRM1 NRM2 NRM3 NRM5 NRM20 NRM21 NRM23 PRC4"
    yield build.make("layer_norm", "small_variance", narrow, formula, x_btd=shrinking)
    yield build.make("layer_norm", "small_variance_1e_6", build.config(model_width=4, epsilon=1e-6), formula, x_btd=shrinking)
    yield build.make("layer_norm", "plain", build.config(), "NRM3 NRM5 NRM20 NRM21 NRM23", x_btd="b t d")
    yield build.make("layer_norm", "large_mean", build.config(), "NRM4", x_btd=far)
    yield build.make("layer_norm", "constant_rows", build.config(), x_btd=constant)
    yield build.make("layer_norm", "square", build.config(), "NRM5", x_btd="b d d")
    yield _cancelling_offset(build)
    yield build.make("layer_norm", "one_position", build.config(), x_btd="1 1 d")
    yield build.make("layer_norm", "tiny_epsilon", build.config(model_width=4, epsilon=1e-12), "NRM15", x_btd=shrinking)
    yield build.make("layer_norm", "batch_0", build.config(), x_btd="0 t d")


def _cancelling_offset(build: Builder) -> Case:
    """Returns rows that the offset nearly cancels, which exposes early rounding."""
    generator = rng("normalization cancelling")
    width = build.config().model_width
    pattern = generator.standard_normal(width)
    normalised = (pattern - pattern.mean()) / pattern.std()
    near = pattern + 0.01 * generator.standard_normal((B, T, width))
    fixed = {"scale": np.full(width, 48.0), "offset": -48.0 * normalised}
    return build.make("layer_norm", "cancelling_offset", build.config(), "NRM7", fixed, x_btd=near)


def _dropout_cases(build: Builder) -> Iterator[Case]:
    """Yields mixed and broadcast masks, nothing or all dropped, and evaluation mode."""
    keep = rng("dropout keep").random((B, T, build.config().model_width)) < 0.7
    yield build.make("dropout", "mixed", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep)
    yield build.make("dropout", "broadcast", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep[:, :1])
    yield build.make("dropout", "rate_0", build.config(dropout_rate=0.0), x="b t d", keep=np.ones_like(keep))
    yield build.make("dropout", "all_dropped", build.config(dropout_rate=0.9), "DRP3", x="b t d", keep=np.zeros_like(keep))
    yield build.make("dropout", "evaluation", build.config(dropout_rate=0.3), "DRP1 DRP7", x="b t d", keep=None)


def _whole_layer_cases(build: Builder) -> Iterator[Case]:
    """Yields post- and pre-norm, biases or none, ragged and left padding, an empty row."""
    dialects = {
        "post": build.config(),
        "pre": build.config(norm_placement="pre"),
        "unscaled_embedding": build.config("unscaled_embedding"),
        "gelu": build.config("feed_forward_dropout", activation="gelu_tanh", heads=6, key_value_heads=2),
    }
    x: dict[str, Any] = {"x_btd": "b t d"}
    memory: dict[str, Any] = {"memory_bsd": "b s d"}
    masks: dict[str, Any]
    for name, case_config in dialects.items():
        norms = "NRM8" if name == "pre" else "NRM8 NRM9"
        norms += " RES3 RES5 NRM19" if name == "pre" else " RES4 STR4 STR6"
        norms += " RES1 RES2 NRM16 NRM17 NRM18"
        yield build.make("encoder_layer", name, case_config, f"{norms} ATT1 ATT2 MHA1 MHA2 MHA4 FFN3 DRP1 PRC1", **x)
        yield build.make(
            "encoder_layer", f"{name}_ragged", case_config, "ATT5 ATT6 ATT7 ATT18 ATT27 CAU10", mask_bhts=ragged(B, T)[:, None, None], **x
        )
        yield build.make("decoder_layer", name, case_config, f"{norms} MHA11 CAU1 CAU2 CAU7 CAU8 STR5 ATT35", **x, **memory)
        masks = {"self_mask_bhts": ragged(B, T)[:, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
        yield build.make("decoder_layer", f"{name}_ragged", case_config, "ATT16 CAU4", **x, **memory, **masks)
    padded: dict[str, Any] = {"mask_bhts": left_padding(B, T)[:, None, None]}
    yield build.make("encoder_layer", "left_padding", build.config(), "ATT13 ATT18", x_btd="b t d", **padded)
    shrinking = shrinking_padding(B, T)[:, None, None]
    yield build.make("encoder_layer", "shrinking_padding", build.config(), "ATT18 ATT36", x_btd="b t d", mask_bhts=shrinking)
    masks = {"self_mask_bhts": left_padding(B, T)[:, None, None], "cross_mask_bhts": left_padding(B, S)[:, None, None]}
    yield build.make("decoder_layer", "left_padding", build.config(), "ATT11 ATT13 CAU4", x_btd="b t d", memory_bsd="b s d", **masks)
    square: dict[str, Any] = {"self_mask_bhts": ragged(B, S)[::-1, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
    yield build.make("decoder_layer", "same_length", build.config(), "ATT16 ATT17 ATT21 ATT30", x_btd="b s d", memory_bsd="b s d", **square)
    yield build.make("encoder_layer", "one_encoder_layer", build.config("one_encoder_layer"), x_btd="b t d")
    dropped = build.config(attention_dropout_rate=0.2)
    yield build.make("encoder_layer", "attention_dropout", dropped, "DRP2", x_btd="b t d")
    yield build.make("decoder_layer", "one_position", build.config(), x_btd="b 1 d", memory_bsd="b s d")


ATTENTION = "ATT1 ATT2 MHA1 MHA2 MHA4 PRC1"
SQUARE: dict[str, Any] = {"model_width": 12, "key_size": 4, "value_size": 4}


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
    yield build.make("self_attention_sublayer", "causal_ragged", plain, "CAU1 CAU2 CAU4", causal=True, mask_bhts=ragged_bhts, **x)
    grouped = build.config(heads=6, key_value_heads=2, epsilon=1e-2)
    yield build.make("cross_attention_sublayer", "grouped_heads", grouped, "MHA10", **x, **memory)
    padded = left_padding(B, S)[:, None, None]
    yield build.make("cross_attention_sublayer", "left_padding", plain, "ATT7 ATT13", mask_bhts=padded, **x, **memory)
    yield build.make("feed_forward_sublayer", "gelu", build.config(activation="gelu_tanh"), "FFN1", **x)


def _stack_cases(build: Builder) -> Iterator[Case]:
    """Yields both norm placements, learned positions, segments, both kinds of masks."""
    config, pre = build.config(model_width=12, **ONE_LAYER), build.config(norm_placement="pre", encoder_layers=2, decoder_layers=2)
    encoder, decoder = (alone(build, stack, padding_id=2) for stack in ("encoder", "decoder"))
    grouped = {"heads": 6, "key_value_heads": 2, "key_size": 4, "padding_id": 2}
    segment_bs = rng("layouts segments").integers(0, encoder.segments, (B, S)) if encoder.segments else None
    sources: tuple[tuple[str, Any, str, Any, dict[str, Any]], ...] = (
        ("post", config, "EMB1 PE1 ATT9 ATT18 NRM8 PAD1", ragged(B, S), {}),
        ("pre_norm", pre, "EMB1 PE1 NRM8 NRM10", ragged(B, S), {}),
        ("left_padding", config, "PE11 ATT9 ATT18", left_padding(B, S), {}),
        ("explicit_mask", config, "ATT18", ragged(B, S) | True, {"source_mask_bs": ragged(B, S)}),
        ("learned", encoder, "PE15 NRM12 SEG1", ragged(B, S), {"segment_bs": segment_bs}),
        ("grouped_heads", build.config(**ONE_LAYER, **grouped), "MHA10", ragged(B, S), {}),
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
        ("rotary", build.config("llama2_7b", encoder_layers=0, decoder_layers=1, **grouped), "MHA10 ROT1", left_padding(B, T), {}),
    )
    for name, own, catches, mask_bt, given in targets:
        target = ids(f"layouts {name} target", own.target_vocabulary, own.padding_id, mask_bt)
        yield build.make("token_decoder", name, own, catches, target=target, **given)
