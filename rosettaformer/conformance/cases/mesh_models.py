"""The models of the cases on a mesh, and what they read: of sizes of which none is symmetric under a mesh."""

from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from .build import Builder, rng
from .transformer import ids

ROWS, T, S = 5, 6, 7
SIZES: dict[str, Any] = {
    "source_vocabulary": 37, "target_vocabulary": 37, "model_width": 16, "key_size": 6, "value_size": 10, "feed_forward_width": 24,
    "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
HEADS: dict[str, Any] = {"heads": 8, "key_value_heads": 8}
GROUPS: dict[str, Any] = {"key_value_heads": 2}
DECODER: dict[str, Any] = {"encoder_layers": 0, "padding_id": 0} | GROUPS
RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
NONE = dict.fromkeys((*RATES, "classifier_dropout_rate"), 0.0)


def _config(build: Builder, dialect: str, **changes: Any) -> TransformerConfig:
    """Returns a dialect's config at these sizes, without dropout if no rate is given."""
    return build.config(dialect, NONE | HEADS, **SIZES | {"padding_id": 0} | changes)


def models(build: Builder) -> dict[str, TransformerConfig]:
    """Returns a whole model of each kind, and the paper's with tables of its own."""
    llama: dict[str, Any] = DECODER | {"epsilon": 1e-3, "rotary_base": 500.0}
    gemma: dict[str, Any] = {"score_scale": 0.45, "score_cap": 2.0, "logit_cap": 3.0, "window": 3, "decoder_layers": 2}
    bert: dict[str, Any] = {"decoder_layers": 0, "max_positions": 11, "segments": 3, "epsilon": 1e-3}
    return {
        "paper": _config(build, "paper_base"),
        "untied": _config(build, "semillero", target_vocabulary=41, **GROUPS),
        "bert": _config(build, "bert_base", classes=3, masked_language_head=False, **bert),
        "bert_words": _config(build, "bert_base", pooler=False, **bert),
        "gpt2": _config(build, "gpt2_small", encoder_layers=0, max_positions=11, decoder_layers=2),
        "llama": _config(build, "llama2_7b", **llama | {"decoder_layers": 2}),
        "qwen3": _config(build, "qwen3_600m", **llama),
        "olmo2": _config(build, "llama2_7b", norm_placement="after", query_key_norm="width", norm_cast_before_scale=False, **llama),
        "gemma": _config(build, "gemma2_2b", **llama | gemma),
    }


def uneven(rows: int, length: int) -> np.ndarray:
    """Returns a mask with right padding, True = real: however rows are divided, the parts have unequal numbers of tokens."""
    lengths = [length, 1, length - 2, 2, 3, length - 1]
    return np.arange(length) < np.array(lengths[:rows])[:, None]


def tokens(config: TransformerConfig, source: np.ndarray, target: np.ndarray, step: int = 0) -> dict[str, Any]:
    """Returns the ids that the model reads, with padding where the masks are False."""
    found: dict[str, Any] = {"source": None}
    if config.encoder_layers:
        found["source"] = ids(f"mesh source {step}", config.source_vocabulary, config.padding_id, source)
    if config.decoder_layers:
        found["target"] = ids(f"mesh target {step}", config.target_vocabulary, config.padding_id, target)
    return found


def of_encoder() -> dict[str, Any]:
    """Returns what an encoder is given besides its tokens."""
    return {"source_mask_bs": uneven(ROWS, S), "segment_bs": rng("mesh segments").integers(0, 3, (ROWS, S))}


def classes(rows: int, step: int = 0) -> np.ndarray:
    """Returns the class of each row."""
    return rng(f"mesh classes {step}").integers(0, 3, rows)


def drawn(config: TransformerConfig, name: str, source: int, target: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Returns keep masks of every site, by its name, for texts of these lengths."""
    return parameters.flatten(sites.draw(config, rows, source, 0 if config.classes else target, rng(f"mesh keep {name}")))
