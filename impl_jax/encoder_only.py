"""Encoder-only models: the classes of a row and their loss, and the logits of masked tokens."""

from typing import Any

import jax
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .dropout import Keep, part
from .embedding import Embedding
from .heads import Classifier, MaskedLanguageHead, Pooler
from .loss import cross_entropy

__all__ = ["EncoderHeads"]


class EncoderHeads(nnx.Module):
    """The heads of a `Transformer` that is an encoder only.

    Each method raises ValueError if the config does not have its head.
    """

    config: TransformerConfig
    pooler: Pooler
    classifier: Classifier
    masked_language_head: MaskedLanguageHead

    def pool(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`pooler(encode(source))`, `b r`: one vector for each row."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, source_mask_bs, keep, segment_bs))

    def classify(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes."""
        self.config.need("classes")
        pooled_br = self.pool(source, source_mask_bs, keep, segment_bs)
        return self.classifier(pooled_br, part(keep, "classifier_dropout"))

    def classification_loss(
        self,
        source: jax.Array,
        label_b: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Keep | None = None,
        source_mask_bs: jax.Array | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(classify(source), label)`, label the class of every row."""
        checks.check_classes(label_b.shape, str(label_b.dtype))
        logits_bc = self.widened(self.classify(source, source_mask_bs, keep, segment_bs))
        return cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)

    def masked_language_logits(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`masked_language_head(encode(source))`, `b s v`: scores of every position's token."""
        self.config.need("masked_language_head")
        x_bsd = self.encode(source, source_mask_bs, keep, segment_bs)
        if not self.config.tie_logits:
            return self.masked_language_head(x_bsd)
        return self.masked_language_head(x_bsd, self.token_embedding("source").table.T)

    def _encoder_output(
        self,
        source: Any,
        source_mask_bs: jax.Array | None,
        keep: Keep | None,
        segment_bs: jax.Array | None,
    ) -> jax.Array:
        """What the head gives; `encode` without one."""
        self.config.need_one_head()
        if self.config.classes:
            return self.classify(source, source_mask_bs, keep, segment_bs)
        if self.config.masked_language_head:
            return self.masked_language_logits(source, source_mask_bs, keep, segment_bs)
        return self.encode(source, source_mask_bs, keep, segment_bs)

    # What `Transformer` has.

    def encode(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        raise NotImplementedError

    def token_embedding(self, side: str) -> Embedding:
        raise NotImplementedError

    def widened(self, logits: jax.Array) -> jax.Array:
        raise NotImplementedError
