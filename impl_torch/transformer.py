"""The whole Transformer: from token ids to logits and the training loss."""

from functools import partial
from typing import cast

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from . import loss, mask, states
from .dropout import Keep, part
from .embedding import SegmentEmbedding, check_values, logits, of_vocabulary, token_embedding
from .encoder_only import EncoderHeads
from .heads import Classifier, MaskedLanguageHead, Pooler, of_classes
from .inputs import Inputs, embed, masked_positions, real_tokens
from .normalization import norm
from .positional_encoding import position_embedding
from .stacks import Decoder, Encoder
from .values import Text

__all__ = ["Transformer"]


class ModelConfig(TransformerConfig):
    """The config of a model, to which libraries may add attributes such as `use_cache`; its fields
    stay as they are.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformerConfig) and self.to_dict() == other.to_dict()

    __hash__ = TransformerConfig.__hash__


class Transformer(EncoderHeads):
    """`logits(decoder(embed(target), memory))`, `memory = encoder(embed(source))`, or one stack.

    `embed` is `dropout(norm(embedding(token) + position + segment))`; the config sets norm and
    segments. source, target: tensors of ids, or a `Text` of ids, mask and segments. keep: dropout
    masks by site, nested; in training, sites without a mask draw their own.

    Shared embeddings and tied logits are one `nn.Parameter` of several modules
    (`framework.Sharing`). Without a padding id, the fused kernels run without a mask.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = ModelConfig(**config.to_dict())
        width, learned = config.model_width, config.positions == "learned"
        if config.encoder_layers:
            self.source_embedding = token_embedding(config, config.source_vocabulary)
            self.source_position_embedding = position_embedding(config) if learned else None
            self.source_segment_embedding = (
                SegmentEmbedding(config.segments, width) if config.segments else None
            )
            self.source_embedding_norm = norm(config) if config.embedding_norm else None
            self.encoder = Encoder(config)
        if config.decoder_layers:
            self.target_embedding = token_embedding(config, config.target_vocabulary)
            self.target_position_embedding = position_embedding(config) if learned else None
            self.target_embedding_norm = norm(config) if config.embedding_norm else None
            if config.cross_attention and config.share_embeddings:
                self.target_embedding.weight = self.source_embedding.weight
            self.decoder = Decoder(config)
            self.logits = logits(config, config.target_vocabulary)
            if config.tie_logits:
                self.logits.weight = self.target_embedding.weight
        if config.pooler:
            self.pooler = Pooler(width, config.pooler_activation)
        if config.classes:
            self.classifier = Classifier(width, config.classes, config.classifier_dropout_rate)
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(
                config, self.source_embedding if config.tie_logits else None
            )

    def forward(
        self,
        source: Text | Tensor | None,
        target: Text | Tensor | None = None,
        keep: Keep | None = None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        """`decode(target, encode(source))`, `b t v`; source is None for a decoder-only model.

        An encoder-only model takes no target and returns the output of its head: `classify`,
        `masked_language_logits`, or `encode` without a head. routed: collects the logits of the
        decoder's routers.
        """
        config = self.config
        checks.check_target_given(config.decoder_layers, target)
        checks.check_source_given(config.encoder_layers, source)
        source, target = Text.of(source), Text.of(target)
        if target is None:
            return self.encoder_output(cast(Text, source), keep)
        self.check_ids(source, target)
        if source is None:
            return self._decode(target, None, None, keep, routed)
        memory_bsd, source_mask_bs = self._encode(source, keep)
        return self._decode(target, memory_bsd, source_mask_bs, keep, routed)

    def encode(self, source: Text | Tensor, keep: Keep | None = None) -> Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

        FSDP2 gathers parameters only in calls of the module;
        `register_fsdp_forward_method(model, "encode")` adds this method.
        """
        self.config.need_encoder()
        self.check_ids(source)
        return self._encode(Text.of(source), keep)[0]

    def _encode(self, source: Text, keep: Keep | None) -> tuple[Tensor, Tensor | None]:
        """Returns the memory and the mask of its real tokens; the ids must be checked."""
        keep = part(keep, "encoder")
        x_bsd, mask_bs, position_bs = self.embed("source", source, keep)
        return self.encoder(x_bsd, mask.padding_mask(mask_bs), keep, position_bs), mask_bs

    def decode(
        self,
        target: Text | Tensor,
        memory_bsd: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        keep: Keep | None = None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

        Row t scores the token after target t. memory_bsd: None for a decoder-only model.
        """
        config, shape = self.config, None if memory_bsd is None else memory_bsd.shape
        target = Text.of(target)
        config.need_decoder()
        checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
        if shape is not None:
            checks.check_same_batch(source=shape, target=target.ids.shape)
        self.check_ids(target=target)
        if shape is not None:
            mask.check("source mask", source_mask_bs, shape[:2])
        return self._decode(target, memory_bsd, source_mask_bs, keep, routed)

    def _decode(
        self,
        target: Text,
        memory_bsd: Tensor | None,
        source_mask_bs: Tensor | None,
        keep: Keep | None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        """Returns the logits; the ids must be checked."""
        keep = part(keep, "decoder")
        x_btd, mask_bt, position_bt = self.embed("target", target, keep)
        self_mask_bhts, cross_mask_bhts = map(mask.padding_mask, (mask_bt, source_mask_bs))
        given = x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, keep, position_bt
        return self.logits(self.decoder(*given, routed))

    def training_loss(
        self,
        source: Text | Tensor | None,
        target: Text | Tensor,
        smoothing: float = 0.0,
        total: int | Tensor | None = None,
        keep: Keep | None = None,
        router_aux_weight: float = 0.0,
        router_z_weight: float = 0.0,
    ) -> Tensor:
        """`cross_entropy(transformer(source, target[:, :-1]), target[:, 1:])`, a scalar.

        Padding labels do not count. With weights of routers, `loss.router_loss` of the real tokens
        whose labels count is added, times the share of these labels in total (BALANCE). This calls
        the module, with its hooks, so FSDP2 works. The loss is float32 if the root's policy has
        `MixedPrecisionPolicy(output_dtype=torch.float32)`; policies of layers must omit
        output_dtype, or the next layer gets float32.

        Wrappers with their own `forward` are bypassed: `ddp.module.training_loss` averages no
        gradients. With `DistributedDataParallel`, compute the loss from its output:
        `input_bt, label_bt = loss.teacher_forcing(target)`, then
        `loss.cross_entropy(ddp(source, input_bt), label_bt, mask_bt, total=total)`. total is the
        mean over processes of the number of counted labels: DDP and FSDP2 average gradients, and
        without it every process divides by its own number.
        """
        self.config.need_decoder()
        read, label = loss.shifted(Text.of(target))
        self.check_ids(source, target)  # including the last column, which is only a label
        mask_bt, weights = real_tokens(self.config, label), (router_aux_weight, router_z_weight)
        labels = label.ids, mask_bt, smoothing, total
        if not any(weights):
            return loss.unchecked(self(source, read, keep=keep), *labels)
        self.config.need_router_loss()
        routed: list[Tensor] = []
        value = loss.unchecked(self(source, read, keep=keep, routed=routed), *labels)
        label_mask_bt = mask.token_mask(label.ids, None) if mask_bt is None else mask_bt
        real_bt = real_tokens(self.config, read)
        scored_bt = label_mask_bt if real_bt is None else label_mask_bt & real_bt
        given = torch.stack(routed), self.config.experts_per_token, scored_bt
        added = loss.router_loss(*given, *weights)
        return value + (added * loss.share(label_mask_bt, total, added.dtype)).to(value.dtype)

    def states(
        self, source: Text | Tensor | None = None, target: Text | Tensor | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """Returns the vectors before the first and after every layer, and all attention weights.

        Needs eval mode. encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, with
        an encoder, cross_attention_lbhts; l layer, t query. The last vectors are taken after the
        final norm.
        """
        return states.states(self, source, target)

    def inputs(self, side: str) -> Inputs:
        """Returns the embeddings of the encoder (source) or decoder (target), and their norm."""
        if side == "source":
            return Inputs(
                self.source_embedding,
                self.source_position_embedding,
                self.source_segment_embedding,
                self.source_embedding_norm,
            )
        return Inputs(
            self.target_embedding, self.target_position_embedding, None, self.target_embedding_norm
        )

    def embed(
        self, side: str, text: Text, keep: Keep | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the first layer's input, the mask and the positions; the ids must be checked."""
        mask_bt, position_bt = masked_positions(self.config, side, text.ids, text.mask)
        x_btd = embed(self, side, text.ids, position_bt, text.segment)
        stack = self.encoder if side == "source" else self.decoder
        x_btd = stack.embedding_dropout(x_btd, part(keep, "embedding_dropout"))
        return x_btd, mask_bt, position_bt

    def check_ids(
        self,
        source: Text | Tensor | None = None,
        target: Text | Tensor | None = None,
        label_b: Tensor | None = None,
    ) -> None:
        """Raises ValueError on invalid ids and labels, which are read from the device at once."""
        config, given = self.config, []
        source, target = Text.of(source), Text.of(target)
        if source is not None:
            given.append(of_vocabulary(source.ids, config.source_vocabulary))
        if target is not None:
            given.append(of_vocabulary(target.ids, config.target_vocabulary))
            if source is not None:
                checks.check_same_batch(source=source.ids.shape, target=target.ids.shape)
        for text, segments in ((source, config.segments), (target, 0)):
            if text is not None and text.segment is not None:
                check = partial(checks.check_segments, segments, source=text.ids.shape)
                given.append((text.segment, check))
        if source is not None and label_b is not None and config.classes:
            given.append(of_classes(label_b, len(source.ids), config.classes))
        check_values(given)
