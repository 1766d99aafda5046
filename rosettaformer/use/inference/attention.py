"""Computes the attention weights of a text."""

from collections.abc import Sequence

import numpy as np

from reference_numpy import TransformerConfig

from .attention_page import AttentionMap, maps
from .models import Model
from .tokenizer import Tokenizer

Inputs = dict[str, np.ndarray | None]


def attend(model: Model, tokenizer: Tokenizer, text: str, pair: str | None = None) -> list[AttentionMap]:
    """Returns the attention weights of all layers and heads, with the tokens' texts."""
    config = model.config
    inputs, source, target = inputs_of(config, tokenizer, text, pair)
    if 0 < config.max_positions < len(target):
        raise ValueError(
            f"a decoder's text must have at most {config.max_positions} tokens, the model's number of positions; got {len(target)}"
        )
    one_row = pair is not None and config.encoder_layers and not config.decoder_layers
    second = tokenizer.second((text, str(pair)), config.max_positions) if one_row else 0
    return [*maps(model.states(**inputs), source, target, second)]


def inputs_of(
    config: TransformerConfig, tokenizer: Tokenizer, text: str, pair: str | None = None
) -> tuple[Inputs, Sequence[str], Sequence[str]]:
    """Returns the arguments of `states` for one row, and the texts of source and target tokens.

    An encoder-only model reads the text, and the pair as second segment, cut to the positions. A
    decoder-only model reads the text as an uncut prompt. An encoder-decoder reads text and pair.
    Raises ValueError on a text without tokens, and on a missing or superfluous pair.
    """
    if config.cross_attention and pair is None:
        raise ValueError("an encoder-decoder reads two texts; pass the second with --pair")
    if not config.encoder_layers and pair is not None:
        raise ValueError("a decoder-only model reads one text; remove --pair")
    inputs: Inputs = {}
    source: Sequence[str] = ()
    target: Sequence[str] = ()
    if config.encoder_layers:
        together = text if pair is None or config.decoder_layers else (text, pair)
        token_bs, inputs["source_mask_bs"], inputs["segment_bs"] = tokenizer.read([together], config)
        source, inputs["source"] = _shown(tokenizer, token_bs[0], text), token_bs
    if config.decoder_layers:
        read = text if pair is None else pair
        token_bt = np.array([tokenizer.prompt(read)], int)
        target, inputs["target"] = _shown(tokenizer, token_bt[0], read), token_bt
    return inputs, source, target


def _shown(tokenizer: Tokenizer, token_t: np.ndarray, text: str) -> list[str]:
    """Returns the texts of tokens, with line ends made visible."""
    if not len(token_t):
        raise ValueError(f"a text must have at least one token; got {text!r}")
    return [word.replace("\n", "↵") for word in tokenizer.words(token_t.tolist())]
