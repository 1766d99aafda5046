"""Fills masks in texts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reference_numpy import arithmetic, softmax

from .models import Model
from .tokenizer import Tokenizer


class Filling(NamedTuple):
    """A candidate for a mask, with the field names of transformers' `fill-mask` pipeline."""

    score: float
    token: int
    token_str: str
    sequence: str


def fill(model: Model, tokenizer: Tokenizer, texts: Sequence[str], top_k: int) -> list[list[list[Filling]]]:
    """Returns the top_k most likely tokens for every mask of every text, read as one batch.

    Texts are cut to the model's positions. Among equally likely tokens, lower ids come first. If a
    text has several masks, its sequences keep the other masks and all special tokens. Raises
    ValueError if the tokenizer has no mask token, a text has no mask, or top_k exceeds the
    vocabulary. Source: FillMaskPipeline in transformers/pipelines/fill_mask.py, 5.23.
    """
    config, mask_id = model.config, tokenizer.id_of("mask_token")
    if mask_id is None:
        raise ValueError("the tokenizer has no mask_token; use the tokenizer of a masked language model")
    if top_k > config.source_vocabulary:
        raise ValueError(f"top_k must be at most {config.source_vocabulary}, the model's vocabulary size; got {top_k}")
    token_bs, mask_bs, segment_bs = tokenizer.read(texts, config)
    masked_bs = mask_bs & (token_bs == mask_id)
    for text, masked_s in zip(texts, masked_bs, strict=True):
        if not masked_s.any():
            room = f" within the model's {config.max_positions} positions" if config.max_positions else ""
            raise ValueError(f"a text must have a mask, {tokenizer.words([mask_id])[0]}{room}; got {text!r:.200}")
    logits_bsv = model.masked_language_logits(token_bs, mask_bs, segment_bs)
    return [
        _of_text(tokenizer, token_s[real_s], masked_s[real_s], logits_sv[real_s], top_k)
        for token_s, real_s, masked_s, logits_sv in zip(token_bs, mask_bs, masked_bs, logits_bsv, strict=True)
    ]


def _of_text(tokenizer: Tokenizer, token_s: np.ndarray, masked_s: np.ndarray, logits_sv: np.ndarray, top_k: int) -> list[list[Filling]]:
    p_nv = softmax.softmax(arithmetic.upcast_half(logits_sv[masked_s]))
    places, pad_id = np.flatnonzero(masked_s), tokenizer.id_of("pad_token")
    found: list[list[Filling]] = []
    for place, p_v in zip(places, p_nv, strict=True):
        found.append([])
        for id_ in np.argsort(-p_v, kind="stable")[:top_k].tolist():
            filled_s = np.where(np.arange(len(token_s)) == place, id_, token_s)
            sequence = tokenizer.text(filled_s[filled_s != pad_id].tolist(), special=len(places) > 1)
            found[-1].append(Filling(float(p_v[id_]), id_, tokenizer.text([id_], special=True), sequence))
    return found
