"""An encoder alone, from token ids to the classes of a row and the logits of masked tokens, and the loss of its classes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from . import loss
from .framework import Sharing

__all__ = ["EncoderOnly"]

Tree = Mapping[str, Any]


class EncoderOnly(Sharing):
    """The methods of `Transformer` that an encoder alone has. Each raises ValueError where the config does not have its head.

    keep, checked: as of `Transformer.encode`; `classifier_dropout` is a site, too.
    """

    config: Any
    check_ids: Any
    encode: Any
    pooler: Any
    classifier: Any
    masked_language_head: Any

    def pool(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Tree | None = None,
        segment_bs: Tensor | None = None,
        checked: bool = False,
    ) -> Tensor:
        """`pooler(encode(source))`, `b r`: one vector for each row."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, source_mask_bs, keep, segment_bs, checked))

    def classify(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Tree | None = None,
        segment_bs: Tensor | None = None,
        checked: bool = False,
    ) -> Tensor:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes."""
        self.config.need("classes")
        pooled_br = self.pool(source, source_mask_bs, keep, segment_bs, checked)
        return self.classifier(pooled_br, (keep or {}).get("classifier_dropout"))

    def classification_loss(
        self,
        source: Tensor,
        label_b: Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Tree | None = None,
        source_mask_bs: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`cross_entropy(classify(source), label)`, of the class of every row: a scalar."""
        self.config.need("classes")
        self.check_ids(source, segment_bs=segment_bs, label_b=label_b)
        logits_bc = self.classify(source, source_mask_bs, keep, segment_bs, checked=True)
        return loss.cross_entropy(
            logits_bc[:, None], label_b[:, None], None, smoothing, total, checked=True
        )

    def masked_language_logits(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Tree | None = None,
        segment_bs: Tensor | None = None,
        checked: bool = False,
    ) -> Tensor:
        """`masked_language_head(encode(source))`, `b s v`: scores of what stands at every position, given all of the row."""
        self.config.need("masked_language_head")
        return self.masked_language_head(
            self.encode(source, source_mask_bs, keep, segment_bs, checked)
        )

    def _headed(self, *given: Any) -> Tensor:
        """What the head of the config gives; what the encoder gives where it has none."""
        self.config.need_one_head()
        if self.config.classes:
            return self.classify(*given)
        return (
            self.masked_language_logits(*given)
            if self.config.masked_language_head
            else self.encode(*given)
        )
