"""Defects of what the first layer is given: tables of positions, and the norm of the sum."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import normalization, positional_encoding

from .defect import CONFIGURED, Defect, on_arguments
from .place import replaced
from .transformer import fresh_norm

__all__ = ["DEFECTS"]

Array = np.ndarray
_POSITIONS = ("positional_encoding.positional_encoding", "positional_encoding.position_embedding")
_SEGMENTS = "embedding.segment_embedding"


def _offset_added(original: Callable, parameters: Any, position_bt: Array, offset: int) -> Array:
    last = len(parameters["table"]) - 1 - offset
    return original(parameters, position_bt if offset else np.minimum(position_bt + 2, last), offset)


def _sinusoidal(original: Callable, parameters: Any, position_bt: Array, offset: int) -> Array:
    table_pd = parameters["table"]
    return positional_encoding.positional_encoding(position_bt, table_pd.shape[1], table_pd.dtype)


def _other_norm(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> Array:
    x_btd = original(parameters, config.replace(embedding_norm=False), side, *rest)
    return x_btd if config.embedding_norm else fresh_norm(x_btd, config.epsilon)


def _after_the_norm(*places: str) -> Callable:
    """The norm of the sum without what these give, which is added to the norm's output."""

    def altered(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> Array:
        later: list[Array] = []

        def put_off(function: Callable) -> Callable:
            def nothing(*given: Any) -> Array:
                later.append(function(*given))
                return np.zeros_like(later[-1])

            return nothing

        if not config.embedding_norm:
            return original(parameters, config, side, *rest)
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(replaced(place, put_off))
            x_btd = original(parameters, config, side, *rest)
        return sum(later, x_btd)

    return altered


def _norm_of_dropped(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> tuple[Array, Array]:
    if not config.embedding_norm:
        return original(parameters, config, side, *rest)
    x_btd, mask_bt = original(parameters, config.replace(embedding_norm=False), side, *rest)
    return normalization.layer_norm(parameters[f"{side}_embedding_norm"], x_btd, config.epsilon), mask_bt


_TABLE: dict[str, Any] = {
    "torch": "x = x + self.position_embedding(position + offset)  # RoBERTa, BART, OPT: 2 = padding_idx + 1; BERT, GPT-2: 0",
    "tf": "x = x + self.position_embedding(position + offset)  # RoBERTa, BART, OPT: 2 = padding_idx + 1; BERT, GPT-2: 0",
    "jax": "x = x + position_table[position + offset]  # RoBERTa, BART, OPT: 2 = padding_idx + 1; BERT, GPT-2: 0; JAX clamps the index",
}
_SUM: dict[str, Any] = {
    "torch": "x = self.dropout(self.norm(self.embedding(token) + self.position_embedding(position) + self.segment_embedding(segment)))",
    "tf": "x = self.dropout(self.norm(self.embedding(token) + self.position_embedding(position) + self.segment_embedding(segment)))",
    "jax": "x = self.dropout(self.norm(self.embed(token) + self.position_embed(position) + self.segment_embed(segment)))",
}
DEFECTS = (
    Defect(
        id="PE14",
        title="the offset of a table of positions is dropped",
        what="`table[position]` instead of `table[position + offset]`: the first rows of the table, which belong to padding, are read.",
        shows="Every token has the position of the one that stands offset places before it. A table with an offset shows it.",
        **_TABLE,
        elsewhere=CONFIGURED,
        evidence="sentence-transformers#3879, gpt-neox#650",
        replaces={"positional_encoding.position_embedding": on_arguments(offset=0)},
    ),
    Defect(
        id="PE15",
        title="an offset of 2 is added to learned positions that have none",
        what="`table[position + 2]`, as RoBERTa, BART and OPT read their tables. Beyond the table its last row is read, as JAX does; torch "
        "and TensorFlow fail there.",
        shows="Every token has the position of the one two places later, and the longest inputs fail. Any tokens show it.",
        **_TABLE,
        elsewhere=CONFIGURED,
        evidence="gpt-neox#722, transformers#9116",
        replaces={"positional_encoding.position_embedding": _offset_added},
    ),
    Defect(
        id="PE17",
        title="sinusoidal positions where they are learned",
        what="The sines and cosines of the encoder-decoder model are added instead of the rows of the checkpoint's table.",
        shows="Every position's vector is another one, and nothing of the table reaches the output. Any tokens show it.",
        torch="self.position_embedding = nn.Embedding(max_positions, width)",
        tf="self.position_embedding = keras.layers.Embedding(max_positions, width)",
        jax="self.position_embed = nnx.Embed(max_positions, width, rngs=rngs)",
        elsewhere=CONFIGURED,
        evidence="BERT-pytorch#53, google-research/bert#483",
        replaces={"positional_encoding.position_embedding": _sinusoidal},
    ),
    Defect(
        id="NRM12",
        title="the norm of the embeddings' sum is missing, or one is added",
        component="transformer",
        what="The first layer is given the sum as it is where the config has a norm, or a fresh norm's result (scale 1, offset 0) where it "
        "has none.",
        shows="Everything after the embedding differs, although every layer agrees. Any tokens show it.",
        **_SUM,
        elsewhere=CONFIGURED,
        evidence="DinkyTrain#1, DeepSpeedExamples#67",
        replaces={"inputs.embed": _other_norm},
    ),
    Defect(
        id="NRM13",
        title="the token embedding is normalised before positions and segments are added",
        component="transformer",
        what="`norm(embedding) + position + segment` instead of `norm(embedding + position + segment)`.",
        shows="What the first layer is given is no longer normalised. Any tokens show it.",
        **_SUM,
        evidence="transformers#11046",
        variants={
            "the positions are added after the norm of token and segment embedding": {"inputs.embed": _after_the_norm(*_POSITIONS)},
            "the segments are added after the norm of token embedding and positions": {"inputs.embed": _after_the_norm(_SEGMENTS)},
        },
        replaces={"inputs.embed": _after_the_norm(*_POSITIONS, _SEGMENTS)},
    ),
    Defect(
        id="NRM14",
        title="dropout precedes the norm of the embeddings",
        component="transformer",
        what="`norm(dropout(x))` instead of `dropout(norm(x))`.",
        shows="Nothing in evaluation; in training no feature that is dropped is zero. Given masks of dropout show it.",
        **_SUM,
        evidence="keras-bert#179, transformers#17842",
        replaces={"transformer._embed": _norm_of_dropped},
    ),
)
