"""Cases of the encoder and decoder layers."""

from collections.abc import Iterator

from ..case import Case
from .build import B, S, T, config, left_padding, make, ragged

__all__ = ["cases"]

_DIALECTS = {
    "post": config(),
    "pre": config(norm_placement="pre"),
    "keras_lab": config("keras_lab"),
    "gelu": config("sapiens", activation="gelu_tanh", heads=6, key_value_heads=2),
}


def cases() -> Iterator[Case]:
    """Post- and pre-norm, with and without biases, with ragged and left padding and a row that sees nothing."""
    for name, case_config in _DIALECTS.items():
        norms = "NRM8" if name == "pre" else "NRM8 NRM9"
        x = {"x_btd": (B, T, 13)}
        yield make("encoder_layer", name, case_config, f"{norms} ATT1 ATT2 MHA1 MHA2", **x)
        yield make("encoder_layer", f"{name}_ragged", case_config, "ATT5 ATT6 ATT7", mask_bhts=ragged(B, T)[:, None, None], **x)
        memory = {"memory_bsd": (B, S, 13)}
        yield make("decoder_layer", name, case_config, f"{norms} MHA11 CAU1 CAU2", **x, **memory)
        masks = {"self_mask_bhts": ragged(B, T)[:, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
        yield make("decoder_layer", f"{name}_ragged", case_config, "ATT16", **x, **memory, **masks)
    padded = {"mask_bhts": left_padding(B, T)[:, None, None]}
    yield make("encoder_layer", "left_padding", config(), "ATT13", x_btd=(B, T, 13), **padded)
    masks = {"self_mask_bhts": left_padding(B, T)[:, None, None], "cross_mask_bhts": left_padding(B, S)[:, None, None]}
    yield make("decoder_layer", "left_padding", config(), "ATT13", x_btd=(B, T, 13), memory_bsd=(B, S, 13), **masks)
    square = {"self_mask_bhts": ragged(B, S)[::-1, None, None], "cross_mask_bhts": ragged(B, S)[:, None, None]}
    yield make("decoder_layer", "same_length", config(), "ATT16 ATT17", x_btd=(B, S, 13), memory_bsd=(B, S, 13), **square)
    yield make("encoder_layer", "ict1022", config("ict1022"), x_btd=(B, T, 13))
    yield make("decoder_layer", "one_position", config(), x_btd=(B, 1, 13), memory_bsd=(B, S, 13))
