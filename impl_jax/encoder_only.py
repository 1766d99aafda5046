"""An encoder alone, from token ids to the classes of a row and the logits of masked tokens, and the loss of its classes."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import checks

from .dropout import Tree
from .loss import cross_entropy

__all__ = ["EncoderOnly"]


class EncoderOnly(nnx.Module):
    """The methods of `Transformer` that are an encoder's alone. Each raises ValueError where the config does not have its head."""

    config: Any
    table: Any
    encode: Any
    pooler: Any
    classifier: Any
    masked_language_head: Any

    def pool(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Tree | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`pooler(encode(source))`, `b r`: one vector for each row. Raises ValueError where the config has no pooler."""
        self.config.need("pooler")
        return self.pooler(self.encode(source, source_mask_bs, keep, segment_bs))

    def classify(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Tree | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`classifier(pool(source))`, `b c`: the logits of each row's classes. Raises ValueError where the config has none."""
        self.config.need("classes")
        return self.classifier(
            self.pool(source, source_mask_bs, keep, segment_bs),
            (keep or {}).get("classifier_dropout"),
        )

    def classification_loss(
        self,
        source: jax.Array,
        label_b: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Tree | None = None,
        source_mask_bs: jax.Array | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(classify(source), label)` of the class of every row. dtype: as of `training_loss`."""
        checks.check_classes(label_b.shape, str(label_b.dtype))
        logits_bc = self.classify(source, source_mask_bs, keep, segment_bs)
        logits_bc = logits_bc.astype(jnp.promote_types(logits_bc.dtype, self.table.dtype))
        return cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)

    def masked_language_logits(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Tree | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`masked_language_head(encode(source))`, `b s v`: scores of what stands at every position, given all of the row.

        Raises ValueError where the config has no such head.
        """
        self.config.need("masked_language_head")
        x_bsd = self.encode(source, source_mask_bs, keep, segment_bs)
        return self.masked_language_head(x_bsd, self.table.T if self.config.tie_logits else None)

    def _headed(self, *given: Any) -> jax.Array:
        """What a call gives: `classify`, `masked_language_logits`, or `encode` where there is no head; the arguments are theirs."""
        self.config.need_one_head()
        if self.config.classes:
            return self.classify(*given)
        return (
            self.masked_language_logits(*given)
            if self.config.masked_language_head
            else self.encode(*given)
        )
