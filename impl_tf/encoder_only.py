"""An encoder alone, from token ids to the classes of a row and the logits of masked tokens, and the loss of its classes."""

from collections.abc import Callable

import tensorflow as tf

from reference_numpy import checks

from . import loss
from .framework import Configured
from .layers import Keep

__all__ = ["EncoderOnly"]


class EncoderOnly(Configured):
    """The methods of a Transformer that has no decoder. Arguments and errors as `encode`."""

    @property
    def answer(self) -> Callable[..., tf.Tensor]:
        """What a call of the model runs: the method of its head, or `encode` without one. Raises ValueError where there are two heads."""
        config = self.config
        config.need_one_head()
        return (
            self.classify
            if config.classes
            else self.masked_language_logits
            if config.masked_language_head
            else self.encode
        )

    def pool(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """`pooler(encode(source))`, `b r`: one vector for each row. Raises ValueError where the config has no pooler."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, source_mask_bs, keep, training, segment_bs))

    def classify(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes. Raises ValueError where the config has none."""
        self.config.need("classes")
        pooled_br = self.pool(source, source_mask_bs, keep, training, segment_bs)
        return self.classifier(pooled_br, (keep or {}).get("classifier_dropout"), training=training)

    def classification_loss(
        self,
        source: tf.Tensor,
        label_b: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        source_mask_bs: tf.Tensor | None = None,
        segment_bs: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """The cross-entropy of the class of every row: a scalar, of the dtype of the variables. label_b: integer classes."""
        label_b = tf.convert_to_tensor(label_b)
        checks.check_classes(label_b.shape, label_b.dtype.name)
        logits_bc = tf.cast(
            self.classify(source, source_mask_bs, keep, training, segment_bs), self.variable_dtype
        )
        return loss.cross_entropy(
            logits_bc[:, tf.newaxis], label_b[:, tf.newaxis], None, smoothing, total
        )

    def masked_language_logits(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """`masked_language_head(encode(source))`, `b s v`: scores of what stands at every position, given all of the row.

        Raises ValueError where the config has no such head.
        """
        self.config.need("masked_language_head")
        x_bsd = self.encode(source, source_mask_bs, keep, training, segment_bs)
        return self.masked_language_head(
            x_bsd, self.source_embedding.adapted() if self.config.tie_logits else None
        )
