"""The configuration of a Transformer: every choice on which published models or frameworks differ is a field."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .suggestions import LONGEST_NAME, known, refuse_unknown

__all__ = ["ACTIVATIONS", "NORM_PLACEMENTS", "PRESETS", "TransformerConfig", "is_integer", "is_number", "preset"]

ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh")
NORM_PLACEMENTS = ("post", "pre")
LARGEST = 2**53  # of an integer; float64 holds all up to it


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of an encoder-decoder Transformer (Vaswani et al. 2017, "Attention Is All You Need").

    No field has a default: a value that a framework would choose silently is always written down. Named sets of values are in
    `PRESETS`; `preset(name, **changes)` starts from one of them.

    Raises ValueError naming every field that is out of range, with what is required and what came.
    """

    source_vocabulary: int  # v of the encoder's embedding
    target_vocabulary: int  # v of the decoder's embedding and of the logits
    model_width: int  # d
    heads: int  # h
    key_value_heads: int  # g; each serves heads / key_value_heads query heads
    key_size: int  # k
    value_size: int  # e
    feed_forward_width: int  # f
    encoder_layers: int
    decoder_layers: int  # 0: the encoder alone, without target embedding and logits
    activation: str  # of the feed-forward: relu, gelu_erf (x * Phi(x)), gelu_tanh (its tanh approximation)
    norm_placement: str  # post: norm(x + f(x)); pre: x + f(norm(x))
    final_norm: bool  # another norm after the last layer of the encoder and of the decoder
    epsilon: float  # added to the variance inside the root
    scale_embedding: bool  # multiply embeddings by sqrt(d)
    share_embeddings: bool  # one table for source and target
    tie_logits: bool  # the logits kernel is the transposed target table
    attention_bias: bool  # biases on query, key, value and output projections
    output_bias: bool  # bias on the logits
    padding_id: int | None  # the token that may not be attended to; None: every token is real
    dropout_rate: float  # on the sum of embedding and position, and on each sub-layer's output
    attention_dropout_rate: float  # on the attention weights
    hidden_dropout_rate: float  # on the feed-forward's hidden layer

    def __post_init__(self) -> None:
        problems = [*self._type_problems()] or [*self._value_problems()]
        if problems:
            raise ValueError("; ".join(problems))

    def _type_problems(self) -> Iterator[str]:
        for field in dataclasses.fields(self):
            good, wanted = _TYPES[field.type]
            if not good(value := getattr(self, field.name)):
                yield f"{field.name} must be {wanted}; got {value!r:.{LONGEST_NAME}}"
            elif is_integer(value) and abs(value) > LARGEST:
                yield f"{field.name} must be at most {LARGEST} in size; got {value!r:.{LONGEST_NAME}}"

    def _value_problems(self) -> Iterator[str]:
        for name in ("source_vocabulary", "target_vocabulary", "model_width", "heads", "key_value_heads", "key_size",
                     "value_size", "feed_forward_width", "encoder_layers"):  # fmt: skip
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1; got {getattr(self, name)}"
        if self.decoder_layers < 0:
            yield f"decoder_layers must be at least 0; got {self.decoder_layers}"
        if self.heads >= 1 and self.key_value_heads >= 1 and self.heads % self.key_value_heads:
            yield f"key heads must divide query heads; got h={self.heads}, g={self.key_value_heads}"
        for name, choices in (("activation", ACTIVATIONS), ("norm_placement", NORM_PLACEMENTS)):
            if getattr(self, name) not in choices:
                yield f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r:.{LONGEST_NAME}}"
        if self.epsilon <= 0:
            yield f"epsilon must be greater than 0; got {self.epsilon}"
        for name in ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and less than 1; got {getattr(self, name)}"
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

    def replace(self, **changes: Any) -> "TransformerConfig":
        """A copy with some fields changed; raises ValueError on unknown fields and on values out of range."""
        refuse_unknown("config field", changes, _FIELDS)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TransformerConfig":
        """The configuration of `to_dict`'s mapping; raises ValueError naming every missing and unknown field."""
        refuse_unknown("config field", fields, _FIELDS)
        if missing := [name for name in _FIELDS if name not in fields]:
            raise ValueError(f"a config needs every field; missing {', '.join(missing)}")
        return cls(**fields)


def preset(name: str, **changes: Any) -> TransformerConfig:
    """The configuration of that name in `PRESETS`, with some fields changed.

    Raises ValueError on an unknown name or field, and on values out of range.
    """
    known("preset", [name], PRESETS)
    return PRESETS[name].replace(**changes)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, which True is not and an integer beyond the range of float64 is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


# a field's type -> (what a value must satisfy, how the message says it)
_TYPES: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (is_integer, "an integer"),
    float: (is_number, "a finite number"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    str: (lambda value: isinstance(value, str), "a name"),
    int | None: (lambda value: value is None or is_integer(value), "an integer or None"),
}


_FIELDS = tuple(field.name for field in dataclasses.fields(TransformerConfig))

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
