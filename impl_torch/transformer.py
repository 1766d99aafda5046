"""The whole Transformer."""

from functools import partial

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from . import loss, mask, precision, states
from .dropout import Keep, part
from .embedding import Embedding, Logits, SegmentEmbedding, check_values, of_vocabulary
from .encoder_only import EncoderHeads
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import embed, masked_positions
from .normalization import norm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]


class ModelConfig(TransformerConfig):
    """The config of a model, to which libraries may write attributes of their own, such as
    `use_cache`; its fields stay as they are.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformerConfig) and self.to_dict() == other.to_dict()

    __hash__ = TransformerConfig.__hash__


class Transformer(EncoderHeads):
    """`logits(decoder(embed(target), memory))`, `memory = encoder(embed(source))`; or only one of
    the two stacks, with its own parts.

    `embed` is `dropout(norm(embedding(token) + position + segment))`, with norm and segments by
    config. Shared embeddings and tied logits are one `nn.Parameter` of several modules
    (`framework.Sharing`). Without a padding id there are no masks, and the fused kernels run
    without one. keep: dropout masks by site, nested; a site without one draws its own in training.
    """

    source_embedding: Embedding
    target_embedding: Embedding

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = ModelConfig(**config.to_dict())
        if config.encoder_layers:
            self._add_inputs("source", config.source_vocabulary)
            self.encoder = Encoder(config)
        if config.decoder_layers:
            self._add_inputs("target", config.target_vocabulary)
            if config.cross_attention and config.share_embeddings:
                self.target_embedding.weight = self.source_embedding.weight
            self.decoder = Decoder(config)
            self.logits = Logits(
                config.model_width,
                config.target_vocabulary,
                config.output_bias,
                config.logit_scale,
                config.logit_cap,
            )
            if config.tie_logits:
                self.logits.weight = self.target_embedding.weight
        if config.pooler:
            self.pooler = Pooler(config.model_width, config.pooler_activation)
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
        keep: Keep | None = None,
        segment_bs: Tensor | None = None,
    ) -> Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

        FSDP2 gathers parameters only for calls of the module;
        `register_fsdp_forward_method(model, "encode")` adds this one.
        """
        self.config.need_encoder()
        self.check_ids(source, segment_bs=segment_bs)
        return self._encode(source, source_mask_bs, keep, segment_bs)[0]

    def decode(
        self,
        target: Tensor,
        memory_bsd: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        keep: Keep | None = None,
    ) -> Tensor:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`: row t
        scores the token after target t.

        memory_bsd: None in a decoder-only model.
        """
        config, shape = self.config, None if memory_bsd is None else memory_bsd.shape
        config.need_decoder()
        checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
        if shape is not None:
            checks.check_same_batch(source=shape, target=target.shape)
        self.check_ids(target=target)
        if shape is not None and source_mask_bs is not None:
            kind = precision.dtype_name(source_mask_bs.dtype)
            checks.check_token_mask("source mask", source_mask_bs.shape, kind, shape[:2])
        return self._decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep)[0]

    def check_ids(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        segment_bs: Tensor | None = None,
        label_b: Tensor | None = None,
    ) -> None:
        """Raises ValueError on tokens, segments and labels that do not fit; all their values come
        from the device in one transfer.
        """
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
        keep: Keep | None = None,
        segment_bs: Tensor | None = None,
        skip_padding: bool = False,
    ) -> Tensor:
        """`decode(target, encode(source))`, `b t v`; in a decoder-only model `decode(target)`, with
        None for the source.

        An encoder-only model takes no target and gives what its head does: `classify`,
        `masked_language_logits`, or `encode` without one. skip_padding: the rows of the target's
        padding are zeros (PADDING).
        """
        config = self.config
        checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
        checks.check_source_given(
            config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
        )
        if target is None:
            return self._encoder_output(source, source_mask_bs, keep, segment_bs)
        self.check_ids(source, target, segment_bs)
        memory_bsd = None
        if source is not None:
            memory_bsd, source_mask_bs = self._encode(source, source_mask_bs, keep, segment_bs)
        logits_btv, mask_bt = self._decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep)
        if skip_padding and mask_bt is not None:
            return logits_btv.masked_fill(~mask_bt[..., None], 0)
        return logits_btv

    def training_loss(
        self,
        source: Tensor | None,
        target: Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Keep | None = None,
    ) -> Tensor:
        """`cross_entropy(transformer(source, target[:, :-1]), target[:, 1:])`, a scalar; labels
        that are the padding id do not count.

        It calls the module, with its hooks: FSDP2 works, and the loss is float32 if the policy of
        the root has `MixedPrecisionPolicy(output_dtype=torch.float32)`; a layer's policy must leave
        output_dtype out, or the next layer is given float32.

        A wrapper with a `forward` of its own is not called: `ddp.module.training_loss` averages no
        gradients. With `DistributedDataParallel`, take the loss of its output:
        `input_bt, label_bt = loss.teacher_forcing(target)`, then `loss.cross_entropy(ddp(source,
        input_bt), label_bt, mask_bt, total=total)`. total is the mean over the processes of the
        number of labels that count: DDP and FSDP2 average gradients, and without it every process
        divides by its own number.
        """
        self.config.need_decoder()
        input_bt, label_bt = loss.teacher_forcing(target)
        self.check_ids(source, target)  # the last column too, which is only a label
        logits_btv, padding_id = self(source, input_bt, keep=keep), self.config.padding_id
        mask_bt = None if padding_id is None else mask.token_mask(label_bt, padding_id)
        return loss.unchecked(logits_btv, label_bt, mask_bt, smoothing, total)

    def states(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """The vectors before the first layer and after every layer, and the attention weights of
        every layer, in evaluation.

        encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, if there is an
        encoder, cross_attention_lbhts; l layer, t query. The last vectors of a stack are those
        after its final norm.
        """
        return states.states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)

    def _add_inputs(self, side: str, vocabulary: int) -> None:
        """Adds what is summed and normalised before the first layer of the encoder (source) or the
        decoder (target).
        """
        config, width = self.config, self.config.model_width
        scale = config.scale_embedding, config.round_embedding_scale
        setattr(self, f"{side}_embedding", Embedding(vocabulary, width, *scale))
        if config.positions == "learned":
            positions = PositionEmbedding(config.max_positions, config.position_offset, width)
            setattr(self, f"{side}_position_embedding", positions)
        if config.segments and side == "source":
            self.source_segment_embedding = SegmentEmbedding(config.segments, width)
        if config.embedding_norm:
            setattr(self, f"{side}_embedding_norm", norm(config))

    def _encode(
        self, source: Tensor, mask_bs: Tensor | None, keep: Keep | None, segment_bs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the memory, and the mask of its real tokens; the ids must be checked."""
        keep = part(keep, "encoder")
        mask_bs, position_bs = masked_positions(self.config, "source", source, mask_bs)
        x_bsd = embed(self, "source", source, position_bs, segment_bs)
        x_bsd = self.encoder.embedding_dropout(x_bsd, part(keep, "embedding_dropout"))
        mask_bhts = None if mask_bs is None else mask.padding_mask(mask_bs)
        return self.encoder(x_bsd, mask_bhts, keep, position_bs), mask_bs

    def _decode(
        self,
        target: Tensor,
        memory_bsd: Tensor | None,
        source_mask_bs: Tensor | None,
        target_mask_bt: Tensor | None,
        keep: Keep | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the logits, and the mask of the target's real tokens; the ids must be
        checked.
        """
        keep = part(keep, "decoder")
        mask_bt, position_bt = masked_positions(self.config, "target", target, target_mask_bt)
        x_btd = embed(self, "target", target, position_bt)
        x_btd = self.decoder.embedding_dropout(x_btd, part(keep, "embedding_dropout"))
        self_mask_bhts = None if mask_bt is None else mask.padding_mask(mask_bt)
        cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
        x_btd = self.decoder(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, keep, position_bt)
        return self.logits(x_btd), mask_bt


def _check_segments(
    segments: int, source: torch.Size, shape: torch.Size, dtype: str, *bounds: int
) -> None:
    checks.check_segments(segments, shape, dtype, source, *bounds)


def _check_labels(
    logits: tuple[int, int, int], shape: torch.Size, dtype: str, *bounds: int
) -> None:
    """Raises ValueError if there is not one label for each row."""
    checks.check_classes(shape, dtype)
    checks.check_labels(logits, (*shape[:1], 1, *shape[1:]), dtype, 0.0, None, *bounds)
