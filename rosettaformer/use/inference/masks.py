"""Fills the masks of texts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reference_numpy import arithmetic, softmax

from .models import Model
from .tokenizer import Tokenizer


class Filling(NamedTuple):
    """A token in place of a mask: its probability, id and text, and the text with it, named as in the pipeline `fill-mask`."""

    score: float
    token: int
    token_str: str
    sequence: str


def fill(model: Model, tokenizer: Tokenizer, texts: Sequence[str], top_k: int) -> list[list[list[Filling]]]:
    """Returns, for every text and every mask in it, the top_k likeliest tokens, read in one batch: cut to the positions, padded to the
    longest.

    Of equally likely tokens the lower id comes first. Other masks of a text stay in its sequences, with all special tokens; a text with a
    single mask has special tokens left out. Raises ValueError if a tokenizer has no mask, a text none, or the model fewer tokens. Source:
    FillMaskPipeline of transformers/pipelines/fill_mask.py, 5.23.
    """
    config, mask_id = model.config, tokenizer.id_of("mask_token")
    if mask_id is None:
        raise ValueError("the tokenizer must have a mask_token; it has none")
    if top_k > config.source_vocabulary:
        raise ValueError(f"top_k must be at most {config.source_vocabulary}, the tokens of the model; got {top_k}")
    token_bs, mask_bs, segment_bs = tokenizer.read(texts, config)
    masked_bs = mask_bs & (token_bs == mask_id)
    for text, masked_s in zip(texts, masked_bs, strict=True):
        if not masked_s.any():
            room = f" within the {config.max_positions} positions of the model" if config.max_positions else ""
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
