"""Returns what a model attends to when it reads a text."""

from collections.abc import Sequence

import numpy as np

from reference_numpy import TransformerConfig

from .attention_page import AttentionMap, maps
from .models import Model
from .tokenizer import Tokenizer

Inputs = dict[str, np.ndarray | None]


def attend(model: Model, tokenizer: Tokenizer, text: str, pair: str | None = None) -> list[AttentionMap]:
    """Returns the attention weights of every layer and head, and the texts of the tokens. Texts and errors: see `inputs_of`."""
    config = model.config
    inputs, source, target = inputs_of(config, tokenizer, text, pair)
    if 0 < config.max_positions < len(target):
        raise ValueError(
            f"a text of a decoder must have at most {config.max_positions} tokens, the positions of the model; got {len(target)}"
        )
    one_row = pair is not None and config.encoder_layers and not config.decoder_layers
    second = tokenizer.second((text, str(pair)), config.max_positions) if one_row else 0
    return [*maps(model.states(**inputs), source, target, second)]


def inputs_of(
    config: TransformerConfig, tokenizer: Tokenizer, text: str, pair: str | None = None
) -> tuple[Inputs, Sequence[str], Sequence[str]]:
    """Returns the arguments of `reference_numpy.states` for a text, in one row; and the texts of the source's and the target's tokens.

    An encoder-only model reads the text, and the pair as a second segment, as `classify` does: cut to the positions. A decoder-only model
    reads the text as a prompt, uncut. An encoder-decoder reads the pair. Raises ValueError on a text without a token, and on a pair that is
    missing or has no place.
    """
    if config.cross_attention and pair is None:
        raise ValueError("an encoder and a decoder read two texts; got no pair")
    if not config.encoder_layers and pair is not None:
        raise ValueError("a decoder-only model reads one text; got a pair")
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
        raise ValueError(f"a text must have a token; got {text!r}")
    return [word.replace("\n", "↵") for word in tokenizer.words(token_t.tolist())]
