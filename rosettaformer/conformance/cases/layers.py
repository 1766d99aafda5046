"""Cases of the feed-forward network, layer normalisation, dropout, and the encoder and decoder layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy.config import ACTIVATIONS

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng, shrinking_padding


def cases(build: Builder) -> Iterator[Case]:
    """Yields cases of a layer, and of its parts beside attention."""
    yield from _feed_forward_cases(build)
    yield from _normalization_cases(build)
    yield from _dropout_cases(build)
    yield from _layer_cases(build)


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
