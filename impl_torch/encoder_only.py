"""Encoder-only models (ALONE): the classes of a row, and the logits of masked tokens."""

from collections.abc import Callable

from torch import Tensor

from reference_numpy import TransformerConfig

from . import loss
from .dropout import Keep, part
from .framework import Sharing
from .heads import Classifier, MaskedLanguageHead, Pooler
from .values import Text

__all__ = ["EncoderHeads"]

Source = Text | Tensor


class EncoderHeads(Sharing):
    """The head methods of an encoder-only `Transformer`; ValueError if the config lacks the head.

    keep: as in `Transformer.encode`, plus the site `classifier_dropout`.
    """

    config: TransformerConfig
    check_ids: Callable[..., None]
    encode: Callable[..., Tensor]
    _encode: Callable[..., tuple[Tensor, Tensor | None]]
    pooler: Pooler
    classifier: Classifier
    masked_language_head: MaskedLanguageHead

    def encoder_output(self, source: Source, keep: Keep | None = None) -> Tensor:
        """Returns the output of the config's head, or of the encoder if there is none."""
        head = self.config.only_head
        if head == "classes":
            return self.classify(source, keep)
        if head == "masked_language_head":
            return self.masked_language_logits(source, keep)
        return self.encode(source, keep)

    def pool(self, source: Source, keep: Keep | None = None) -> Tensor:
        """`pooler(encode(source))`, `b r`: one vector for each row."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, keep))

    def classify(self, source: Source, keep: Keep | None = None) -> Tensor:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes."""
        self.config.need("classes")
        return self.classifier(self.pool(source, keep), part(keep, "classifier_dropout"))

    def classification_loss(
        self,
        source: Source,
        label_b: Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Keep | None = None,
    ) -> Tensor:
        """`cross_entropy(classify(source), label)`, a scalar: the loss of the rows' classes."""
        self.config.need("classes")
        self.check_ids(source, label_b=label_b)
        x_bsd, _ = self._encode(Text.of(source), keep)
        logits_bc = self.classifier(self.pooler(x_bsd), part(keep, "classifier_dropout"))
        return loss.unchecked(logits_bc[:, None], label_b[:, None], None, smoothing, total)

    def masked_language_logits(self, source: Source, keep: Keep | None = None) -> Tensor:
        """`masked_language_head(encode(source))`, `b s v`: scores of every position's token."""
        self.config.need("masked_language_head")
        return self.masked_language_head(self.encode(source, keep))
