"""The whole Transformer: from token ids to logits and the training loss."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from . import inputs
from .dropout import Keep, part
from .embedding import Logits, SegmentEmbedding
from .encoder_only import EncoderHeads
from .framework import Array, id_bounds
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import Inputs
from .loss import cross_entropy, router_loss, share, teacher_forcing
from .mask import padding_mask, token_mask
from .precision import upcast_to
from .stacks import Decoder, Encoder
from .states import States, states
from .values import Mask, Own, Text

__all__ = ["Transformer"]


class Transformer(EncoderHeads):
    """`decode(target, encode(source))`, `b t v`: the logits of the token after each target token.

    A model has only the parts of its config: an encoder-only model has heads, a decoder-only model
    neither source nor cross-attention. dtype, param_dtype: see `values.Own`.
    """

    def __init__(
        self, config: TransformerConfig, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        own: Own = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.config = config
        if config.encoder_layers:
            vocabulary, segments = config.source_vocabulary, config.segments
            self.source_embedding = inputs.token_embedding(config, vocabulary, **own)
            self.source_position_embedding = inputs.position_embedding(config, **own)
            self.source_segment_embedding = (
                SegmentEmbedding(segments, config.model_width, **own) if segments else None
            )
            self.source_embedding_norm = inputs.embedding_norm(config, **own)
            self.encoder = Encoder(config, **own)
        if config.decoder_layers:
            vocabulary = config.target_vocabulary
            if inputs.table(config, "target") == "target_embedding":
                self.target_embedding = inputs.token_embedding(config, vocabulary, **own)
            self.target_position_embedding = inputs.position_embedding(config, **own)
            self.target_embedding_norm = inputs.embedding_norm(config, **own)
            self.decoder = Decoder(config, **own)
            self.logits = Logits(config, vocabulary, tied=config.tie_logits, **own)
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
        routed: list[jax.Array] | None = None,
    ) -> jax.Array:
        """Returns the logits; an encoder-only model takes no target and returns its head's output.

        source, target: ids, or a `Text`. routed: collects the logits of the decoder's routers.
        """
        source_text, target_text = inputs.sides(self.config, source, target)
        if source_text is None:
            assert target_text is not None
            return self.decode(target_text, keep=keep, routed=routed)
        if target_text is None:
            return self.encoder_output(source_text, keep)
        mask_bs = source_text.real(self.config.padding_id)
        return self.decode(target_text, self.encode(source_text, keep), mask_bs, keep, routed)

    def encode(self, source: Text | jax.Array, keep: Keep | None = None) -> jax.Array:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`."""
        self.config.need_encoder()
        x_bsd, mask_bs, position_bs = self.embed("source", Text.of(source), keep)
        return self.encoder(x_bsd, padding_mask(mask_bs), part(keep, "encoder"), position_bs)

    def decode(
        self,
        target: Text | jax.Array,
        memory_bsd: jax.Array | None = None,
        source_mask_bs: Mask = None,
        keep: Keep | None = None,
        routed: list[jax.Array] | None = None,
    ) -> jax.Array:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

        Without source_mask_bs, all of the memory is attended to, since its padding is unknown.
        """
        self.config.need_decoder()
        text = Text.of(target)
        inputs.check_memory(self.config, memory_bsd, source_mask_bs)
        if memory_bsd is not None:
            checks.check_same_batch(source=memory_bsd.shape, target=text.ids.shape)
        x_btd, mask_bt, position_bt = self.embed("target", text, keep)
        self_mask, keep = padding_mask(mask_bt), part(keep, "decoder")
        cross_mask = padding_mask(source_mask_bs)
        given = x_btd, memory_bsd, self_mask, cross_mask, keep, position_bt
        x_btd = self.decoder(*given, routed=routed)
        return self.head(x_btd)

    def training_loss(
        self,
        source: Text | jax.Array | None,
        target: jax.Array,
        smoothing: float = 0.0,
        total: jax.Array | int | None = None,
        keep: Keep | None = None,
        router_aux_weight: float = 0.0,
        router_z_weight: float = 0.0,
    ) -> jax.Array:
        """`L = cross_entropy(logits(source, target_1 ... target_(n-1)), target_2 ... target_n)`.

        target: ids; padding labels do not count. total: the divisor, default the counted labels.
        With weights of routers, `loss.router_loss` of the real tokens whose labels count is added,
        times the share of these labels in total (BALANCE).
        """
        target_bt, label_bt = teacher_forcing(target)
        weights = router_aux_weight, router_z_weight
        routed: list[jax.Array] | None = [] if any(weights) else None
        if routed is not None:
            self.config.need_router_loss()
        logits_btv = self(source, target_bt, keep, routed)
        logits_btv = upcast_to(logits_btv, self.inputs("target").embedding.table.dtype)
        mask_bt = token_mask(label_bt, self.config.padding_id)
        value = cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total)
        if routed is None:
            return value
        scored_bt = mask_bt & token_mask(target_bt, self.config.padding_id)
        given = jnp.stack(routed), self.config.experts_per_token, scored_bt
        added = router_loss(*given, *weights)
        return value + (added * share(mask_bt, total, added.dtype)).astype(value.dtype)

    def states(
        self, source: Text | jax.Array | None = None, target: Text | jax.Array | None = None
    ) -> States:
        """Returns the vectors between the layers and all attention weights: `states.states`."""
        return states(self, source, target)

    def inputs(self, side: str) -> Inputs:
        """Returns the modules that embed the source or the target."""
        if side == "source":
            return Inputs(
                self.source_embedding,
                self.source_position_embedding,
                self.source_segment_embedding,
                self.source_embedding_norm,
            )
        shared = inputs.table(self.config, side) == "source_embedding"
        embedding = self.source_embedding if shared else self.target_embedding
        positions, norm = self.target_position_embedding, self.target_embedding_norm
        return Inputs(embedding, positions, None, norm)

    def embed(
        self, side: str, text: Text, keep: Keep | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the first layer's input, mask and positions. side: "source" or "target"."""
        ids, mask_bt, segment_bt = text
        mask_bt, position_bt = inputs.masked_positions(self.config, side, ids, mask_bt)
        x_btd = inputs.embed(self, side, ids, position_bt, segment_bt, length=ids.shape[1])
        stack, name = (self.encoder, "encoder") if side == "source" else (self.decoder, "decoder")
        x_btd = stack.embedding_dropout(x_btd, part(keep, name, "embedding_dropout"))
        return x_btd, mask_bt, position_bt

    def head(self, x_btd: jax.Array) -> jax.Array:
        """`logits = x W + b`, `b t v`; if tied, W is the transposed target table."""
        # A copy made by `fused` may hold the table as the logits' kernel.
        if not self.config.tie_logits or hasattr(self.logits, "kernel"):
            return self.logits(x_btd)
        return self.logits(x_btd, self.inputs("target").embedding.table.T)

    def check_ids(
        self,
        source: Text | Array | None = None,
        target: Text | Array | None = None,
        label_b: Array | None = None,
        **others: object,
    ) -> None:
        """Raises ValueError on ids that a call with the same arguments rejects.

        `compiled` calls this before its program, which cannot raise.
        """
        layers = {"source": self.config.encoder_layers, "target": self.config.decoder_layers}
        for side, text in (("source", Text.of(source)), ("target", Text.of(target))):
            if text is not None and layers[side]:
                self.inputs(side).embedding.check_ids(text.ids)
            if text is not None and text.segment is not None:
                shape, kind = text.segment.shape, str(text.segment.dtype)
                segments, bounds = self.config.segments, id_bounds(text.segment)
                of_side = segments if side == "source" else 0
                checks.check_segments(of_side, shape, kind, text.ids.shape, *bounds)
        if label_b is not None:
            kind, shape, bounds = str(label_b.dtype), (len(label_b), 1), id_bounds(label_b)
            checks.check_classes(label_b.shape, kind)
            of_logits = (len(label_b), 1, self.config.classes)
            checks.check_labels(of_logits, shape, kind, 0.0, None, *bounds)
