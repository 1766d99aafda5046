"""The configuration of a Transformer: a field for every choice on which published models differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from . import fields
from .suggestions import known

__all__ = [
    "ACTIVATIONS",
    "NORM_PLACEMENTS",
    "POSITIONS",
    "POSITION_STARTS",
    "PRESETS",
    "TransformerConfig",
    "preset",
]

ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh", "gelu_sigmoid")
NORM_PLACEMENTS = ("post", "pre")
POSITIONS = ("sinusoidal", "learned")
POSITION_STARTS = ("first_token", "row")

_Size = Annotated[int, fields.INTEGER, fields.at_least(1)]
_Count = Annotated[int, fields.INTEGER, fields.at_least(0)]
_Flag = Annotated[bool, fields.BOOLEAN]
_Rate = Annotated[float, fields.NUMBER, fields.SHARE]
_Positive = Annotated[float, fields.NUMBER, fields.POSITIVE]
_Id = Annotated[int | None, fields.INTEGER_OR_NONE]
_Positions = Annotated[str, fields.NAME, fields.one_of(POSITIONS)]
_Start = Annotated[str, fields.NAME, fields.one_of(POSITION_STARTS)]
_Activation = Annotated[str, fields.NAME, fields.one_of(ACTIVATIONS)]
_Placement = Annotated[str, fields.NAME, fields.one_of(NORM_PLACEMENTS)]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(fields.Fields):
    """Sizes and choices of a Transformer.

    Encoder and decoder: Vaswani et al. 2017, "Attention Is All You Need"; encoder-only: Devlin et
    al. 2019, BERT; decoder-only: Radford et al. 2019, GPT-2. No field has a default: a value that a
    framework would choose silently is always written down. Named sets of values are in `PRESETS`;
    `preset(name, **changes)` starts from one of them.

    Raises ValueError naming every field that is out of range, with what is required and what came.
    """

    KIND: ClassVar[str] = "config"

    source_vocabulary: _Size  # v of the encoder's embedding and of the masked-language logits
    target_vocabulary: _Size  # v of the decoder's embedding and of its logits
    model_width: _Size  # d, the length of a token's vector
    heads: _Size  # h, the heads of the queries
    key_value_heads: _Size  # g, the heads of keys and values; each serves h / g query heads
    key_size: _Size  # k, of each head's queries and keys
    value_size: _Size  # e, of each head's values
    feed_forward_width: _Size  # f, of the hidden layer
    encoder_layers: _Count  # 0: decoder-only, without source embedding and cross-attention
    decoder_layers: _Count  # 0: encoder-only, without target embedding and its logits
    positions: _Positions  # added to the embedding; learned: rows of a table
    max_positions: _Count  # the length that a learned table serves; 0: sinusoidal, without a limit
    position_offset: _Count  # the row of a learned table for position 0; those before it are unused
    position_start: _Start  # what has position 0: the first real token, or the first of the row
    segments: _Count  # rows of the table of segments, added to the source's tokens; 0: no table
    embedding_norm: _Flag  # a norm after the sum of embedding, position and segment
    activation: _Activation  # of the feed-forward and the masked-language head
    norm_placement: _Placement  # post: norm(x + f(x)); pre: x + f(norm(x))
    final_norm: _Flag  # another norm after the last layer of the encoder and of the decoder
    epsilon: _Positive  # added to the variance inside the root
    scale_embedding: _Flag  # multiply embeddings by sqrt(d)
    share_embeddings: _Flag  # one table for source and target
    tie_logits: _Flag  # the logits kernel is the transposed target table
    attention_bias: _Flag  # biases on query, key, value and output projections
    output_bias: _Flag  # bias on the logits
    pooler: _Flag  # of an encoder-only model: tanh(x W + b) of the first token
    classes: _Count  # c, the logits of a classification head on the pooled token; 0: no head
    masked_language_head: _Flag  # of an encoder-only model: dense, activation, norm and logits
    padding_id: _Id  # the token that may not be attended to; None: every token is real
    dropout_rate: _Rate  # on the embedded tokens, after their norm, and each sub-layer's output
    attention_dropout_rate: _Rate  # on the attention weights
    hidden_dropout_rate: _Rate  # on the feed-forward's hidden layer
    classifier_dropout_rate: _Rate  # on the pooled token, before the classification head

    def _conflicts(self) -> Iterator[str]:
        source, target = self.source_vocabulary, self.target_vocabulary
        if self.heads >= 1 and self.key_value_heads >= 1 and self.heads % self.key_value_heads:
            yield f"key heads must divide query heads; got h={self.heads}, g={self.key_value_heads}"
        if self.share_embeddings and source != target:
            got = f"source_vocabulary={source}, target_vocabulary={target}"
            yield f"shared embeddings need equal vocabularies; got {got}"
        if self.padding_id is not None and not 0 <= self.padding_id < min(source, target):
            yield f"padding_id must be a token of both vocabularies; got {self.padding_id}"
        if not self.encoder_layers and not self.decoder_layers:
            yield "a model needs a layer; got encoder_layers=0, decoder_layers=0"
        if (self.positions == "learned") != (self.max_positions > 0):
            got = f"positions={self.positions}, max_positions={self.max_positions}"
            yield f"learned positions alone need max_positions; got {got}"
        if self.position_offset and self.positions != "learned":
            got = f"{self.position_offset} with positions={self.positions}"
            yield f"position_offset is of learned positions; got {got}"
        if self.segments and not self.encoder_layers:
            yield f"segments are of the encoder; got segments={self.segments}, encoder_layers=0"
        if self.decoder_layers and (self.pooler or self.masked_language_head):
            got = f"pooler={self.pooler}, masked_language_head={self.masked_language_head}"
            yield (
                "only an encoder-only model has a pooler or a masked-language head; "
                f"got {got}, decoder_layers={self.decoder_layers}"
            )
        if self.classes and not self.pooler:
            yield f"a classification head needs a pooler; got classes={self.classes}, pooler=False"

    @property
    def cross_attention(self) -> bool:
        """Whether the decoder's layers attend to an encoder."""
        return self.encoder_layers > 0 and self.decoder_layers > 0

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every parameter axis but v, by its letter."""
        return {
            "d": self.model_width,
            "r": self.model_width,
            "h": self.heads,
            "g": self.key_value_heads,
            "k": self.key_size,
            "e": self.value_size,
            "f": self.feed_forward_width,
            "p": self.max_positions + self.position_offset,
            "a": self.segments,
            "c": self.classes,
        }

    def need_encoder(self) -> None:
        """Raises ValueError if the config has no encoder."""
        if not self.encoder_layers:
            raise ValueError("encoding needs at least one encoder layer; got encoder_layers=0")

    def need_decoder(self) -> None:
        """Raises ValueError if the config has no decoder."""
        if not self.decoder_layers:
            raise ValueError("decoding needs at least one decoder layer; got decoder_layers=0")

    def need(self, head: str) -> None:
        """Raises ValueError if the config lacks this head, named by its field."""
        if not getattr(self, head):
            raise ValueError(f"the model has no such head; got {head}={getattr(self, head)}")

    def need_one_head(self) -> None:
        """Raises ValueError if a model has two heads, so that a call does not say which."""
        if self.classes and self.masked_language_head:
            raise ValueError(
                "an encoder-only model with two heads is called by `classify` or "
                "`masked_language_logits`; got a call of the whole"
            )

    def need_objective(self) -> None:
        """Raises ValueError if no loss reaches every parameter.

        An encoder-only model learns classes, without a masked-language head.
        """
        if not self.decoder_layers and (not self.classes or self.masked_language_head):
            raise ValueError(
                "training an encoder-only model needs classes and no masked-language head; "
                f"got classes={self.classes}, masked_language_head={self.masked_language_head}"
            )


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
    positions="sinusoidal",
    max_positions=0,
    position_offset=0,
    position_start="first_token",
    segments=0,
    embedding_norm=False,
    activation="relu",
    norm_placement="post",
    final_norm=False,
    epsilon=1e-6,
    scale_embedding=True,
    share_embeddings=True,
    tie_logits=True,
    attention_bias=False,
    output_bias=False,
    pooler=False,
    classes=0,
    masked_language_head=False,
    padding_id=0,
    dropout_rate=0.1,
    attention_dropout_rate=0.0,
    hidden_dropout_rate=0.0,
    classifier_dropout_rate=0.0,
)

PRESETS: dict[str, TransformerConfig] = {
    # Vaswani et al. 2017, Table 3, rows "base" and "big"; epsilon is that of tensor2tensor.
    "paper_base": _PAPER_BASE,
    "paper_big": _PAPER_BASE.replace(
        model_width=1024, heads=16, key_value_heads=16, feed_forward_width=4096, dropout_rate=0.3
    ),
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
        share_embeddings=False,
        tie_logits=False,
        attention_bias=True,
        output_bias=True,
        final_norm=True,
        epsilon=1e-5,
    ),
    "guide": _PAPER_BASE.replace(
        share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True
    ),
    "keras_lab": _PAPER_BASE.replace(scale_embedding=False),
    "sapiens": _PAPER_BASE.replace(attention_bias=True, epsilon=1e-5, hidden_dropout_rate=0.1),
    "ict1022": _PAPER_BASE.replace(
        encoder_layers=1,
        decoder_layers=0,
        attention_bias=True,
        epsilon=1e-5,
        padding_id=None,
        dropout_rate=0.0,
    ),
    # Devlin et al. 2019, BERT base uncased, without the head of next-sentence prediction.
    "bert_base": _PAPER_BASE.replace(
        source_vocabulary=30522,
        target_vocabulary=30522,
        model_width=768,
        heads=12,
        key_value_heads=12,
        feed_forward_width=3072,
        encoder_layers=12,
        decoder_layers=0,
        positions="learned",
        max_positions=512,
        position_start="row",
        segments=2,
        embedding_norm=True,
        activation="gelu_erf",
        epsilon=1e-12,
        scale_embedding=False,
        attention_bias=True,
        output_bias=True,
        pooler=True,
        masked_language_head=True,
        attention_dropout_rate=0.1,
        classifier_dropout_rate=0.1,
    ),
    # Radford et al. 2019, the smallest GPT-2.
    "gpt2_small": _PAPER_BASE.replace(
        source_vocabulary=50257,
        target_vocabulary=50257,
        model_width=768,
        heads=12,
        key_value_heads=12,
        feed_forward_width=3072,
        encoder_layers=0,
        decoder_layers=12,
        positions="learned",
        max_positions=1024,
        activation="gelu_tanh",
        norm_placement="pre",
        final_norm=True,
        epsilon=1e-5,
        scale_embedding=False,
        share_embeddings=False,
        attention_bias=True,
        padding_id=None,
        attention_dropout_rate=0.1,
    ),
}
