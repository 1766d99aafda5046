"""Cases of the embedding, the positions and the logits; of the feed-forward network, norms, dropout, and the layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy.config import ACTIVATIONS

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng, shrinking_padding


def cases(build: Builder) -> Iterator[Case]:
    """Yields cases from tokens to vectors and back; of a layer, and of its parts beside attention."""
    embedding = (_embedding_cases, _positional_encoding_cases)
    for part in (*embedding, _feed_forward_cases, _normalization_cases, _dropout_cases, _layer_cases):
        yield from part(build)


def _embedding_cases(build: Builder) -> Iterator[Case]:
    """Yields ids and soft one-hot rows, scaled and not; the padding id among the tokens; one position."""
    scaled, plain = build.config(), build.config("keras_lab")
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
    """Yields left and right padding; even and odd widths; one position, many, and far ones; more positions than rows."""
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
    """Yields every activation, swept over its whole bend and into its tails; the network with each, and at one position."""
    sweep = np.linspace(-9, 9, 361).reshape(1, 19, 19)
    for name in ACTIVATIONS:
        gelu = "FFN1 FFN2 FFN4 PRC6" if name.startswith("gelu") else "FFN4"
        yield build.make("activation", name, build.config(activation=name), gelu, x=sweep)
        yield build.make("feed_forward", name, build.config(activation=name), f"{gelu} FFN3 FFN5 FFN6 FFN7 PRC1", x_btd="b t d")
    yield build.make("feed_forward", "one_position", build.config(), "FFN3", x_btd="1 1 d")
    yield build.make("feed_forward", "hidden_dropout", build.config("sapiens"), x_btd="b t d")


def _normalization_cases(build: Builder) -> Iterator[Case]:
    """Yields rows of small variance, where epsilon shows; a large mean, where E[x^2] - E[x]^2 fails; a constant row; T = d."""
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
    """Returns a case of rows that the offset nearly cancels, so that rounding before scale and offset shows."""
    generator = rng("normalization cancelling")
    width = build.config().model_width
    pattern = generator.standard_normal(width)
    normalised = (pattern - pattern.mean()) / pattern.std()
    near = pattern + 0.01 * generator.standard_normal((B, T, width))
    fixed = {"scale": np.full(width, 48.0), "offset": -48.0 * normalised}
    return build.make("layer_norm", "cancelling_offset", build.config(), "NRM7", fixed, x_btd=near)


def _dropout_cases(build: Builder) -> Iterator[Case]:
    """Yields a mixed mask, a broadcast one, everything kept at rate 0, everything dropped; evaluation."""
    keep = rng("dropout keep").random((B, T, build.config().model_width)) < 0.7
    yield build.make("dropout", "mixed", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep)
    yield build.make("dropout", "broadcast", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep[:, :1])
    yield build.make("dropout", "rate_0", build.config(dropout_rate=0.0), x="b t d", keep=np.ones_like(keep))
    yield build.make("dropout", "all_dropped", build.config(dropout_rate=0.9), "DRP3", x="b t d", keep=np.zeros_like(keep))
    yield build.make("dropout", "evaluation", build.config(dropout_rate=0.3), "DRP1 DRP7", x="b t d", keep=None)


def _layer_cases(build: Builder) -> Iterator[Case]:
    """Yields post- and pre-norm, with and without biases, with ragged and left padding and a row without any visible key."""
    dialects = {
        "post": build.config(),
        "pre": build.config(norm_placement="pre"),
        "keras_lab": build.config("keras_lab"),
        "gelu": build.config("sapiens", activation="gelu_tanh", heads=6, key_value_heads=2),
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
    yield build.make("encoder_layer", "ict1022", build.config("ict1022"), x_btd="b t d")
    dropped = build.config(attention_dropout_rate=0.2)
    yield build.make("encoder_layer", "attention_dropout", dropped, "DRP2", x_btd="b t d")
    yield build.make("decoder_layer", "one_position", build.config(), x_btd="b 1 d", memory_bsd="b s d")
