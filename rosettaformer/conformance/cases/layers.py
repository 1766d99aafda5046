"""Cases of the encoder and decoder layers."""

from collections.abc import Iterator
from typing import Any

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Post- and pre-norm, with and without biases, with ragged and left padding and a row that sees nothing."""
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
        yield build.make("encoder_layer", name, case_config, f"{norms} ATT1 ATT2 MHA1 MHA2 MHA4 FFN3 DRP1 PRC1", **x)
        yield build.make("encoder_layer", f"{name}_ragged", case_config, "ATT5 ATT6 ATT7 ATT18", mask_bhts=ragged(B, T)[:, None, None], **x)
        yield build.make("decoder_layer", name, case_config, f"{norms} MHA11 CAU1 CAU2", **x, **memory)
        masks = {"self_mask_bhts": ragged(B, T)[:, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
        yield build.make("decoder_layer", f"{name}_ragged", case_config, "ATT16 CAU4", **x, **memory, **masks)
    padded: dict[str, Any] = {"mask_bhts": left_padding(B, T)[:, None, None]}
    yield build.make("encoder_layer", "left_padding", build.config(), "ATT13 ATT18", x_btd="b t d", **padded)
    masks = {"self_mask_bhts": left_padding(B, T)[:, None, None], "cross_mask_bhts": left_padding(B, S)[:, None, None]}
    yield build.make("decoder_layer", "left_padding", build.config(), "ATT11 ATT13 CAU4", x_btd="b t d", memory_bsd="b s d", **masks)
    square: dict[str, Any] = {"self_mask_bhts": ragged(B, S)[::-1, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
    yield build.make("decoder_layer", "same_length", build.config(), "ATT16 ATT17", x_btd="b s d", memory_bsd="b s d", **square)
    yield build.make("encoder_layer", "ict1022", build.config("ict1022"), x_btd="b t d")
    dropped = build.config(attention_dropout_rate=0.2)
    yield build.make("encoder_layer", "attention_dropout", dropped, "DRP2", x_btd="b t d")
    yield build.make("decoder_layer", "one_position", build.config(), x_btd="b 1 d", memory_bsd="b s d")
