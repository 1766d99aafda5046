"""Cases of the encoder, the decoder and the whole model."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, T, left_padding, padded_columns, ragged, rng, shrinking_padding

# Most cases need only one layer; the stacks' own cases and two of the whole model's have two.
ONE_LAYER: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}
# Known bugs visible in a whole model: for any input with distinct sizes and biases; tied; with padding.
ANY_INPUT = """
    EMB1 EMB2 EMB7 PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE8 PE9 PE10 ATT1 ATT2 ATT3 ATT4 CAU1 CAU2 CAU4 MHA1 MHA2 MHA4 MHA7 MHA8 MHA9 MHA11
    ATT23 CAU7 CAU8 EMB11 EMB12 FFN4 FFN5 FFN6 MHA13 MHA15 MHA16 MHA17 MHA18 MHA19 NRM20 NRM21 OUT1 PE18 PE20 PRC2 PRC3 PRC4 PRC5 PRC6
    FFN3 NRM1 NRM2 NRM3 NRM5 NRM8 NRM9 NRM10 NRM16 NRM17 NRM18 RES1 RES2 RES4
    STR1 STR4 STR5 STR6 STR7 STR8 STR9 STR10 STR11 CAU10 DRP1 PRC1
    PE23 PE24 PE25 PE26 PAD3 SEQ1 SEQ2 SEQ3 NRM22 NRM23 STR12 STR13 ATT31 ATT32 ATT33 ATT35 EMB13 EMB14 FFN7 MHA20 MHA21 DRP7
"""
UNTIED, TIED = "NRM8 NRM9 PAD1", "NRM8 NRM9 EMB3 EMB6"
PADDED = "PE19 PE22 PAD1 PAD2 ATT36 ATT22 ATT25 ATT26 ATT27 EMB3 ATT5 ATT6 ATT7 ATT8 ATT9 ATT10 ATT15 ATT16 ATT18 CAU4"


def cases(build: Builder) -> Iterator[Case]:
    """Yields every dialect, both paddings, soft rows, explicit masks, one position and 200."""
    yield from _stack_cases(build)
    for dialect in ("paper_base", "nn_transformer", "separate_tables", "unscaled_embedding", "feed_forward_dropout"):
        catches = ANY_INPUT if dialect == "nn_transformer" else UNTIED if dialect == "separate_tables" else TIED
        layers = {} if dialect == "nn_transformer" else ONE_LAYER
        yield _model(build, dialect, build.config(dialect, **layers), catches)
    yield _model(build, "pre_norm", build.config(norm_placement="pre", **ONE_LAYER), "NRM8 NRM10 NRM19 RES3 RES5 DRP1")
    grouped = build.config("paper_base", activation="gelu_erf", heads=6, key_value_heads=2, **ONE_LAYER)
    yield _model(build, "gelu_grouped_heads", grouped, "MHA10 FFN1 FFN2 EMB15")
    even = build.config(model_width=12, **ONE_LAYER)
    yield _model(build, "ragged", even, PADDED, ragged(B, S), ragged(B, T))
    yield _model(build, "left_padding", even, "PE11 ATT9 ATT11 ATT12 ATT13 ATT25 ATT29 CAU4", left_padding(B, S), left_padding(B, T))
    yield _model(build, "shrinking_padding", even, "PE11 PE27 ATT9 ATT36", shrinking_padding(B, S), shrinking_padding(B, T))
    yield _model(build, "padded_columns", even, "ATT9", padded_columns(B, S), padded_columns(B, T)[:, ::-1])
    yield _model(build, "same_length", even, "ATT16 ATT17 ATT21 ATT30", ragged(B, S), ragged(B, S)[::-1])
    square = build.config(model_width=12, key_size=4, value_size=4, **ONE_LAYER)
    yield _model(build, "square", square, "MHA1 MHA2 MHA3 MHA4 MHA5 MHA6 MHA13 MHA14 ATT24 ATT34", ragged(B, S), ragged(B, T))
    yield _model(build, "equal_vocabularies", build.config(target_vocabulary=29, **ONE_LAYER), "EMB10 EMB11 SEQ2")
    masks: dict[str, Any] = {"source_mask_bs": left_padding(B, S), "target_mask_bt": ragged(B, T)}
    yield _model(build, "explicit_masks", build.config(padding_id=None, **ONE_LAYER), "ATT16 ATT18 PE11", **masks)
    mixed = build.config("unscaled_embedding", **ONE_LAYER)
    soft = rng("transformer soft").dirichlet(np.ones(mixed.source_vocabulary), (B, S))
    hard = rng("transformer hard").integers(0, mixed.target_vocabulary, (B, T))
    yield _model(build, "soft_rows", mixed, source=soft, target=np.eye(mixed.target_vocabulary)[hard])
    yield _model(build, "attention_dropout", build.config(attention_dropout_rate=0.2, **ONE_LAYER), "DRP2")
    yield _model(build, "one_token", build.config(), "PE9 PE10", np.ones((1, 1), bool), np.ones((1, 1), bool))
    yield from _input_cases(build)
    yield _model(build, "long", build.config("paper_base", **ONE_LAYER), "", ragged(2, 200), ragged(2, 199))


def _input_cases(build: Builder) -> Iterator[Case]:
    """Yields segments, masks that differ from the padding ids, and 0 as the padding id."""
    padded, even = (ragged(B, S), ragged(B, T)), build.config(model_width=12, **ONE_LAYER)
    segmented = build.config(segments=3, embedding_norm=True, **ONE_LAYER)
    segment_bs = rng("transformer segments").integers(0, segmented.segments, (B, S)) if segmented.segments else None
    yield _model(build, "segments", segmented, "NRM13 SEG1 SEG2", *padded, segment_bs=segment_bs)
    masks: dict[str, Any] = {"source_mask_bs": shrinking_padding(B, S), "target_mask_bt": shrinking_padding(B, T)}
    yield _model(build, "masks_beside_padding", even, "ATT16 ATT18 PE11 PE27", *padded, **masks)
    yield _model(build, "padding_id_0", build.config(padding_id=0, **ONE_LAYER), "EMB3 PAD2", *padded)
    offset = {"position_offset": 2, "output_bias": True, **ONE_LAYER}
    nllb = build.config(positions="sinusoidal", sinusoid_layout="tensor2tensor", norm_placement="pre", **offset)
    yield _model(build, "nllb", nllb, "PE14 PE28", left_padding(B, S), left_padding(B, T))
    bart = build.config(positions="learned", max_positions=32, position_start="row", embedding_norm=True, final_norm=False, **offset)
    yield _model(build, "bart", bart, "PE14 PE17 NRM12", *padded)


def _model(build: Builder, name: str, config: TransformerConfig, catches: str = "", *masks: np.ndarray, **inputs: Any) -> Case:
    """Returns a whole-model case on random ids. masks: of source and target; False = padding."""
    drawn = tokens(config, *masks) if masks else tokens(config, np.ones((B, S), bool), np.ones((B, T), bool), name=f"{name} ")
    return build.make("transformer", name, config, catches, **(drawn | inputs))


def tokens(config: TransformerConfig, source_mask: np.ndarray, target_mask: np.ndarray, *, name: str = "") -> dict[str, Any]:
    """Returns the ids of a source and a target, with padding where the masks are False."""
    return {
        "source": ids(f"{name}source", config.source_vocabulary, config.padding_id, source_mask),
        "target": ids(f"{name}target", config.target_vocabulary, config.padding_id, target_mask),
    }


def ids(name: str, vocabulary: int, padding_id: int | None, mask: np.ndarray) -> np.ndarray:
    """Returns random ids including 0 or 1, with the padding id exactly where the mask is False."""
    ids = rng(f"transformer {name}").integers(3, vocabulary, mask.shape)
    ids[:, 1::3] = 0 if padding_id != 0 else 1
    if padding_id is None:
        return ids
    return np.where(mask, np.where(ids == padding_id, vocabulary - 1 if padding_id != vocabulary - 1 else 0, ids), padding_id)


def _stack_cases(build: Builder) -> Iterator[Case]:
    for name, case_config in (
        ("final_norm", build.config()),
        ("no_final_norm", build.config("separate_tables")),
        ("pre_norm", build.config(norm_placement="pre")),
        ("pre_norm_no_final_norm", build.config("separate_tables", norm_placement="pre")),
    ):
        norms = " NRM22" if case_config.final_norm else ""
        x: dict[str, Any] = {"x_bsd": "b s d", "mask_bhts": ragged(B, S)[:, None, None]}
        yield build.make("encoder", name, case_config, f"NRM8 NRM10 ATT18 CAU10 STR1 STR7 STR8 STR9 STR11 STR12{norms}", **x)
        x = {"x_btd": "b t d", "memory_bsd": "b s d", "self_mask_bhts": left_padding(B, T)[:, None, None]}
        yield build.make(
            "decoder",
            name,
            case_config,
            f"NRM8 NRM10 MHA11 STR1 STR7 STR8 STR11 STR12{norms}",
            **x,
            cross_mask_bhts=ragged(B, S)[:, None, None],
        )
    x = {"x_bsd": "b s d", "mask_bhts": padded_columns(B, S)[:, None, None]}
    yield build.make("encoder", "padded_columns", build.config(), "ATT18", **x)
    yield build.make("encoder", "one_encoder_layer", build.config("one_encoder_layer"), "NRM10", x_bsd="b s d")
    grouped = build.config(heads=6, key_value_heads=2, activation="gelu_tanh", attention_bias=False)
    x = {"x_bsd": "b s d", "mask_bhts": ragged(B, S)[:, None, None]}
    yield build.make("encoder", "grouped_heads_gelu_no_bias", grouped, "ATT18 FFN1 MHA10", **x)
    x = {"x_btd": "b t d", "memory_bsd": "b s d", "cross_mask_bhts": ragged(B, S)[:, None, None]}
    yield build.make("decoder", "grouped_heads_gelu_no_bias", grouped, "MHA10 FFN1", **x)
