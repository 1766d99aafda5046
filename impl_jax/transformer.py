"""The whole Transformer: embeddings, encoder, decoder, logits and heads."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from . import inputs
from .dropout import Keep, part
from .embedding import Embedding, Logits, SegmentEmbedding
from .encoder_only import EncoderHeads
from .framework import id_bounds
from .heads import Classifier, MaskedLanguageHead, Pooler
from .loss import cross_entropy, teacher_forcing
from .mask import padding_mask, token_mask
from .normalization import norm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder
from .states import States, states

__all__ = ["Transformer"]


class Transformer(EncoderHeads):
    """`decode(target, encode(source))`: logits `b t v` of the token after each target position.

    The model has the parts of its config: an encoder-only model its heads, a decoder-only model
    neither a source nor cross-attention.
    param_dtype: of the parameters; dtype: of the computation, by default param_dtype.
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
        self.config = config
        if config.encoder_layers:
            self._add_inputs("source", config.source_vocabulary, **own)
            self.encoder = Encoder(config, **own)
        if config.decoder_layers:
            self._add_inputs("target", config.target_vocabulary, **own)
            self.decoder = Decoder(config, **own)
            self.logits = Logits(
                config.model_width, config.target_vocabulary, config.output_bias,
                config.logit_scale, config.logit_cap,
                tied=config.tie_logits, param_dtype=param_dtype, rngs=rngs,
            )  # fmt: skip
        if config.pooler:
            self.pooler = Pooler(config, **own)
        if config.classes:
            self.classifier = Classifier(config, **own)
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(config, tied=config.tie_logits, **own)

    def _add_inputs(self, side: str, vocabulary: int, **own: Any) -> None:
        """Adds the embeddings of a side, and their norm, under the canonical names."""
        config, width = self.config, self.config.model_width
        if inputs.table(config, side) == f"{side}_embedding":
            scale = config.scale_embedding, config.round_embedding_scale
            embedding = Embedding(vocabulary, width, *scale, **own)
            setattr(self, f"{side}_embedding", embedding)
        if config.positions == "learned":
            position = PositionEmbedding(config.sizes["p"], width, config.position_offset, **own)
            setattr(self, f"{side}_position_embedding", position)
        if config.segments and side == "source":
            self.source_segment_embedding = SegmentEmbedding(config.segments, width, **own)
        if config.embedding_norm:
            embedding_norm = norm(config, param_dtype=own["param_dtype"])
            setattr(self, f"{side}_embedding_norm", embedding_norm)

    def __call__(
        self,
        source: jax.Array | None,
        target: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
        skip_padding: bool = False,
    ) -> jax.Array:
        """The logits; an encoder-only model takes no target and gives what its head gives.

        skip_padding: the rows of the logits at padding of the target are zeros (PADDING).
        """
        self.check_given(source, target, source_mask_bs, target_mask_bt, segment_bs)
        if target is None:
            return self._encoder_output(source, source_mask_bs, keep, segment_bs)
        memory_bsd = None
        if source is not None:
            memory_bsd = self.encode(source, source_mask_bs, keep, segment_bs)
            if source_mask_bs is None:
                source_mask_bs = token_mask(source, self.config.padding_id)
        logits_btv = self.decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep)
        if not skip_padding:
            return logits_btv
        if target_mask_bt is None:
            target_mask_bt = token_mask(target, self.config.padding_id)
        return jnp.where(target_mask_bt[..., None], logits_btv, 0)

    def encode(
        self,
        source: jax.Array,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bs: jax.Array | None = None,
    ) -> jax.Array:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`."""
        self.config.need_encoder()
        given = source, source_mask_bs, keep, segment_bs
        x_bsd, mask_bs, position_bs = self.embed("source", *given)
        return self.encoder(x_bsd, padding_mask(mask_bs), part(keep, "encoder"), position_bs)

    def decode(
        self,
        target: jax.Array,
        memory_bsd: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

        Row t scores the token after target t. A decoder-only model has no memory. Without a
        source_mask_bs all of the memory is attended to: its ids, and so its padding, are not known.
        """
        self.config.need_decoder()
        shape = None if memory_bsd is None else memory_bsd.shape
        width, cross_attention = self.config.model_width, self.config.cross_attention
        checks.check_memory(cross_attention, width, shape, source_mask_bs)
        if shape is not None:
            checks.check_same_batch(source=shape, target=target.shape)
            if source_mask_bs is not None:
                kind = str(source_mask_bs.dtype)
                checks.check_token_mask("source mask", source_mask_bs.shape, kind, shape[:2])
        x_btd, mask_bt, position_bt = self.embed("target", target, target_mask_bt, keep)
        masks = (
            padding_mask(mask_bt),
            None if source_mask_bs is None else padding_mask(source_mask_bs),
        )
        rest = *masks, part(keep, "decoder"), position_bt
        return self.head(self.decoder(x_btd, memory_bsd, *rest))

    def training_loss(
        self,
        source: jax.Array | None,
        target: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(logits(source, target_1 ... target_(n-1)), target_2 ... target_n)`.

        Labels that are padding do not count. total: the number to divide by, by default that of the
        labels that count.
        """
        target_bt, label_bt = teacher_forcing(target)
        logits_btv = self.widened(self(source, target_bt, keep=keep))
        mask_bt = token_mask(label_bt, self.config.padding_id)
        return cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total)

    def states(
        self,
        source: jax.Array | None = None,
        target: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        segment_bs: jax.Array | None = None,
    ) -> States:
        """Returns the vectors between the layers and all attention weights: `states.states`."""
        return states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)

    def embed(
        self,
        side: str,
        token: jax.Array,
        mask_bt: jax.Array | None = None,
        keep: Keep | None = None,
        segment_bt: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What the first layer of a side, "source" or "target", is given, and the tokens' mask and
        positions.
        """
        if segment_bt is not None and not self.config.segments:
            checks.check_segments(0, segment_bt.shape, str(segment_bt.dtype), token.shape)
        mask_bt, position_bt = inputs.masked_positions(self.config, side, token, mask_bt)
        x_btd = inputs.embed(self, side, token, position_bt, segment_bt, length=token.shape[1])
        stack = "encoder" if side == "source" else "decoder"
        dropout = getattr(self, stack).embedding_dropout
        return dropout(x_btd, part(keep, stack, "embedding_dropout")), mask_bt, position_bt

    def head(self, x_btd: jax.Array) -> jax.Array:
        """`logits = x W + b`, `b t v`; tied, W is the target's transposed table."""
        # A copy by `fused` may hold the table as the logits' kernel.
        if not self.config.tie_logits or hasattr(self.logits, "kernel"):
            return self.logits(x_btd)
        return self.logits(x_btd, self.token_embedding("target").table.T)

    def token_embedding(self, side: str) -> Embedding:
        """The token embedding of source or target, which may be one: `source_embedding`."""
        return getattr(self, inputs.table(self.config, side))

    def widened(self, logits: jax.Array) -> jax.Array:
        """The logits in the dtype of the parameters if that is wider: a loss is computed in it."""
        table = self.token_embedding("target" if self.config.decoder_layers else "source").table
        return logits.astype(jnp.promote_types(logits.dtype, table.dtype))

    def check_given(
        self,
        source: Any,
        target: Any,
        source_mask_bs: Any = None,
        target_mask_bt: Any = None,
        segment_bs: Any = None,
    ) -> None:
        """Raises ValueError if a call lacks what the stacks read, or has what none reads."""
        config = self.config
        of_source = {"source_mask_bs": source_mask_bs, "segment_bs": segment_bs}
        checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
        checks.check_source_given(config.encoder_layers, source, **of_source)
        if source is not None and target is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)

    def check_ids(
        self,
        source: Any = None,
        target: Any = None,
        segment_bs: Any = None,
        label_b: Any = None,
        **others: Any,
    ) -> None:
        """Raises ValueError on ids that a call with the same arguments refuses.

        `compiled` calls this before its program, which cannot raise.
        """
        for side, token in (("source", source), ("target", target)):
            if token is not None and hasattr(self, inputs.table(self.config, side)):
                self.token_embedding(side).check_ids(token)
        if segment_bs is not None and source is not None:
            given = segment_bs.shape, str(segment_bs.dtype), source.shape
            checks.check_segments(self.config.segments, *given, *id_bounds(segment_bs))
        if label_b is not None:
            checks.check_classes(label_b.shape, str(label_b.dtype))
            shape, bounds = (len(label_b), 1), id_bounds(label_b)
            logits_shape = *shape, self.config.classes
            checks.check_labels(logits_shape, shape, str(label_b.dtype), 0.0, None, *bounds)
