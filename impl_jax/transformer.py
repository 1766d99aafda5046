"""The whole Transformer: embeddings, encoder, decoder and logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .dropout import Tree
from .embedding import Embedding, Logits
from .framework import take_rows
from .loss import cross_entropy, teacher_forcing
from .mask import padding_mask, token_mask
from .positional_encoding import positional_encoding, token_positions
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]


class Transformer(nnx.Module):
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    param_dtype: in which the parameters are held; dtype: in which the model computes, by default param_dtype.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        def embedding(vocabulary: int) -> Embedding:
            return Embedding(vocabulary, config.model_width, config.scale_embedding, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

        self.config = config
        self.source_embedding = embedding(config.source_vocabulary)
        self.encoder = Encoder(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        shared = config.share_embeddings or not config.decoder_layers
        self.target_embedding = None if shared else embedding(config.target_vocabulary)
        if config.decoder_layers:
            self.decoder = Decoder(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            self.logits = Logits(
                config.model_width, config.target_vocabulary, config.output_bias,
                tied=config.tie_logits, param_dtype=param_dtype, rngs=rngs,
            )  # fmt: skip

    def __call__(
        self,
        source: jax.Array,
        target: jax.Array,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Tree | None = None,
    ) -> jax.Array:
        checks.check_same_batch(source=source.shape, target=target.shape)
        memory_bsd = self.encode(source, source_mask_bs, keep)
        if source_mask_bs is None:
            source_mask_bs = token_mask(source, self.config.padding_id)
        return self.decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep)

    @property
    def decoder_embedding(self) -> Embedding:
        """The embedding of the target: the source's own where they share it."""
        return self.target_embedding or self.source_embedding

    def check_ids(self, source: jax.Array, target: jax.Array, **others: Any) -> None:
        """Raises ValueError on tokens that a call with the same arguments refuses: `compiled` calls this before its program."""
        self.source_embedding.check_ids(source)
        self.decoder_embedding.check_ids(target)

    def encode(self, source: jax.Array, source_mask_bs: jax.Array | None = None, keep: Tree | None = None) -> jax.Array:
        """`memory = encoder(dropout(embedding(source) + position))`, `b s d`."""
        keep = (keep or {}).get("encoder", {})
        x_bsd, mask_bs = self._embed(self.source_embedding, "source", source, source_mask_bs)
        x_bsd = self.encoder.embedding_dropout(x_bsd, keep.get("embedding_dropout"))
        return self.encoder(x_bsd, padding_mask(mask_bs), keep)

    def decode(
        self,
        target: jax.Array,
        memory_bsd: jax.Array,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Tree | None = None,
    ) -> jax.Array:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t."""
        self.config.need_decoder()
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        keep = (keep or {}).get("decoder", {})
        x_btd, mask_bt = self._embed(self.decoder_embedding, "target", target, target_mask_bt)
        if source_mask_bs is not None:
            checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2])
        cross_mask_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)
        x_btd = self.decoder.embedding_dropout(x_btd, keep.get("embedding_dropout"))
        x_btd = self.decoder(x_btd, memory_bsd, padding_mask(mask_bt), cross_mask_bhts, keep)
        return self.head(x_btd)

    def head(self, x_btd: jax.Array) -> jax.Array:
        """`logits = x W + b`, `b t v`, W being the transposed table of the target's embedding where they are tied."""
        tied = not hasattr(self.logits, "kernel")
        return self.logits(x_btd, self.decoder_embedding.table.T) if tied else self.logits(x_btd)

    def training_loss(
        self,
        source: jax.Array,
        target: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Tree | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(logits(source, target_1 .. target_n-1), target_2 .. target_n)`; labels that are padding do not count.

        The loss has the dtype of the parameters where it is wider than that of the computation.
        """
        target_bt, label_bt = teacher_forcing(target)
        logits_btv = self(source, target_bt, keep=keep)
        logits_btv = logits_btv.astype(jnp.promote_types(logits_btv.dtype, self.source_embedding.table.dtype))
        return cross_entropy(logits_btv, label_bt, token_mask(label_bt, self.config.padding_id), smoothing, total)

    def _embed(self, embedding: Embedding, name: str, token: jax.Array, mask_bt: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        x_btd = embedding(token)
        if mask_bt is None:
            mask_bt = token_mask(token, self.config.padding_id)
        checks.check_token_mask(f"{name} mask", mask_bt.shape, str(mask_bt.dtype), token.shape[:2])
        # Positions are known only when the program runs, the length mostly when it is traced: a constant table serves them all.
        length = token.shape[1]
        position_t = np.arange(length) if isinstance(length, int) else jnp.arange(length)
        table_td = positional_encoding(position_t, self.config.model_width, x_btd.dtype)
        return x_btd + take_rows(table_td, token_positions(mask_bt), mode="clip"), mask_bt
