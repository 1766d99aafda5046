"""The whole Transformer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from . import loss, mask, precision, states
from .embedding import Embedding, Logits, SegmentEmbedding, check_values, of_vocabulary
from .encoder_only import EncoderOnly
from .fast import packing
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import embed, masked_positions
from .normalization import LayerNorm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]

Tree = Mapping[str, Any]


class ModelConfig(TransformerConfig):
    """The config of a model. Libraries may write attributes of their own to it, such as `use_cache`; its fields stay what they are."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformerConfig) and self.to_dict() == other.to_dict()

    __hash__ = TransformerConfig.__hash__


class Transformer(EncoderOnly):
    """`logits(decoder(embed(target), memory))`, `memory = encoder(embed(source))`; or one of the two stacks alone, with its own parts.

    `embed` is `dropout(norm(embedding(token) + position + segment))`, with norm and segments by config.
    Shared embeddings and tied logits are one `nn.Parameter` of several modules (`framework.Sharing`).
    Without a padding id there are no masks, and the fused kernels run without one. keep: dropout masks by site, nested; a site without one
    draws its own in training. pack_from: how many numbers of a layer's input must be padding for the products to leave them out. A model
    with hooks or with modules of other classes in its stacks, and a program that is traced, has the rows always.
    """

    source_embedding: Embedding
    target_embedding: Embedding

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, self.pack_from = ModelConfig(**config.to_dict()), packing.PACK_FROM
        if config.encoder_layers:
            self._add_inputs(
                "source",
                Embedding(config.source_vocabulary, config.model_width, config.scale_embedding),
            )
            self.encoder = Encoder(config)
        if config.decoder_layers:
            self._add_inputs(
                "target",
                Embedding(config.target_vocabulary, config.model_width, config.scale_embedding),
            )
            if config.cross_attention and config.share_embeddings:
                self.target_embedding.weight = self.source_embedding.weight
            self.decoder = Decoder(config)
            self.logits = Logits(config.model_width, config.target_vocabulary, config.output_bias)
            if config.tie_logits:
                self.logits.weight = self.target_embedding.weight
        if config.pooler:
            self.pooler = Pooler(config.model_width)
        if config.classes:
            self.classifier = Classifier(
                config.model_width, config.classes, config.classifier_dropout_rate
            )
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(
                config, self.source_embedding if config.tie_logits else None
            )

    def encode(
        self,
        source: Tensor,
        source_mask_bs: Tensor | None = None,
        keep: Tree | None = None,
        segment_bs: Tensor | None = None,
        checked: bool = False,
    ) -> Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`. checked: the caller has checked the ids.

        FSDP2 gathers parameters for calls of the module alone; `register_fsdp_forward_method(model, "encode")` adds this one.
        """
        self.config.need_encoder()
        if not checked:
            self.check_ids(source, segment_bs=segment_bs)
        return self._encode(source, source_mask_bs, keep, segment_bs)[0]

    def memory(self, source: Tensor, source_mask_bs: Tensor | None = None) -> Tensor:
        """`encode` of ids that are checked, for what attends by the mask: nothing is computed for padding, whose rows hold anything."""
        source_packing = packing.of_forward(self, source, None, source_mask_bs).source
        return packing.unpack(
            self._encode(source, source_mask_bs, None, None, source_packing)[0], source_packing
        )

    def decode(
        self,
        target: Tensor,
        memory_bsd: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        keep: Tree | None = None,
    ) -> Tensor:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`: row t scores the token after target t.

        memory_bsd: None of a decoder alone.
        """
        self.config.need_decoder()
        checks.check_memory(
            self.config.cross_attention,
            self.config.model_width,
            None if memory_bsd is None else memory_bsd.shape,
            source_mask_bs,
        )
        if memory_bsd is not None:
            checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        self.check_ids(target=target)
        return self._decode(
            target, memory_bsd, source_mask_bs, target_mask_bt, keep, packing.Packings()
        )[0]

    def check_ids(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        segment_bs: Tensor | None = None,
        label_b: Tensor | None = None,
    ) -> None:
        """Raises ValueError on tokens, segments and labels that the methods refuse which take them; all values come in one transfer."""
        config, given = self.config, []
        if source is not None:
            given.append(of_vocabulary(source, config.source_vocabulary))
        if target is not None:
            given.append(of_vocabulary(target, config.target_vocabulary))
            if source is not None:
                checks.check_same_batch(source=source.shape, target=target.shape)
        if source is not None and segment_bs is not None:
            given.append((segment_bs, partial(_check_segments, config.segments, source.shape)))
        if source is not None and label_b is not None and config.classes:
            given.append((label_b, partial(_check_labels, (source.shape[0], 1, config.classes))))
        check_values(*given)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        keep: Tree | None = None,
        segment_bs: Tensor | None = None,
        skip_padding: bool = False,
        checked: bool = False,
        packings: packing.Packings | None = None,
    ) -> Tensor:
        """`decode(target, encode(source))`, `b t v`; `decode(target)` of a decoder alone, whose source is None; without a target, of an
        encoder alone, what its head gives: `classify`, `masked_language_logits`, or `encode` where it has none.

        skip_padding: the rows of the target's padding are zeros, and nothing is computed for them (PADDING). checked: as of `encode`.
        packings: made outside a compiled program; keep is then packed, too, and without skip_padding the logits are, `1 n v`.
        """
        checks.check_target_given(self.config.decoder_layers, target, target_mask_bt=target_mask_bt)
        checks.check_source_given(
            self.config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
        )
        if target is None:
            return self._headed(source, source_mask_bs, keep, segment_bs, checked)
        if not checked:
            self.check_ids(source, target, segment_bs)
        if packings is None:
            packings = packing.of_forward(
                self, source, target, source_mask_bs, target_mask_bt, skip_padding
            )
            keep = packing.kept(keep, packings)
        memory_bsd = None
        if source is not None:
            memory_bsd, source_mask_bs = self._encode(
                source, source_mask_bs, keep, segment_bs, packings.source
            )
        logits_btv, mask_bt = self._decode(
            target, memory_bsd, source_mask_bs, target_mask_bt, keep, packings
        )
        return (
            packing.zero_padding(logits_btv, mask_bt, packings.target)
            if skip_padding
            else logits_btv
        )

    def training_loss(
        self,
        source: Tensor | None,
        target: Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Tree | None = None,
        packings: packing.Packings | None = None,
    ) -> Tensor:
        """`cross_entropy(transformer(source, target[:-1]), target[1:])`, a scalar; labels that are the padding id do not count.

        Nothing is computed for places that no label depends on. packings: as of `forward`.
        It calls the module, with its hooks: FSDP2 works, and the loss is float32 where the policy of the root has
        `MixedPrecisionPolicy(output_dtype=torch.float32)`; that of a layer must leave output_dtype out, or the next one is given float32.

        A wrapper with a `forward` of its own is not called: `ddp.module.training_loss` averages no gradients. Of
        `DistributedDataParallel` take the loss of what it returns: `input_bt, label_bt = loss.teacher_forcing(target)`, then
        `loss.cross_entropy(ddp(source, input_bt), label_bt, mask_bt, total=total)`. total is the mean over the processes of how many labels
        count: it and FSDP2 average gradients, and without it every process divides by its own number.
        """
        self.config.need_decoder()
        input_bt, label_bt = loss.teacher_forcing(target)
        self.check_ids(source, target)
        if packings is None:
            packings = packing.of_loss(self, source, target)
            keep = packing.kept(keep, packings)
        logits_btv = self(source, input_bt, keep=keep, checked=True, packings=packings)
        label_bt = packing.pack(label_bt, packings.target)
        mask_bt = (
            None
            if self.config.padding_id is None
            else mask.token_mask(label_bt, self.config.padding_id)
        )
        return loss.cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total, checked=True)

    def states(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """The vectors before the first layer and after every layer, and the attention weights of every layer, in evaluation.

        encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, where there is an encoder, cross_attention_lbhts; l layer, t
        query. The last of a stack's vectors are those after its final norm.
        """
        return states.states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)

    def _add_inputs(self, side: str, embedding: Embedding) -> None:
        """What is added up and normalised before the first layer of the encoder (source) or the decoder (target)."""
        config = self.config
        setattr(self, f"{side}_embedding", embedding)
        if config.positions == "learned":
            position_embedding = PositionEmbedding(
                config.max_positions, config.position_offset, config.model_width
            )
            setattr(self, f"{side}_position_embedding", position_embedding)
        if config.segments and side == "source":
            self.source_segment_embedding = SegmentEmbedding(config.segments, config.model_width)
        if config.embedding_norm:
            setattr(self, f"{side}_embedding_norm", LayerNorm(config.model_width, config.epsilon))

    def _encode(
        self,
        source: Tensor,
        mask_bs: Tensor | None,
        keep: Tree | None,
        segment_bs: Tensor | None,
        source_packing: packing.Packing | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The memory, packed where there is a packing, and the mask of its real tokens."""
        sites = (keep or {}).get("encoder", {})
        mask_bs, position_bs = masked_positions(self.config, "source", source, mask_bs)
        x_bsd = packing.pack(embed(self, "source", source, position_bs, segment_bs), source_packing)
        x_bsd = self.encoder.embedding_dropout(x_bsd, sites.get("embedding_dropout"))
        return self.encoder(
            x_bsd, None if mask_bs is None else mask.padding_mask(mask_bs), sites, source_packing
        ), mask_bs

    def _decode(
        self,
        target: Tensor,
        memory_bsd: Tensor | None,
        source_mask_bs: Tensor | None,
        target_mask_bt: Tensor | None,
        keep: Tree | None,
        packings: packing.Packings,
    ) -> tuple[Tensor, Tensor | None]:
        """The logits, packed where there is a packing, and the mask of the target's real tokens."""
        sites = (keep or {}).get("decoder", {})
        mask_bt, position_bt = masked_positions(self.config, "target", target, target_mask_bt)
        x_btd = packing.pack(embed(self, "target", target, position_bt), packings.target)
        x_btd = self.decoder.embedding_dropout(x_btd, sites.get("embedding_dropout"))
        if source_mask_bs is not None and memory_bsd is not None:
            shape = packing.rows(memory_bsd, packings.source)
            checks.check_token_mask(
                "source mask",
                source_mask_bs.shape,
                precision.dtype_name(source_mask_bs.dtype),
                shape[:2],
            )
        self_mask_bhts, cross_mask_bhts = (
            None if m is None else mask.padding_mask(m) for m in (mask_bt, source_mask_bs)
        )
        x_btd = self.decoder(
            x_btd,
            memory_bsd,
            self_mask_bhts,
            cross_mask_bhts,
            sites,
            packings.target,
            packings.source,
        )
        return self.logits(x_btd), mask_bt


def _check_segments(
    segments: int, source: torch.Size, shape: torch.Size, dtype: str, *bounds: int
) -> None:
    checks.check_segments(segments, shape, dtype, source, *bounds)


def _check_labels(
    logits: tuple[int, int, int], shape: torch.Size, dtype: str, *bounds: int
) -> None:
    """One label for each row."""
    checks.check_classes(shape, dtype)
    checks.check_labels(logits, (*shape[:1], 1, *shape[1:]), dtype, 0.0, None, *bounds)
