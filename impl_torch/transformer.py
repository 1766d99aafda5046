"""The whole Transformer."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks
from reference_numpy import parameters as canonical

from . import loss, mask, positional_encoding, precision
from .embedding import Embedding, Logits, SharedEmbedding, TiedLogits, check_ids
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]

Tree = Mapping[str, Any]


class Transformer(nn.Module):
    """`logits(decoder(dropout(embedding(target) + position), memory))`, `memory = encoder(dropout(embedding(source) + position))`.

    Shared embeddings and tied logits are one `nn.Parameter` under the name of the embedding that owns it. A state dict that also has it
    under its other names, `target_embedding.table` and `logits.weight`, is loaded where all are equal.
    Without a padding id there are no masks, and the fused kernels run without one. keep: dropout masks by site, nested; a site without one
    draws its own in training.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = Embedding(config.source_vocabulary, config.model_width, config.scale_embedding)
        self.encoder = Encoder(config)
        if config.decoder_layers:
            self.target_embedding = (
                SharedEmbedding(self.source_embedding)
                if config.share_embeddings
                else Embedding(config.target_vocabulary, config.model_width, config.scale_embedding)
            )
            self.decoder = Decoder(config)
            self.logits = (
                TiedLogits(self.target_embedding, config.output_bias)
                if config.tie_logits
                else Logits(config.model_width, config.target_vocabulary, config.output_bias)
            )
        self.register_load_state_dict_pre_hook(_load_one_table)

    def encode(self, source: Tensor, source_mask_bs: Tensor | None = None, keep: Tree | None = None) -> Tensor:
        """`memory = encoder(dropout(embedding(source) + position))`, `b s d`."""
        check_ids((source, self.config.source_vocabulary))
        return self._encode(source, self._mask(source, source_mask_bs), keep)

    def decode(
        self,
        target: Tensor,
        memory_bsd: Tensor,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        keep: Tree | None = None,
    ) -> Tensor:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t."""
        self.config.need_decoder()
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        check_ids((target, self.config.target_vocabulary))
        return self._decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep)

    def check_ids(self, source: Tensor, target: Tensor, *others: Any, **named: Any) -> None:
        """Raises ValueError on tokens that `forward` and `training_loss` refuse; takes their arguments."""
        checks.check_same_batch(source=source.shape, target=target.shape)
        check_ids((source, self.config.source_vocabulary), (target, self.config.target_vocabulary))

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        keep: Tree | None = None,
        checked: bool = False,
    ) -> Tensor:
        """`decode(target, encode(source))`, `b t v`. checked: the caller has checked the ids."""
        self.config.need_decoder()
        if not checked:
            self.check_ids(source, target)
        source_mask_bs = self._mask(source, source_mask_bs)
        return self._decode(target, self._encode(source, source_mask_bs, keep), source_mask_bs, target_mask_bt, keep)

    def training_loss(
        self, source: Tensor, target: Tensor, smoothing: float = 0.0, total: int | Tensor | None = None, keep: Tree | None = None
    ) -> Tensor:
        """`cross_entropy(transformer(source, target[:-1]), target[1:])`, a scalar; labels that are the padding id do not count.

        It calls the module, with its hooks: FSDP2 works, and with `MixedPrecisionPolicy(output_dtype=torch.float32)` the loss is float32.

        A wrapper with a `forward` of its own is not called: `ddp.module.training_loss` averages no gradients. Of
        `DistributedDataParallel` take the loss of what it returns:
        `input_bt, label_bt = loss.teacher_forcing(target)`, then `loss.cross_entropy(ddp(source, input_bt), label_bt, mask_bt, ...)`.
        """
        self.config.need_decoder()
        input_bt, label_bt = loss.teacher_forcing(target)
        self.check_ids(source, target)
        logits_btv = self(source, input_bt, keep=keep, checked=True)
        mask_bt = None if self.config.padding_id is None else mask.token_mask(label_bt, self.config.padding_id)
        return loss.cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total, checked=True)

    def _encode(self, source: Tensor, mask_bs: Tensor | None, keep: Tree | None) -> Tensor:
        sites = (keep or {}).get("encoder", {})
        x_bsd = self._embed(self.source_embedding, "source", source, mask_bs)
        x_bsd = self.encoder.embedding_dropout(x_bsd, sites.get("embedding_dropout"))
        return self.encoder(x_bsd, None if mask_bs is None else mask.padding_mask(mask_bs), sites)

    def _decode(
        self, target: Tensor, memory_bsd: Tensor, source_mask_bs: Tensor | None, target_mask_bt: Tensor | None, keep: Tree | None
    ) -> Tensor:
        sites = (keep or {}).get("decoder", {})
        mask_bt = self._mask(target, target_mask_bt)
        x_btd = self._embed(self.target_embedding, "target", target, mask_bt)
        x_btd = self.decoder.embedding_dropout(x_btd, sites.get("embedding_dropout"))
        if source_mask_bs is not None:
            checks.check_token_mask("source mask", source_mask_bs.shape, precision.dtype_name(source_mask_bs.dtype), memory_bsd.shape[:2])
        self_mask_bhts, cross_mask_bhts = (None if m is None else mask.padding_mask(m) for m in (mask_bt, source_mask_bs))
        return self.logits(self.decoder(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, sites))

    def _mask(self, token: Tensor, mask_bt: Tensor | None) -> Tensor | None:
        if mask_bt is not None or self.config.padding_id is None or token.is_floating_point():
            return mask_bt
        return mask.token_mask(token, self.config.padding_id)

    def _embed(self, embedding: Embedding, name: str, token: Tensor, mask_bt: Tensor | None) -> Tensor:
        x_btd = embedding(token, checked=True)
        # Every position is less than the length, so that the rows of one table serve the whole batch.
        table_td = positional_encoding.positional_encoding(torch.arange(token.shape[1], device=token.device), x_btd.shape[2], x_btd.dtype)
        if mask_bt is None:
            return x_btd + table_td
        checks.check_token_mask(f"{name} mask", mask_bt.shape, precision.dtype_name(mask_bt.dtype), token.shape[:2])
        return x_btd + F.embedding(positional_encoding.token_positions(mask_bt), table_td)


def _load_one_table(model: Transformer, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
    """The hook of `load_state_dict` that takes the shared table under any of its names; tables that differ are an error of the loading."""
    ties = {name.replace("kernel", "weight"): owner for name, owner in canonical.ties(model.config).items()}
    names = [prefix + name for name in dict.fromkeys([*ties.values(), *ties])]
    given = {name: state_dict.pop(name) for name in names if name in state_dict}
    for first, table in [*given.items()][:1]:
        state_dict[names[0]] = table
        unequal = [name for name, other in given.items() if not _equal(table, other)]
        others[-1].extend(f"{name} must equal {first}, since both are one parameter of this model" for name in unequal)


def _equal(table: Tensor, other: Tensor) -> bool:
    """In every value, where both have values."""
    if (table.shape, table.dtype, table.is_meta) != (other.shape, other.dtype, other.is_meta):
        return False
    return table is other or table.is_meta or torch.allclose(table, other.to(table.device), rtol=0, atol=0, equal_nan=True)
