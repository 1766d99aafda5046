"""A model that searches on several processes, a row of a mesh: each holds its heads, and its part
of the feed-forward and of the vocabulary, and reads the same tokens. Steps, caches and fused
projections are those of any model, of a config with as many heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh, repeated, spread

from .. import weights
from ..attention import MultiHeadAttention
from ..embedding import Embedding, logits
from ..feed_forward import FeedForward
from ..normalization import norm
from ..transformer import Transformer
from .parts import own, places

__all__ = ["Column", "arrays", "empty", "filled", "joined"]

NORMS = ("query_norm", "key_norm")


class Column(NamedTuple):
    """Which part of a model a process holds, of how many. group: the processes that hold the
    others, in the order of the parts.
    """

    number: int
    parts: int
    group: Any

    def __deepcopy__(self, memo: Any) -> "Column":
        return self

    def sum(self, x: Tensor) -> Tensor:
        """Adds up the tensors of all parts, in place."""
        dist.all_reduce(x, group=self.group)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """Returns the tensors of all parts, side by side along their last axis."""
        found = [torch.empty_like(x) for _ in range(self.parts)]
        dist.all_gather(found, x, group=self.group)
        return torch.cat(found, dim=-1)


class Summed(nn.Module):
    """A projection of features that lie on several processes: the sum of their products."""

    def __init__(self, product: nn.Module, column: Column) -> None:
        super().__init__()
        self.product, self.column = product, column

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.column.sum(self.product(x_btd))


class PartEmbedding(Embedding):
    """An `Embedding` of which every process has some rows."""

    column: Column

    def look_up(self, token: Tensor) -> Tensor:
        row_bt = token.long() - self.column.number * self.num_embeddings
        elsewhere_bt = (row_bt < 0) | (row_bt >= self.num_embeddings)
        x_btd = super().look_up(row_bt.masked_fill(elsewhere_bt, 0))
        return self.column.sum(x_btd.masked_fill(elsewhere_bt[..., None], 0))


class WholeNorm(nn.Module):
    """The norm over all heads of a token, of which every process has some."""

    def __init__(self, norm: nn.Module, column: Column) -> None:
        super().__init__()
        self.norm, self.column = norm, column

    def forward(self, x_btd: Tensor) -> Tensor:
        y_btd = self.norm(self.column.gathered(x_btd))
        return y_btd.chunk(self.column.parts, dim=-1)[self.column.number]


class WholeLogits(nn.Module):
    """The logits of the whole vocabulary, of which every process has a part."""

    def __init__(self, logits: nn.Module, column: Column, vocabulary: int) -> None:
        super().__init__()
        self.logits, self.column, self.vocabulary = logits, column, vocabulary

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.column.gathered(self.logits(x_btd))[..., : self.vocabulary]


def empty(config: TransformerConfig, column: Column) -> Transformer:
    """Returns the process's part of a model with a decoder, on the meta device.

    Raises ValueError as `reference_numpy.sharding.check`.
    """
    parts = column.parts
    config = spread(config, Mesh(model=parts))
    with torch.device("meta"):
        model = Transformer(
            config.replace(
                heads=config.heads // parts,
                key_value_heads=config.key_value_heads // parts,
                feed_forward_width=config.feed_forward_width // parts,
            )
        )
        _split_vocabulary(model, config, column)
        for attention in _attentions(model) if config.query_key_norm == "width" else ():
            attention.query_norm = norm(config, config.heads * config.key_size)
            attention.key_norm = norm(config, config.key_value_heads * config.key_size)
    return model


def _split_vocabulary(model: Any, config: TransformerConfig, column: Column) -> None:
    """Gives the model tables of as many rows as its part of a vocabulary has at most."""
    rows = {
        side: -(-getattr(config, f"{side}_vocabulary") // column.parts)
        for side in ("source", "target")
    }
    scale = config.scale_embedding, config.round_embedding_scale
    for side in rows:
        if hasattr(model, name := f"{side}_embedding"):
            embedding = PartEmbedding(rows[side], config.model_width, *scale)
            embedding.column = column
            setattr(model, name, embedding)
    if config.cross_attention and config.share_embeddings:
        model.target_embedding.weight = model.source_embedding.weight
    model.logits = logits(config, rows["target"])
    if config.tie_logits:
        model.logits.weight = model.target_embedding.weight


def joined(model: Transformer, column: Column) -> Transformer:
    """Lets a part, which may be fused, work with the others; returns the model itself."""
    modules: list[Any] = [
        module for module in model.modules() if isinstance(module, MultiHeadAttention | FeedForward)
    ]
    for module in modules:
        module.output = Summed(module.output, column)
    for attention in _attentions(model) if model.config.query_key_norm == "width" else ():
        for name in NORMS:
            setattr(attention, name, WholeNorm(getattr(attention, name), column))
    whole: Any = WholeLogits(model.logits, column, model.config.target_vocabulary)
    model.logits = whole
    return model


def _attentions(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def arrays(
    config: TransformerConfig, column: Column, read: Callable[[str], np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what a part holds of the canonical parameters, which are read one by one, by the names
    and in the layout of `empty`. Behind the last tokens of a vocabulary are zeros.
    """
    mesh = Mesh(model=column.parts)
    config = spread(config, mesh)
    for name, place in places(config, mesh).items():
        array = repeated(read(name), place.letters, config.key_value_heads)
        module, _, leaf = name.rpartition(".")
        if config.query_key_norm == "width" and module.endswith(NORMS):
            place = replace(place, model=None)
        part = own(place, array, mesh, column.number)
        if "v" in place.letters:
            rows = -(-place.sizes["v"] // column.parts)
            if len(part) < rows:
                part = np.pad(part, [(0, rows - len(part)), *[(0, 0)] * (part.ndim - 1)])
        if module.endswith("output") and leaf == "bias" and column.number:
            part = np.zeros_like(part)  # of the products that are added up, one has it
        yield place.native, part


def filled(
    config: TransformerConfig,
    column: Column,
    read: Callable[[str], np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
) -> Transformer:
    """Returns the process's part with these parameters, in evaluation; `joined` makes it run."""
    part = empty(config, column).to(dtype).to_empty(device=device).eval().requires_grad_(False)
    for name, array in arrays(config, column, read):
        part.get_parameter(name).copy_(weights.from_numpy(array))
    return part
