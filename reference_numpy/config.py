"""The configuration of a Transformer: every choice on which published models or frameworks differ is a field."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from .fields import BOOLEAN, INTEGER, NAME, NUMBER, POSITIVE, SHARE, Fields, Rule, at_least, is_integer, one_of
from .suggestions import known

__all__ = ["ACTIVATIONS", "NORM_PLACEMENTS", "PRESETS", "TransformerConfig", "preset"]

ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh")
NORM_PLACEMENTS = ("post", "pre")

_Size = Annotated[int, INTEGER, at_least(1)]
_Flag = Annotated[bool, BOOLEAN]
_Rate = Annotated[float, NUMBER, SHARE]
_Id = Annotated[int | None, Rule(lambda value: value is None or is_integer(value), "an integer or None")]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Fields):
    """Sizes and choices of an encoder-decoder Transformer (Vaswani et al. 2017, "Attention Is All You Need").

    No field has a default: a value that a framework would choose silently is always written down. Named sets of values are in
    `PRESETS`; `preset(name, **changes)` starts from one of them.

    Raises ValueError naming every field that is out of range, with what is required and what came.
    """

    KIND: ClassVar[str] = "config"

    source_vocabulary: _Size  # v of the encoder's embedding
    target_vocabulary: _Size  # v of the decoder's embedding and of the logits
    model_width: _Size  # d
    heads: _Size  # h
    key_value_heads: _Size  # g; each serves heads / key_value_heads query heads
    key_size: _Size  # k
    value_size: _Size  # e
    feed_forward_width: _Size  # f
    encoder_layers: _Size
    decoder_layers: Annotated[int, INTEGER, at_least(0)]  # 0: the encoder alone, without target embedding and logits
    activation: Annotated[str, NAME, one_of(ACTIVATIONS)]  # of the feed-forward; gelu_erf: x * Phi(x), gelu_tanh: its tanh approximation
    norm_placement: Annotated[str, NAME, one_of(NORM_PLACEMENTS)]  # post: norm(x + f(x)); pre: x + f(norm(x))
    final_norm: _Flag  # another norm after the last layer of the encoder and of the decoder
    epsilon: Annotated[float, NUMBER, POSITIVE]  # added to the variance inside the root
    scale_embedding: _Flag  # multiply embeddings by sqrt(d)
    share_embeddings: _Flag  # one table for source and target
    tie_logits: _Flag  # the logits kernel is the transposed target table
    attention_bias: _Flag  # biases on query, key, value and output projections
    output_bias: _Flag  # bias on the logits
    padding_id: _Id  # the token that may not be attended to; None: every token is real
    dropout_rate: _Rate  # on the sum of embedding and position, and on each sub-layer's output
    attention_dropout_rate: _Rate  # on the attention weights
    hidden_dropout_rate: _Rate  # on the feed-forward's hidden layer

    def _conflicts(self) -> Iterator[str]:
        if self.heads >= 1 and self.key_value_heads >= 1 and self.heads % self.key_value_heads:
            yield f"key heads must divide query heads; got h={self.heads}, g={self.key_value_heads}"
        if self.share_embeddings and self.source_vocabulary != self.target_vocabulary:
            yield (
                "shared embeddings need equal vocabularies; "
                f"got source_vocabulary={self.source_vocabulary}, target_vocabulary={self.target_vocabulary}"
            )
        if self.padding_id is not None and not 0 <= self.padding_id < min(self.source_vocabulary, self.target_vocabulary):
            yield f"padding_id must be a token of both vocabularies; got {self.padding_id}"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every parameter axis but v, by its letter."""
        return {
            "d": self.model_width,
            "h": self.heads,
            "g": self.key_value_heads,
            "k": self.key_size,
            "e": self.value_size,
            "f": self.feed_forward_width,
        }

    def need_decoder(self) -> None:
        """Raises ValueError where the config has no decoder."""
        if not self.decoder_layers:
            raise ValueError("decoding needs at least one decoder layer; got decoder_layers=0")


def preset(name: str, **changes: Any) -> TransformerConfig:
    """The configuration of that name in `PRESETS`, with some fields changed.

    Raises ValueError on an unknown name or field, and on values out of range.
    """
    known("preset", [name], PRESETS)
    return PRESETS[name].replace(**changes)


_PAPER_BASE = TransformerConfig(
    source_vocabulary=37000,
    target_vocabulary=37000,
    model_width=512,
    heads=8,
    key_value_heads=8,
    key_size=64,
    value_size=64,
    feed_forward_width=2048,
    encoder_layers=6,
    decoder_layers=6,
    activation="relu",
    norm_placement="post",
    final_norm=False,
    epsilon=1e-6,
    scale_embedding=True,
    share_embeddings=True,
    tie_logits=True,
    attention_bias=False,
    output_bias=False,
    padding_id=0,
    dropout_rate=0.1,
    attention_dropout_rate=0.0,
    hidden_dropout_rate=0.0,
)

PRESETS: dict[str, TransformerConfig] = {
    # Vaswani et al. 2017, Table 3, rows "base" and "big". The paper does not print an epsilon; 1e-6 is tensor2tensor's.
    "paper_base": _PAPER_BASE,
    "paper_big": _PAPER_BASE.replace(model_width=1024, heads=16, key_value_heads=16, feed_forward_width=4096, dropout_rate=0.3),
    # Small enough to read, to train on a laptop and to compile in seconds.
    "tiny": _PAPER_BASE.replace(
        source_vocabulary=101,
        target_vocabulary=101,
        model_width=32,
        heads=4,
        key_value_heads=4,
        key_size=8,
        value_size=8,
        feed_forward_width=64,
        encoder_layers=2,
        decoder_layers=2,
    ),
    # The choices of five tutorials, at the paper's sizes.
    "semillero": _PAPER_BASE.replace(
        share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True, final_norm=True, epsilon=1e-5
    ),
    "guide": _PAPER_BASE.replace(share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True),
    "keras_lab": _PAPER_BASE.replace(scale_embedding=False),
    "sapiens": _PAPER_BASE.replace(attention_bias=True, epsilon=1e-5, hidden_dropout_rate=0.1),
    "ict1022": _PAPER_BASE.replace(
        encoder_layers=1, decoder_layers=0, attention_bias=True, epsilon=1e-5, padding_id=None, dropout_rate=0.0
    ),
}
