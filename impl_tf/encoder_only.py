"""Encoder-only models (ALONE): the classes of a row, and the logits of masked tokens."""

from collections.abc import Callable

import tensorflow as tf

from reference_numpy import checks

from . import loss
from .dropout import Keep, part
from .framework import Configured
from .values import Ids

__all__ = ["EncoderHeads"]


class EncoderHeads(Configured):
    """The head methods of an encoder-only model. source, keep, training, errors: as in `encode`."""

    @property
    def encoder_output(self) -> Callable[..., tf.Tensor]:
        """The method that a call of the model runs: its head's, or `encode` if it has none.

        Raises ValueError if there are two heads.
        """
        head = self.config.only_head
        if head == "classes":
            return self.classify
        return self.masked_language_logits if head == "masked_language_head" else self.encode

    def pool(
        self, source: Ids, keep: Keep | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """`pooler(encode(source))`, `b r`: one vector for each row. ValueError without a pooler."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, keep, training))

    def classify(
        self, source: Ids, keep: Keep | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes.

        Raises ValueError if the config has no classes.
        """
        self.config.need("classes")
        pooled_br = self.pool(source, keep, training)
        return self.classifier(pooled_br, part(keep, "classifier_dropout"), training=training)

    def classification_loss(
        self,
        source: Ids,
        label_b: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`cross_entropy(classify(source), label)`, a scalar: the loss of the class of every row.

        label_b: integer classes. The loss has the dtype of the variables.
        """
        label_b = tf.convert_to_tensor(label_b)
        checks.check_classes(label_b.shape, label_b.dtype.name)
        logits_bc = tf.cast(self.classify(source, keep, training), self.variable_dtype)
        return loss.cross_entropy(
            logits_bc[:, tf.newaxis], label_b[:, tf.newaxis], None, smoothing, total
        )

    def masked_language_logits(
        self, source: Ids, keep: Keep | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """`masked_language_head(encode(source))`, `b s v`: scores of every position's token.

        Raises ValueError if the config has no such head.
        """
        self.config.need("masked_language_head")
        x_bsd = self.encode(source, keep, training)
        return self.masked_language_head(
            x_bsd, self.source_embedding.adapted() if self.config.tie_logits else None
        )
