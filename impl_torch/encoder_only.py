"""An encoder-only model, from token ids to the classes of a row and the logits of masked tokens,
and the loss of its classes.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from reference_numpy import TransformerConfig

from . import loss
from .dropout import Keep, part
from .framework import Sharing
from .heads import Classifier, MaskedLanguageHead, Pooler

__all__ = ["EncoderHeads"]


class EncoderHeads(Sharing):
    """The methods of `Transformer` for the heads of an encoder-only model; ValueError if the config
    does not have the head.

    keep: see `Transformer.encode`; `classifier_dropout` is another site.
    """

    config: TransformerConfig
    check_ids: Callable[..., None]
    encode: Callable[..., Tensor]
    _encode: Callable[..., tuple[Tensor, Tensor | None]]
    pooler: Pooler
    classifier: Classifier
    masked_language_head: MaskedLanguageHead

    def pool(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Keep | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`pooler(encode(source))`, `b r`: one vector for each row."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, source_mask_bs, keep, segment_bs))

    def classify(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Keep | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes."""
        self.config.need("classes")
        pooled_br = self.pool(source, source_mask_bs, keep, segment_bs)
        return self.classifier(pooled_br, part(keep, "classifier_dropout"))

    def classification_loss(
        self,
        source: Tensor,
        label_b: Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Keep | None = None,
        source_mask_bs: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`cross_entropy(classify(source), label)` over the class of every row: a scalar."""
        self.config.need("classes")
        self.check_ids(source, segment_bs=segment_bs, label_b=label_b)
        x_bsd, _ = self._encode(source, source_mask_bs, keep, segment_bs)
        logits_bc = self.classifier(self.pooler(x_bsd), part(keep, "classifier_dropout"))
        return loss.unchecked(logits_bc[:, None], label_b[:, None], None, smoothing, total)

    def masked_language_logits(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Keep | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`masked_language_head(encode(source))`, `b s v`: scores of the token at every position,
        given the whole row.
        """
        self.config.need("masked_language_head")
        return self.masked_language_head(self.encode(source, source_mask_bs, keep, segment_bs))

    def _encoder_output(self, *given: Any) -> Tensor:
        """Returns the output of the config's head, or of the encoder if there is none."""
        self.config.need_one_head()
        if self.config.classes:
            return self.classify(*given)
        if self.config.masked_language_head:
            return self.masked_language_logits(*given)
        return self.encode(*given)
