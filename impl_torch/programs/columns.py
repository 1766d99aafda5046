"""A model that searches on several processes, one row of a mesh.

Each process holds its heads and its part of feed-forward and vocabulary, and reads the same tokens.
Steps, caches and fused projections work as in a model with that many heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh, repeated, spread

from ..attention import MultiHeadAttention
from ..embedding import Embedding
from ..experts import Experts
from ..feed_forward import FeedForward
from ..normalization import norm
from ..transformer import Transformer
from .parts import own, places
from .split_experts import split

__all__ = ["Column", "arrays", "empty", "joined"]

NORMS = ("query_norm", "key_norm")


class Column(NamedTuple):
    """The part of a model that a process holds. group: the processes of all parts, in order."""

    number: int
    parts: int
    group: dist.ProcessGroup

    def __deepcopy__(self, memo: dict) -> "Column":
        return self

    def sum(self, x: Tensor) -> Tensor:
        """Sums the tensors of all parts, in place."""
        dist.all_reduce(x, group=self.group)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """Concatenates the tensors of all parts along their last axis."""
        found = [torch.empty_like(x) for _ in range(self.parts)]
        dist.all_gather(found, x, group=self.group)
        return torch.cat(found, dim=-1)


class PartEmbedding(Embedding):
    """An `Embedding` with some of the rows in each process."""

    column: Column

    def look_up(self, token: Tensor) -> Tensor:
        row_bt = token.long() - self.column.number * self.num_embeddings
        elsewhere_bt = (row_bt < 0) | (row_bt >= self.num_embeddings)
        x_btd = super().look_up(row_bt.masked_fill(elsewhere_bt, 0))
        return self.column.sum(x_btd.masked_fill(elsewhere_bt[..., None], 0))


def empty(config: TransformerConfig, column: Column) -> Transformer:
    """Returns this process's part of a model with a decoder, on the meta device. Its tables have as
    many rows as the largest part of the vocabulary.

    Raises ValueError as `reference_numpy.sharding.check` does.
    """
    parts = column.parts
    config = spread(config, Mesh(model=parts))
    own = config.replace(
        heads=config.heads // parts,
        key_value_heads=config.key_value_heads // parts,
        feed_forward_width=-(-config.feed_forward_width // parts),  # of dense layers, if any
        shared_width=config.shared_width // parts,
    )
    rows = {
        f"{side}_vocabulary": -(-getattr(config, f"{side}_vocabulary") // parts)
        for side in ("source", "target")
    }
    with torch.device("meta"):
        model = Transformer(own.replace(**rows, padding_id=None))
        for attention in _attentions(model) if config.query_key_norm == "width" else ():
            own_norm = config.of_query_key_norm
            attention.query_norm = norm(own_norm, config.heads * config.key_size)
            attention.key_norm = norm(own_norm, config.key_value_heads * config.key_size)
    model.config = type(model.config)(**own.to_dict())
    for module in model.modules():
        if isinstance(module, Experts):
            split(module, column.number, parts)
    for name in ("source_embedding", "target_embedding"):
        if (embedding := getattr(model, name, None)) is not None:
            embedding.__class__, embedding.column = PartEmbedding, column
    return model


def joined(model: Transformer, column: Column) -> Transformer:
    """Registers hooks that combine a part, fused or not, with the others; returns the model."""
    vocabulary = model.config.target_vocabulary

    def added_up(module: nn.Module, inputs: tuple[Tensor], y_btd: Tensor) -> Tensor:
        return column.sum(y_btd)

    def of_all_heads(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (column.gathered(inputs[0]),)

    def own_experts(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x_btd, weight_btx = inputs
        return x_btd, weight_btx.chunk(column.parts, dim=-1)[column.number]

    def own_heads(module: nn.Module, inputs: tuple[Tensor], y_btd: Tensor) -> Tensor:
        return y_btd.chunk(column.parts, dim=-1)[column.number]

    def of_all_tokens(module: nn.Module, inputs: tuple[Tensor], logits_btv: Tensor) -> Tensor:
        return column.gathered(logits_btv)[..., :vocabulary]

    for module in model.modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            module.output.register_forward_hook(added_up)
        elif isinstance(module, Experts):
            module.register_forward_pre_hook(own_experts)
            module.register_forward_hook(added_up)
    for attention in _attentions(model) if model.config.query_key_norm == "width" else ():
        for over_heads in (getattr(attention, name) for name in NORMS):
            over_heads.register_forward_pre_hook(of_all_heads)
            over_heads.register_forward_hook(own_heads)
    model.logits.register_forward_hook(of_all_tokens)
    return model


def _attentions(model: nn.Module) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def arrays(
    config: TransformerConfig, column: Column, read: Callable[[str], np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields a part's arrays of the canonical parameters, which are read one by one, with the names
    and layout of `empty`. Missing vocabulary rows are zeros.
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
        of_sum = module.endswith("output") and leaf == "bias" and place.model is None
        if of_sum and column.number:
            part = np.zeros_like(part)  # only one of the summed products may add it
        yield place.native, part
