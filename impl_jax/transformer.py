"""The whole Transformer: embeddings, encoder, decoder, logits and heads."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from . import inputs
from .dropout import Tree
from .embedding import Embedding, Logits, SegmentEmbedding
from .encoder_only import EncoderOnly
from .fast.packing import PACK_FROM, Packing, Packings, counted, pack, rows, unpack
from .framework import id_bounds
from .heads import Classifier, MaskedLanguageHead, Pooler
from .loss import cross_entropy, teacher_forcing
from .mask import padding_mask, token_mask
from .normalization import LayerNorm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder
from .states import States, states

__all__ = ["Transformer"]


class Transformer(EncoderOnly):
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    It has the parts that its config has: an encoder alone its heads, a decoder alone neither source nor cross-attention.
    param_dtype: in which the parameters are held; dtype: in which the model computes, by default param_dtype.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        own: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.config, self.pack_from = config, PACK_FROM
        if config.encoder_layers:
            self._add_inputs("source", config.source_vocabulary, **own)
            self.encoder = Encoder(config, **own)
        if config.decoder_layers:
            self._add_inputs("target", config.target_vocabulary, **own)
            self.decoder = Decoder(config, **own)
            self.logits = Logits(
                config.model_width, config.target_vocabulary, config.output_bias,
                tied=config.tie_logits, param_dtype=param_dtype, rngs=rngs,
            )  # fmt: skip
        if config.pooler:
            self.pooler = Pooler(config, **own)
        if config.classes:
            self.classifier = Classifier(config, **own)
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(config, tied=config.tie_logits, **own)

    def _add_inputs(self, side: str, vocabulary: int, **own: Any) -> None:
        """What is added up and normalised before the first layer of that side, under the canonical names."""
        config, width = self.config, self.config.model_width
        if inputs.table(config, side) == f"{side}_embedding":
            setattr(
                self,
                f"{side}_embedding",
                Embedding(vocabulary, width, config.scale_embedding, **own),
            )
        if config.positions == "learned":
            position = PositionEmbedding(config.sizes["p"], width, config.position_offset, **own)
            setattr(self, f"{side}_position_embedding", position)
        if config.segments and side == "source":
            self.source_segment_embedding = SegmentEmbedding(config.segments, width, **own)
        if config.embedding_norm:
            setattr(
                self,
                f"{side}_embedding_norm",
                LayerNorm(width, config.epsilon, param_dtype=own["param_dtype"]),
            )

    def __call__(
        self,
        source: jax.Array | None,
        target: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Tree | None = None,
        segment_bs: jax.Array | None = None,
        skip_padding: bool = False,
        packings: Packings | None = None,
    ) -> jax.Array:
        """An encoder alone takes no target, and gives what its head does: classes, the logits of masked tokens, or the vectors of `encode`.

        skip_padding: the rows of the logits at padding of the target are zeros (PADDING).
        packings: what `compiled` prepares. With that of a target, but without skip_padding, the logits are packed, `1 n v`.
        """
        checks.check_target_given(self.config.decoder_layers, target, target_mask_bt=target_mask_bt)
        checks.check_source_given(
            self.config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
        )
        if target is None:
            return self._headed(source, source_mask_bs, keep, segment_bs)
        packings, memory_bsd = packings or Packings(), None
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
            memory_bsd = self.encode(source, source_mask_bs, keep, segment_bs, packings.source)
            if source_mask_bs is None:
                source_mask_bs = token_mask(source, self.config.padding_id)
        logits_btv = self.decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep, packings)
        if not skip_padding:
            return logits_btv
        if packings.target is not None:
            return unpack(logits_btv, packings.target)
        mask_bt = (
            token_mask(target, self.config.padding_id) if target_mask_bt is None else target_mask_bt
        )
        return jnp.where(mask_bt[..., None], logits_btv, 0)

    @property
    def table(self) -> nnx.Param:
        """The table of the token embedding: of a model with a decoder the target's, which the logits may be tied to."""
        return self.embedding_of("target" if self.config.decoder_layers else "source").table

    def embedding_of(self, side: str) -> Embedding:
        """The token embedding of source or target: one module where they share it."""
        return getattr(self, inputs.table(self.config, side))

    def check_ids(
        self,
        source: Any = None,
        target: Any = None,
        segment_bs: Any = None,
        label_b: Any = None,
        **others: Any,
    ) -> None:
        """Raises ValueError on ids that a call or method with the same arguments refuses: `compiled` calls this before its program."""
        for side, token in (("source", source), ("target", target)):
            if token is not None and hasattr(self, inputs.table(self.config, side)):
                self.embedding_of(side).check_ids(token)
        if segment_bs is not None and source is not None:
            checks.check_segments(
                self.config.segments,
                segment_bs.shape,
                str(segment_bs.dtype),
                source.shape,
                *id_bounds(segment_bs),
            )
        if label_b is not None:
            checks.check_classes(label_b.shape, str(label_b.dtype))
            shape = len(label_b), 1
            checks.check_labels(
                (*shape, self.config.classes),
                shape,
                str(label_b.dtype),
                0.0,
                None,
                *id_bounds(label_b),
            )

    def embed(
        self,
        side: str,
        token: jax.Array,
        mask_bt: jax.Array | None = None,
        segment_bt: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """What the first layer of a side, "source" or "target", is given before dropout, and the mask of the tokens."""
        if segment_bt is not None and not self.config.segments:
            checks.check_segments(0, segment_bt.shape, str(segment_bt.dtype), token.shape)
        mask_bt, position_bt = inputs.masked_positions(self.config, side, token, mask_bt)
        return inputs.embed(
            self, side, token, position_bt, segment_bt, length=token.shape[1]
        ), mask_bt

    def encode(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Tree | None = None,
        segment_bs: jax.Array | None = None,
        packing: Packing | None = None,
    ) -> jax.Array:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`, with norm and segments by config.

        packing: of the source; the memory is then packed.
        """
        self.config.need_encoder()
        keep = (keep or {}).get("encoder", {})
        x_bsd, mask_bs = self.embed("source", source, source_mask_bs, segment_bs)
        x_bsd = self.encoder.embedding_dropout(x_bsd, keep.get("embedding_dropout"))
        return self.encoder(pack(x_bsd, packing), padding_mask(mask_bs), keep, packing)

    def decode(
        self,
        target: jax.Array,
        memory_bsd: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Tree | None = None,
        packings: Packings | None = None,
    ) -> jax.Array:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t.

        memory_bsd: None of a decoder alone. packings: of a memory that is packed, and of the target, as the logits then are.
        """
        self.config.need_decoder()
        checks.check_memory(
            self.config.cross_attention,
            self.config.model_width,
            None if memory_bsd is None else memory_bsd.shape,
            source_mask_bs,
        )
        packing, memory_packing = reversed(packings or Packings())
        if memory_bsd is not None:
            memory = rows(memory_bsd, memory_packing)
            checks.check_same_batch(source=memory, target=target.shape)
            if source_mask_bs is not None:
                checks.check_token_mask(
                    "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory[:2]
                )
        keep = (keep or {}).get("decoder", {})
        x_btd, mask_bt = self.embed("target", target, target_mask_bt)
        cross_mask_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)
        x_btd = self.decoder.embedding_dropout(x_btd, keep.get("embedding_dropout"))
        x_btd = pack(x_btd, packing)
        x_btd = self.decoder(
            x_btd, memory_bsd, padding_mask(mask_bt), cross_mask_bhts, keep, packing, memory_packing
        )
        return self.head(x_btd)

    def head(self, x_btd: jax.Array) -> jax.Array:
        """`logits = x W + b`, `b t v`, W being the transposed table of the target's embedding where they are tied."""
        tied = self.config.tie_logits and not hasattr(
            self.logits, "kernel"
        )  # a copy by `fused` may have one
        return self.logits(x_btd, self.table.T) if tied else self.logits(x_btd)

    def training_loss(
        self,
        source: jax.Array | None,
        target: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Tree | None = None,
        packings: Packings | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(logits(source, target_1 ... target_(n-1)), target_2 ... target_n)`; labels that are padding do not count.

        source: None of a decoder alone. The loss has the dtype of the parameters where it is wider than that of the computation.
        packings: what `compiled` and the Trainer prepare.
        """
        target_bt, label_bt = teacher_forcing(target)
        logits_btv = self(source, target_bt, keep=keep, packings=packings)
        logits_btv = logits_btv.astype(jnp.promote_types(logits_btv.dtype, self.table.dtype))
        packing, mask_bt = (
            (packings or Packings()).target,
            token_mask(label_bt, self.config.padding_id),
        )
        return cross_entropy(
            logits_btv, pack(label_bt, packing), counted(mask_bt, packing), smoothing, total
        )

    def states(
        self,
        source: jax.Array | None = None,
        target: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        segment_bs: jax.Array | None = None,
    ) -> States:
        """The vectors between the layers and all attention weights, in evaluation: `states.states`."""
        return states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)
