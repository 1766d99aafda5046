"""Encoder-only models (ALONE): the classes of a row, and the logits of masked tokens."""

from collections.abc import Callable

import jax
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .dropout import Keep, part
from .embedding import Embedding
from .heads import Classifier, MaskedLanguageHead, Pooler
from .loss import cross_entropy
from .precision import upcast_to
from .values import Text

__all__ = ["EncoderHeads"]


class EncoderHeads(nnx.Module):
    """The head methods of an encoder-only `Transformer`; ValueError if the config lacks the head.

    source: ids, or a `Text`.
    """

    config: TransformerConfig
    encode: Callable[..., jax.Array]  # that of `Transformer`
    source_embedding: Embedding
    pooler: Pooler
    classifier: Classifier
    masked_language_head: MaskedLanguageHead

    def encoder_output(self, source: Text | jax.Array, keep: Keep | None = None) -> jax.Array:
        """Returns the output of the config's head, or of the encoder if there is none."""
        head = self.config.only_head
        if head == "classes":
            return self.classify(source, keep)
        if head == "masked_language_head":
            return self.masked_language_logits(source, keep)
        return self.encode(source, keep)

    def pool(self, source: Text | jax.Array, keep: Keep | None = None) -> jax.Array:
        """`pooler(encode(source))`, `b r`: one vector for each row."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, keep))

    def classify(self, source: Text | jax.Array, keep: Keep | None = None) -> jax.Array:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes."""
        self.config.need("classes")
        return self.classifier(self.pool(source, keep), part(keep, "classifier_dropout"))

    def classification_loss(
        self,
        source: Text | jax.Array,
        label_b: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """`cross_entropy(classify(source), label)`, a scalar: the loss of the rows' classes."""
        checks.check_classes(label_b.shape, str(label_b.dtype))
        logits_bc = upcast_to(self.classify(source, keep), self.source_embedding.table.dtype)
        return cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)

    def masked_language_logits(
        self, source: Text | jax.Array, keep: Keep | None = None
    ) -> jax.Array:
        """`masked_language_head(encode(source))`, `b s v`: scores of every position's token."""
        self.config.need("masked_language_head")
        x_bsd = self.encode(source, keep)
        if not self.config.tie_logits:
            return self.masked_language_head(x_bsd)
        return self.masked_language_head(x_bsd, self.source_embedding.table.T)
