"""Cases of the encoder, the decoder and the whole model."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, S, T, config, left_padding, make, ragged, rng

__all__ = ["cases"]

# The stacks have two layers in their own cases and in two of the whole model's; one is enough for what the others ask.
ONE_LAYER: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}


def cases() -> Iterator[Case]:
    """Every dialect, ragged and left-padded; soft rows; explicit masks; one position, and 200."""
    yield from _stack_cases()
    for dialect in ("paper_base", "semillero", "guide", "keras_lab", "sapiens"):
        catches = "EMB1 NRM8 NRM10" if dialect == "semillero" else "NRM8"
        layers = {} if dialect == "semillero" else ONE_LAYER
        yield _model(dialect, config(dialect, **layers), catches)
    yield _model("pre_norm", config(norm_placement="pre", **ONE_LAYER), "NRM8 NRM10")
    yield _model("gelu_grouped_heads", config("paper_base", activation="gelu_erf", heads=6, key_value_heads=2, **ONE_LAYER), "MHA10")
    even = config(model_width=12, **ONE_LAYER)
    yield _model("ragged", even, "ATT16", source=_ids("source", 29, ragged(B, S)), target=_ids("target", 23, ragged(B, T)))
    left: dict[str, Any] = {"source": _ids("source", 29, left_padding(B, S)), "target": _ids("target", 23, left_padding(B, T))}
    yield _model("left_padding", even, "PE11 ATT13", **left)
    yield _model("same_length", even, "ATT17", source=_ids("a", 29, ragged(B, S)), target=_ids("b", 23, ragged(B, S)[::-1]))
    masks: dict[str, Any] = {"source_mask_bs": left_padding(B, S), "target_mask_bt": ragged(B, T)}
    yield _model("explicit_masks", config(padding_id=None, **ONE_LAYER), "ATT16", **masks)
    soft = rng("transformer soft").dirichlet(np.ones(29), (B, S))
    yield _model("soft_rows", config("keras_lab", **ONE_LAYER), source=soft, target=np.eye(29)[_ids("target", 29, np.ones((B, T), bool))])
    yield _model("one_token", config(), "PE10", source=_ids("source", 29, np.ones((B, 1), bool))[:1], target=np.array([[1]]))
    long: dict[str, Any] = {"source": _ids("source", 29, ragged(2, 200)), "target": _ids("target", 29, ragged(2, 199))}
    yield _model("long", config("paper_base", **ONE_LAYER), **long)


def _model(name: str, case_config: TransformerConfig, catches: str = "", **inputs: Any) -> Case:
    source = _ids(f"{name} source", case_config.source_vocabulary, np.ones((B, S), bool))
    target = _ids(f"{name} target", case_config.target_vocabulary, np.ones((B, T), bool))
    return make("transformer", name, case_config, catches, **({"source": source, "target": target} | inputs))


def _ids(name: str, vocabulary: int, mask: np.ndarray) -> np.ndarray:
    """Random ids, among them a 0, and the padding id 2 exactly where the mask is False."""
    ids = rng(f"transformer {name}").integers(3, vocabulary, mask.shape)
    ids[:, 1::3] = 0
    return np.where(mask, ids, 2)


def _stack_cases() -> Iterator[Case]:
    for name, case_config in (
        ("final_norm", config()),
        ("no_final_norm", config("guide")),
        ("pre_norm", config(norm_placement="pre")),
        ("pre_norm_no_final_norm", config("guide", norm_placement="pre")),
    ):
        x = {"x_bsd": (B, S, 13), "mask_bhts": ragged(B, S)[:, None, None]}
        yield make("encoder", name, case_config, "NRM8 NRM10", **x)
        x = {"x_btd": (B, T, 13), "memory_bsd": (B, S, 13), "self_mask_bhts": left_padding(B, T)[:, None, None]}
        yield make("decoder", name, case_config, "NRM8 NRM10 MHA11", **x, cross_mask_bhts=ragged(B, S)[:, None, None])
    yield make("encoder", "ict1022", config("ict1022"), "NRM10", x_bsd=(B, S, 13))
