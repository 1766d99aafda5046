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
from .normalization import Norm, norm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder
from .states import States, states
from .values import Text

__all__ = ["Transformer"]


class Transformer(EncoderHeads):
    """`decode(target, encode(source))`: logits `b t v` of the token after each target position.

    The model has the parts of its config: an encoder-only model its heads, a decoder-only model
    neither a source nor cross-attention.
    param_dtype: of the parameters; dtype: of the computation, by default param_dtype.
    """

    def __init__(
        self, config: TransformerConfig, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        own: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.config, width = config, config.model_width
        if config.encoder_layers:
            self.source_embedding = token_embedding(config, config.source_vocabulary, **own)
            self.source_position_embedding = position_embedding(config, **own)
            self.source_segment_embedding = (
                SegmentEmbedding(config.segments, width, **own) if config.segments else None
            )
            self.source_embedding_norm = embedding_norm(config, param_dtype)
            self.encoder = Encoder(config, **own)
        if config.decoder_layers:
            if inputs.table(config, "target") == "target_embedding":
                self.target_embedding = token_embedding(config, config.target_vocabulary, **own)
            self.target_position_embedding = position_embedding(config, **own)
            self.target_embedding_norm = embedding_norm(config, param_dtype)
            self.decoder = Decoder(config, **own)
            self.logits = Logits(
                width, config.target_vocabulary, config.output_bias,
                config.logit_scale, config.logit_cap,
                tied=config.tie_logits, param_dtype=param_dtype, rngs=rngs,
            )  # fmt: skip
        if config.pooler:
            self.pooler = Pooler(config, **own)
        if config.classes:
            self.classifier = Classifier(config, **own)
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(config, tied=config.tie_logits, **own)

    def __call__(
        self,
        source: Text | jax.Array | None,
        target: Text | jax.Array | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """The logits; an encoder-only model takes no target and gives what its head gives.

        source, target: ids, or a `Text`.
        """
        read, written = self.check_given(source, target)
        if read is None:
            return self.decode(written, keep=keep)
        if written is None:
            return self._encoder_output(read, keep)
        return self.decode(written, self.encode(read, keep), self.token_mask(read), keep)

    def encode(self, source: Text | jax.Array, keep: Keep | None = None) -> jax.Array:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`."""
        self.config.need_encoder()
        x_bsd, mask_bs, position_bs = self.embed("source", Text.of(source), keep)
        return self.encoder(x_bsd, padding_mask(mask_bs), part(keep, "encoder"), position_bs)

    def decode(
        self,
        target: Text | jax.Array,
        memory_bsd: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

        Row t scores the token after target t. A decoder-only model has no memory. Without a
        source_mask_bs all of the memory is attended to: its ids, and so its padding, are not known.
        """
        self.config.need_decoder()
        text = Text.of(target)
        self.check_memory(memory_bsd, source_mask_bs)
        if memory_bsd is not None:
            checks.check_same_batch(source=memory_bsd.shape, target=text.ids.shape)
        x_btd, mask_bt, position_bt = self.embed("target", text, keep)
        self_mask, keep = padding_mask(mask_bt), part(keep, "decoder")
        cross_mask = None if source_mask_bs is None else padding_mask(source_mask_bs)
        x_btd = self.decoder(x_btd, memory_bsd, self_mask, cross_mask, keep, position_bt)
        return self.head(x_btd)

    def training_loss(
        self,
        source: Text | jax.Array | None,
        target: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """`L = cross_entropy(logits(source, target_1 ... target_(n-1)), target_2 ... target_n)`.

        target: ids. Labels that are padding do not count. total: the number to divide by, by
        default that of the labels that count.
        """
        target_bt, label_bt = teacher_forcing(target)
        logits_btv = self.widened(self(source, target_bt, keep))
        mask_bt = token_mask(label_bt, self.config.padding_id)
        return cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total)

    def states(
        self, source: Text | jax.Array | None = None, target: Text | jax.Array | None = None
    ) -> States:
        """Returns the vectors between the layers and all attention weights: `states.states`."""
        return states(self, source, target)

    def embed(
        self, side: str, text: Text, keep: Keep | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The input of the first layer, with the mask and the positions of its tokens.

        side: "source" or "target".
        """
        ids, mask_bt, segment_bt = text
        if segment_bt is not None and (side == "target" or not self.config.segments):
            checks.check_segments(0, segment_bt.shape, str(segment_bt.dtype), ids.shape)
        mask_bt, position_bt = inputs.masked_positions(self.config, side, ids, mask_bt)
        x_btd = inputs.embed(self, side, ids, position_bt, segment_bt, length=ids.shape[1])
        stack, name = (self.encoder, "encoder") if side == "source" else (self.decoder, "decoder")
        x_btd = stack.embedding_dropout(x_btd, part(keep, name, "embedding_dropout"))
        return x_btd, mask_bt, position_bt

    def head(self, x_btd: jax.Array) -> jax.Array:
        """`logits = x W + b`, `b t v`; tied, W is the target's transposed table."""
        # A copy by `fused` may hold the table as the logits' kernel.
        if not self.config.tie_logits or hasattr(self.logits, "kernel"):
            return self.logits(x_btd)
        return self.logits(x_btd, self.token_embedding("target").table.T)

    def token_embedding(self, side: str) -> Embedding:
        """The token embedding of source or target, which may be one: `source_embedding`."""
        is_source = inputs.table(self.config, side) == "source_embedding"
        return self.source_embedding if is_source else self.target_embedding

    def side(self, name: str) -> inputs.Side:
        """The modules that embed the tokens of the source or the target."""
        embedding = self.token_embedding(name)
        if name == "target":
            own = self.target_position_embedding, None, self.target_embedding_norm
            return inputs.Side(embedding, *own)
        return inputs.Side(
            embedding,
            self.source_position_embedding,
            self.source_segment_embedding,
            self.source_embedding_norm,
        )

    def widened(self, logits: jax.Array) -> jax.Array:
        """The logits in the dtype of the parameters if that is wider: a loss is computed in it."""
        table = self.token_embedding("target" if self.config.decoder_layers else "source").table
        return logits.astype(jnp.promote_types(logits.dtype, table.dtype))

    def token_mask(self, text: Text) -> jax.Array:
        """Which tokens are real, `b t`: by default every id but the padding id."""
        return token_mask(text.ids, self.config.padding_id) if text.mask is None else text.mask

    def check_given(self, source: Any, target: Any = None) -> tuple[Any, Any]:
        """Returns both sides of a call, each a Text or None. Raises ValueError if the stacks lack
        one, or if none reads it.
        """
        source, target = Text.of(source), Text.of(target)
        checks.check_target_given(self.config.decoder_layers, target)
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None and target is not None:
            checks.check_same_batch(source=source.ids.shape, target=target.ids.shape)
        return source, target

    def check_memory(
        self, memory_bsd: jax.Array | None, source_mask_bs: jax.Array | None = None
    ) -> None:
        """Raises ValueError if the decoder cannot attend to this memory, or the mask is none."""
        shape = None if memory_bsd is None else memory_bsd.shape
        width, cross_attention = self.config.model_width, self.config.cross_attention
        checks.check_memory(cross_attention, width, shape, source_mask_bs)
        if source_mask_bs is not None and shape is not None:
            kind = str(source_mask_bs.dtype)
            checks.check_token_mask("source mask", source_mask_bs.shape, kind, shape[:2])

    def check_ids(
        self, source: Any = None, target: Any = None, label_b: Any = None, **others: Any
    ) -> None:
        """Raises ValueError on ids that a call with the same arguments refuses.

        `compiled` calls this before its program, which cannot raise.
        """
        layers = {"source": self.config.encoder_layers, "target": self.config.decoder_layers}
        for side, text in (("source", Text.of(source)), ("target", Text.of(target))):
            if text is not None and layers[side]:
                self.token_embedding(side).check_ids(text.ids)
            if text is not None and text.segment is not None:
                segments = self.config.segments if side == "source" else 0
                given = text.segment.shape, str(text.segment.dtype), text.ids.shape
                checks.check_segments(segments, *given, *id_bounds(text.segment))
        if label_b is not None:
            checks.check_classes(label_b.shape, str(label_b.dtype))
            shape, bounds = (len(label_b), 1), id_bounds(label_b)
            logits_shape = *shape, self.config.classes
            checks.check_labels(logits_shape, shape, str(label_b.dtype), 0.0, None, *bounds)


def token_embedding(config: TransformerConfig, vocabulary: int, **own: Any) -> Embedding:
    """The token embedding of a side by config."""
    scale = config.scale_embedding, config.round_embedding_scale
    return Embedding(vocabulary, config.model_width, *scale, **own)


def position_embedding(config: TransformerConfig, **own: Any) -> PositionEmbedding | None:
    """The learned positions of a side; None by config."""
    if config.positions != "learned":
        return None
    return PositionEmbedding(config.sizes["p"], config.model_width, config.position_offset, **own)


def embedding_norm(config: TransformerConfig, param_dtype: Dtype) -> Norm | None:
    """The norm of a side's vectors; None by config."""
    return norm(config, param_dtype=param_dtype) if config.embedding_norm else None
