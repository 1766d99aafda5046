"""Cases of encoder-only and decoder-only models: BERT, GPT-2, and parts that only they have."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites
from reference_numpy.config import ACTIVATIONS

from ..case import Case
from .build import B, Builder, S, T, left_padding, padded_columns, ragged, rng, shrinking_padding
from .transformer import ONE_LAYER, ids

PLAIN = {"plain_causal": 5, "plain_causal_long": 40, "plain_causal_one_position": 1}
# Llama's choices, with distinct sizes; a port may fix any of them
USUAL: dict[str, Any] = {
    "heads": 6, "key_value_heads": 2, "key_size": 4, "value_size": 4, "model_width": 24, "epsilon": 1e-3, "rotary_base": 500.0,
    "padding_id": None, "decoder_layers": 2,
}  # fmt: skip


def _plain_cases(build: Builder) -> Iterator[Case]:
    """Yields causal attention and blocks at positions 0, 1, 2, ... with one head size and no mask.

    Everything but the decoder-only stack adapts to the port's fixed values, so that a single block
    can be tested.
    """
    heads = build.fixed.get("heads", USUAL["heads"])
    config = build.config("llama2_7b", USUAL | {"key_value_heads": 1 if heads % 2 else 2}, encoder_layers=0)
    for name, length in PLAIN.items():
        yield from _plain_parts(build, config, name, length)


def _plain_parts(build: Builder, config: TransformerConfig, name: str, length: int) -> Iterator[Case]:
    rows = f"b {length} d"
    token = ids(name, config.target_vocabulary, config.padding_id, np.ones((B, length), bool))
    given: dict[str, dict[str, Any]] = {
        "multi_head_attention": {"query_btd": rows, "memory_bsd": rows, "causal": True},
        "self_attention": {"x_btd": rows, "causal": True},
        "self_attention_sublayer": {"x_btd": rows, "causal": True},
        "decoder_layer": {"x_btd": rows},
        "decoder": {"x_btd": rows},
        "token_decoder": {"target": token},
        "transformer": {"source": None, "target": token},
    }
    for component, inputs in given.items():
        made = config.replace(decoder_layers=1) if component == "decoder_layer" and "decoder_layers" not in build.fixed else config
        yield build.make(component, name, made, **inputs)


POSITIONS = 11  # differs from all other sizes
SINGLE = ("float64", "float32")  # dtypes of the longer cases
RATES = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4, "classifier_dropout_rate": 0.5}
TOKENS = 8
SQUARE = {"model_width": 12, "key_size": 4, "value_size": 4}  # sizes at which a transposed projection also fits
# bugs visible in all layers; in post-norm encoders with padding; in pre-norm decoders
LAYERS = "ATT1 ATT2 ATT3 ATT4 ATT7 MHA1 MHA2 MHA4 MHA8 FFN1 FFN2 FFN3 NRM1 NRM2 NRM3 NRM5 NRM8 PRC1"
ENCODED = f"PE15 PE17 SEG1 SEG2 NRM12 NRM13 {LAYERS} ATT5 ATT6 ATT9 ATT18 NRM9 NRM10 NRM15"
DECODED = f"PE15 PE17 NRM12 {LAYERS} CAU1 CAU2 CAU6 NRM10"
# ModernBERT's choices, with a window of one token on each side in the second layer
MODERN = SQUARE | {
    "positions": "rotary", "max_positions": 0, "segments": 0, "norm_placement": "pre", "first_norm": False, "final_norm": True,
    "norm_offset": False, "gated_feed_forward": True, "layer_pattern": ("global", "local"), "window": 2, "head_bias": False,
    "rotary_base": 300.0, "local_rotary_base": 20.0, "encoder_layers": 2, "attention_bias": False, "feed_forward_bias": False, "heads": 3,
    "key_value_heads": 3,
}  # fmt: skip
POOLED, PREDICTED = "HED1 HED2 HED3 HED4 STR1", "EMB2 EMB6 EMB8 EMB9 HED5 HED6"


def cases(build: Builder) -> Iterator[Case]:
    """Yields a decoder block, learned positions, segments, heads, and padded whole models."""
    for part in (_plain_cases, _table_cases, _head_cases, _encoder_cases, _decoder_cases, _state_cases):
        yield from part(build)


def alone(build: Builder, stack: str, **changes: Any) -> TransformerConfig:
    """Returns BERT's choices for an encoder-only model, or GPT-2's for a decoder-only model."""
    return (_encoder if stack == "encoder" else _decoder)(build, **changes)


def _encoder(build: Builder, **changes: Any) -> TransformerConfig:
    """Returns BERT's choices with one layer, a larger epsilon, and no dropout of the classifier."""
    usual = {"max_positions": POSITIONS, "segments": 3, "epsilon": 1e-3, "masked_language_head": False, "padding_id": None}
    if "classes" in changes and build.fixed.get("classes"):
        usual["classes"] = changes.pop("classes")
    return _alone_in(build, "bert_base", usual, {"encoder_layers": 1, "decoder_layers": 0} | changes)


def _decoder(build: Builder, **changes: Any) -> TransformerConfig:
    """Returns GPT-2's choices with one layer."""
    usual = {"max_positions": changes.pop("max_positions", POSITIONS), "padding_id": None}
    return _alone_in(build, "gpt2_small", usual, {"encoder_layers": 0, "decoder_layers": 1} | changes)


def _alone_in(build: Builder, dialect: str, usual: dict[str, Any], changes: dict[str, Any]) -> TransformerConfig:
    """Returns the dialect with changes. usual: fields that a port of this stack may fix."""
    absent = "encoder_layers" if changes["encoder_layers"] == 0 else "decoder_layers"
    if build.fixed.get(absent) == 0:
        return build.config(dialect, usual, **changes)
    return build.config(dialect, **usual | changes)


def _table_cases(build: Builder) -> Iterator[Case]:
    learned = _encoder(build)
    positions = np.array([[0, 1, 2, 3], [POSITIONS - 1, 4, 4, 0], [9, 8, 7, 6]])
    yield build.make("position_embedding", "plain", learned, "PE15 PE17", position_bt=positions)
    yield build.make("position_embedding", "offset", _encoder(build, position_offset=2), "PE14 PE17", position_bt=positions)
    yield build.make("position_embedding", "one_position", learned, "PE15 PE17", position_bt=np.zeros((1, 1), int))
    segments = np.array([[0, 0, 1, 1], [2, 1, 0, 0], [0, 0, 0, 0]])
    yield build.make("segment_embedding", "segments", learned, "SEG1 SEG2", segment_bs=segments)
    rows = {"left": left_padding(4, S), "right": ragged(B, S)}
    yield build.make("token_positions", "row", learned, "PE16", mask_bt=rows["left"])
    yield build.make("token_positions", "row_right_padding", learned, mask_bt=rows["right"])


def _head_cases(build: Builder) -> Iterator[Case]:
    config = _encoder(build, classes=4)
    yield build.make("pooler", "plain", config, "HED1 HED3 HED4 PRC1", x_bsd="b s d")
    yield build.make("pooler", "one_token", config, "HED3 HED4", x_bsd="1 1 d")
    relu = config.replace(pooler_activation="relu")
    yield build.make("pooler", "relu", relu, "HED3 HED4", x_bsd="b s d")
    yield build.make("classifier", "plain", config, "DRP1 PRC1", pooled_br="b d")
    dropped = _encoder(build, classes=4, classifier_dropout_rate=0.3)
    keep_br = rng("classifier keep").random((B, config.model_width)) < 0.7
    yield build.make("classifier", "keep", dropped, "DRP3 DRP4", pooled_br="b d", keep_br=keep_br)
    head = "EMB2 EMB8 EMB9 HED5 HED6 NRM1 NRM3 NRM5 NRM15 PRC1"
    for name in ACTIVATIONS:
        gelu = "FFN1 FFN2" if name.startswith("gelu") else ""
        untied = _encoder(build, pooler=False, masked_language_head=True, activation=name)
        yield build.make("masked_language_head", name, untied, f"{gelu} {head}", x_bsd="b s d")
    unbiased = _encoder(build, pooler=False, masked_language_head=True, output_bias=False)
    yield build.make("masked_language_head", "no_bias", unbiased, "EMB2 HED5 HED6", x_bsd="1 1 d")
    bare = _encoder(build, pooler=False, masked_language_head=True, head_bias=False)
    yield build.make("masked_language_head", "no_dense_bias", bare, "HED5 HED6", x_bsd="b s d")
    bert = _encoder(build, pooler=False, masked_language_head=True, epsilon=1e-12)
    yield build.make("masked_language_head", "tiny_epsilon", bert, "NRM15", x_bsd="b s d")


def _encoder_cases(build: Builder) -> Iterator[Case]:
    two, sides = {"encoder_layers": 2}, {"left": left_padding(4, S)[:3], "right": ragged(B, S)}
    classes, masked = {"classes": 4, **two}, {"pooler": False, "masked_language_head": True}
    for component, own in (("pool", two), ("classify", classes), ("masked_language_logits", masked)):
        heads = PREDICTED if component == "masked_language_logits" else POOLED
        yield _read(build, component, "bert", _encoder(build, epsilon=1e-12, **own), f"{ENCODED} {heads}", sides["right"], True)
        yield _read(build, component, "no_mask", _encoder(build, **own), f"SEG1 SEG2 {heads}", None, True)
        yield _read(build, component, "no_segment", _encoder(build, **own), heads, sides["right"], False)
        yield _read(build, component, "left_padding", _encoder(build, **own), "PE16 SEG1 ATT9 ATT18", sides["left"], True)
        yield _read(build, component, "shrinking_padding", _encoder(build, **own), "ATT9 ATT18 ATT36", shrinking_padding(B, S), True)
        yield _read(build, component, "padded_columns", _encoder(build, **own), "ATT9 ATT18", padded_columns(B, S), True)
        square = _encoder(build, **SQUARE | own)
        yield _read(build, component, "square", square, "MHA3 MHA5 MHA6", sides["right"], True)
        grouped = _encoder(build, heads=6, key_value_heads=2, pooler_activation="relu", **two | own)
        yield _read(build, component, "grouped_heads", grouped, "MHA10", None, False)
        first = _encoder(build, position_start="first_token", position_offset=2, segments=0, **own)
        yield _read(build, component, "roberta", first, "PE11 PE14 PE17", sides["left"], False)
        pre = _encoder(build, norm_placement="pre", final_norm=True, embedding_norm=False, activation="gelu_tanh", **own)
        yield _read(build, component, "pre_norm", pre, "NRM8 NRM10 NRM12", sides["right"], True)
        sinusoidal = _encoder(build, positions="sinusoidal", max_positions=0, scale_embedding=True, padding_id=2, **own)
        yield _read(build, component, "sinusoidal", sinusoidal, "EMB1 PE1 PE7 PE9 SEG1 NRM13", None, True)
        dropped = _encoder(build, **RATES | own)
        keep = parameters.flatten(sites.draw(dropped, B, S, 0, rng(f"keep {component}")))
        masks = {f"keep.{name}": mask for name, mask in keep.items()}
        yield _read(build, component, "keep", dropped, "DRP3 DRP4 NRM14", sides["right"], True, **masks)
    modern = _encoder(build, **MODERN | masked)
    for name, mask in sides.items():
        known = "WIN1 NRM8 NRM10 NRM32 FFN8 ROT4"
        yield _read(build, "masked_language_logits", f"modernbert_{name}", modern, known, mask, False)
    yield build.make("encoder_layer", "bare", modern.replace(layer_pattern=("local",)), "NRM8 NRM32", x_btd="b s d")
    untied = _encoder(build, tie_logits=False, output_bias=False, **masked)
    yield _read(build, "masked_language_logits", "untied", untied, "EMB2 HED5 HED6", sides["right"], True)
    config = _encoder(build, **classes)
    label_b = rng("classification labels").integers(0, config.classes, B)
    known = f"{POOLED} SEG1 SEG2 PE17 NRM13"
    yield _read(build, "classification_loss", "bert", config, known, sides["right"], True, label_b=label_b)
    yield _read(
        build, "classification_loss", "part", config, "LOS1 LOS3 SEG1", sides["right"], True, label_b=label_b, smoothing=0.1, total=31
    )
    grouped = _encoder(build, heads=6, key_value_heads=2, pooler_activation="relu", **classes)
    extreme_b = (config.classes - 1) * np.array([0, 1, 0])
    yield _read(build, "classification_loss", "grouped_heads", grouped, "MHA10", None, False, label_b=extreme_b)
    yield _read(build, "classification_loss", "left_padding", config, "PE16", sides["left"], True, label_b=label_b)
    dropped = _encoder(build, **RATES | classes)
    keep = parameters.flatten(sites.draw(dropped, B, S, 0, rng("keep classification_loss")))
    masks = {f"keep.{name}": mask for name, mask in keep.items()}
    yield _read(build, "classification_loss", "keep", dropped, "DRP3 DRP4 NRM14", None, True, label_b=label_b, **masks)


def _read(
    build: Builder,
    component: str,
    name: str,
    config: TransformerConfig,
    catches: str,
    mask: np.ndarray | None,
    segments: bool,
    **inputs: Any,
) -> Case:
    """Returns a case that encodes random ids, with or without mask and segments."""
    given: dict[str, Any] = {"source": ids(component, config.source_vocabulary, config.padding_id, ragged(B, S))} | inputs
    if mask is not None:
        given["source_mask_bs"] = mask
    if segments and config.segments:
        given["segment_bs"] = rng(f"segments {component}").integers(0, config.segments, (B, S))
    return build.make(component, name, config, catches, **given)


def _decoder_cases(build: Builder) -> Iterator[Case]:
    x: dict[str, Any] = {"x_btd": "b t d"}
    config, left = _decoder(build), left_padding(4, T)[:3]
    yield build.make("decoder_layer", "alone", config, "NRM8 CAU1 CAU2 CAU6 FFN1 MHA4", **x)
    yield build.make("decoder_layer", "alone_left_padding", config, "CAU4 ATT13", **x, self_mask_bhts=left[:, None, None])
    yield build.make("decoder_layer", "alone_post", _decoder(build, norm_placement="post", final_norm=False), "NRM8 NRM9", **x)
    yield build.make(
        "decoder", "alone", _decoder(build, decoder_layers=2), "NRM8 NRM10 STR1 CAU4", **x, self_mask_bhts=ragged(B, T)[:, None, None]
    )
    for component in ("transformer", "training_loss"):
        loss: dict[str, Any] = {"smoothing": 0.1} if component == "training_loss" else {}
        known = "PE15 PE17 NRM8 NRM10 CAU1 CAU6 EMB2 EMB6 LOS1 LOS4" if loss else f"{DECODED} EMB2 EMB6 STR1"
        yield _alone(build, component, "gpt2", _decoder(build, decoder_layers=2), known, **loss)
        untied = _decoder(build, tie_logits=False, output_bias=True, activation="gelu_sigmoid")
        yield _alone(build, component, "gpt2_untied", untied, "FFN1 FFN2 EMB8 EMB9", **loss)
        yield _alone(build, component, "gpt2_padding_id", _decoder(build, padding_id=2), "EMB3 EMB6", **loss)
    yield _alone(build, "transformer", "gpt2_left_padding", config, "CAU4 PE11 ATT9 ATT11 ATT12 ATT13", target_mask_bt=left)
    yield _alone(build, "transformer", "gpt2_shrinking_padding", config, "PE11 PE27", target_mask_bt=shrinking_padding(B, T))
    yield _alone(build, "transformer", "gpt2_padded_columns", config, "PE11 ATT9", target_mask_bt=padded_columns(B, T)[:, ::-1])
    yield _alone(build, "transformer", "gpt2_right_padding", config, "CAU4", target_mask_bt=ragged(B, T))
    yield _alone(build, "transformer", "gpt2_square", _decoder(build, **SQUARE), "MHA3 MHA5 MHA6")
    yield _alone(build, "transformer", "gpt2_row_positions", _decoder(build, position_start="row"), "PE16", target_mask_bt=left)
    offset = _decoder(build, position_offset=2)
    yield _alone(build, "transformer", "gpt2_offset", offset, "PE14 PE17")
    for name, skipped in {"left": left, "shrinking": shrinking_padding(B, T)}.items():
        yield _alone(build, "transformer", f"gpt2_skip_{name}_padding", config, "PAD4 PAD5", target_mask_bt=skipped, skip_padding=True)
    yield _alone(build, "transformer", "gpt2_one_token", config, "PE15 PE17 NRM12 EMB2 EMB6", 1)
    yield _alone(build, "transformer", "gpt2_all_positions", config, "PE15 PE17", POSITIONS)
    yield _steps(build, "gpt2", config, "PE11 PE13 PE15 PE17 CAU3 CAU4 CAU6", (2, 1, 2), target_mask_bt=left)
    yield _steps(build, "gpt2_padded_columns", config, "PE11 CAU3", (2, 1, 2), target_mask_bt=padded_columns(B, T)[:, ::-1])
    offset = _decoder(build, position_offset=2, decoder_layers=2)
    yield _steps(build, "gpt2_one_by_one", offset, "PE13 PE14 PE17 CAU3", (1,) * T)
    bare = _decoder(build, first_norm=False, decoder_layers=2)
    yield _alone(build, "transformer", "gpt2_bare", bare, "NRM8 NRM32")
    yield _steps(build, "gpt2_bare", bare, "NRM32", (2, 1, 2))
    row = _decoder(build, position_start="row")
    yield _steps(build, "gpt2_row_positions", row, "PE13", (2, 1, 2), target_mask_bt=left)
    yield from _search_cases(build)


def _alone(build: Builder, component: str, name: str, config: TransformerConfig, catches: str, length: int = T, **inputs: Any) -> Case:
    """Returns a case of a decoder-only model on random ids."""
    mask = ragged(B, length) if config.padding_id is not None else np.ones((B, length), bool)
    given: dict[str, Any] = {"source": None, "target": ids(name, config.target_vocabulary, config.padding_id, mask)}
    return build.make(component, name, config, catches, **given | inputs)


def _steps(build: Builder, name: str, config: TransformerConfig, catches: str, splits: tuple[int, ...], **inputs: Any) -> Case:
    given: dict[str, Any] = {"target": ids(name, config.target_vocabulary, None, np.ones((B, T), bool)), "memory_bsd": None}
    case = build.make("decode_in_steps", name, config, catches, **given | inputs)
    return dataclasses.replace(case, inputs=dict(case.inputs) | {"splits": splits}, dtypes=SINGLE)


def _search_cases(build: Builder) -> Iterator[Case]:
    """Yields left-padded prompts of different lengths, where only the mask shows the padding."""
    config = _decoder(build, target_vocabulary=17, source_vocabulary=17, max_positions=POSITIONS + 2)
    uniform_bn = rng("sample gpt2").uniform(0.01, 0.99, (B, TOKENS))
    own: dict[str, dict[str, Any]] = {
        "greedy_search": {},
        "sample": {"uniform_bn": uniform_bn, "temperature": 1.4, "top_k": 6},
        "beam_search": {"beam_size": 3, "n_best": 2, "alpha": 1.0, "no_repeat_ngram": 2},
    }
    prefix = ids("gpt2 prefix", 17, None, np.ones((B, 4), bool))
    prefix_mask_bp = np.arange(4) >= np.array([[0], [3], [1]])
    for component, options in own.items():
        arrays = {name: value for name, value in options.items() if isinstance(value, np.ndarray)}
        strategy = {"start_id": None, "end_id": 1, "max_new_tokens": TOKENS} | {k: v for k, v in options.items() if k not in arrays}
        inputs: dict[str, Any] = {"source": None, "prefix": prefix, "prefix_mask_bp": prefix_mask_bp, **arrays}
        inputs |= {f"strategy.{name}": value for name, value in strategy.items()}
        catches = "CAU1 CAU3 PE11 PE13 PE15 PE17 NRM8" + (" GEN1 GEN5" if component == "beam_search" else "")
        case = build.make(component, "gpt2", config, catches, **inputs)
        yield dataclasses.replace(case, dtypes=("float32",))
        inputs["prefix_mask_bp"] = padded_columns(B, 5)[:, ::-1]
        inputs["prefix"] = ids("gpt2 prefix", 17, None, np.ones((B, 5), bool))
        yield build.make(component, "gpt2_padded_columns", config, "PE11", dtypes=("float32",), **inputs)


def _state_cases(build: Builder) -> Iterator[Case]:
    source = ids("states source", 29, None, np.ones((B, S), bool))
    target = ids("states target", 23, None, np.ones((B, T), bool))
    masks: dict[str, Any] = {"source_mask_bs": ragged(B, S), "target_mask_bt": left_padding(4, T)[:3]}
    segments = rng("states segments").integers(0, 3, (B, S))
    encoder, decoder = _encoder(build, encoder_layers=2, epsilon=1e-12), _decoder(build, decoder_layers=2)
    known = f"PE17 NRM12 {LAYERS}"
    own = {"source_mask_bs": masks["source_mask_bs"], "segment_bs": segments}
    yield build.make("states", "bert", encoder, f"{known} SEG1 NRM13", source=source, **own)
    yield build.make("states", "bert_unpadded", encoder, "PE17 NRM12", source=source)
    yield build.make("states", "gpt2", decoder, f"{known} CAU1 CAU6 PE11", target=target, target_mask_bt=masks["target_mask_bt"])
    paper = build.config("separate_tables", **ONE_LAYER)
    yield build.make("states", "paper", paper, "EMB1 PE1 PE11 ATT3 NRM8 CAU1", source=source, target=target, **masks)
    two = build.config("separate_tables", encoder_layers=2, decoder_layers=2)
    yield build.make("states", "paper_of_2_layers", two, "NRM8 CAU1", source=source, target=target, **masks)
