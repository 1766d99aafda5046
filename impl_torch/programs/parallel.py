"""A decoder over several processes of a mesh's row: each holds its heads, and its part of the
feed-forward and of the vocabulary, and reads the same tokens. Steps, caches and fused projections
are those of any model, of a config with as many heads.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical
from reference_numpy.sharding import Mesh, chunks, splits, spread

from ..embedding import Embedding, Logits
from ..normalization import norm
from ..transformer import Transformer
from ..weights import TABLE

__all__ = ["Place", "arrays", "empty", "joined"]

NORMS = ("query_norm", "key_norm")


class Place(NamedTuple):
    """Which of the parts of a model a process holds. group: those that hold the others, in the
    order of the parts.
    """

    index: int
    parts: int
    group: Any

    def sum(self, x: Tensor) -> Tensor:
        """Adds the tensors of all parts up, in place."""
        dist.all_reduce(x, group=self.group)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """Returns the tensors of all parts, side by side along their last axis."""
        found = [torch.empty_like(x) for _ in range(self.parts)]
        dist.all_gather(found, x, group=self.group)
        return torch.cat(found, dim=-1)


class Summed(nn.Module):
    """A projection whose input's features lie on several processes: the sum of their products."""

    def __init__(self, product: nn.Module, place: Place) -> None:
        super().__init__()
        self.product, self.place = product, place

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.place.sum(self.product(x_btd))


class PartEmbedding(Embedding):
    """An `Embedding` of which each process holds some rows."""

    place: Place

    def look_up(self, token: Tensor) -> Tensor:
        row_bt = token.long() - self.place.index * self.num_embeddings
        elsewhere_bt = (row_bt < 0) | (row_bt >= self.num_embeddings)
        x_btd = super().look_up(row_bt.masked_fill(elsewhere_bt, 0))
        return self.place.sum(x_btd.masked_fill(elsewhere_bt[..., None], 0))


class WholeNorm(nn.Module):
    """The norm over all heads, of which each process has some."""

    def __init__(self, norm: nn.Module, place: Place) -> None:
        super().__init__()
        self.norm, self.place = norm, place

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.norm(self.place.gathered(x_btd)).chunk(self.place.parts, dim=-1)[
            self.place.index
        ]


class WholeLogits(nn.Module):
    """The logits of the whole vocabulary, of which each process has a part."""

    def __init__(self, logits: nn.Module, place: Place, vocabulary: int) -> None:
        super().__init__()
        self.logits, self.place, self.vocabulary = logits, place, vocabulary

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.place.gathered(self.logits(x_btd))[..., : self.vocabulary]


def empty(config: TransformerConfig, place: Place) -> Transformer:
    """Returns this process's part of a decoder-only model, on the meta device."""
    parts = place.parts
    config = spread(config, Mesh(model=parts))
    groups = config.key_value_heads
    own = config.replace(
        heads=config.heads // parts,
        key_value_heads=groups // parts,
        feed_forward_width=config.feed_forward_width // parts,
    )
    rows, width = -(-config.target_vocabulary // parts), config.model_width
    with torch.device("meta"):
        model = Transformer(own)
        scale = config.scale_embedding, config.round_embedding_scale
        model.target_embedding = PartEmbedding(rows, width, *scale)
        model.target_embedding.place = place
        of_logits = config.output_bias, config.logit_scale, config.logit_cap
        model.logits = Logits(width, rows, *of_logits)
        if config.tie_logits:
            model.logits.weight = model.target_embedding.weight
        for attention in _attentions(model) if config.query_key_norm == "width" else ():
            attention.query_norm = norm(config, config.heads * config.key_size)
            attention.key_norm = norm(config, groups * config.key_size)
    return model


def joined(model: Transformer, place: Place) -> Transformer:
    """Lets a part, which may be fused, work with the others; returns the model itself."""
    for layer in model.decoder.layers:
        for module in (layer.self_attention, layer.feed_forward):
            module.output = Summed(module.output, place)
    for attention in _attentions(model) if model.config.query_key_norm == "width" else ():
        for name in NORMS:
            setattr(attention, name, WholeNorm(getattr(attention, name), place))
    model.logits = WholeLogits(model.logits, place, model.config.target_vocabulary)
    return model


def _attentions(model: Transformer) -> Iterator[Any]:
    return (layer.self_attention for layer in model.decoder.layers)


def arrays(
    config: TransformerConfig, place: Place, parameters: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what a part holds of canonical parameters, under the names and in the layout of
    `empty`: views where NumPy can make them. Behind the last part of a vocabulary are zeros.
    """
    mesh, parts = Mesh(model=place.parts), place.parts
    config = spread(config, mesh)
    letters, shapes = canonical.axes(config), canonical.shapes(config)
    for name, split in splits(config, mesh).items():
        array, axes = parameters[name], letters[name]
        norm_of_all = config.query_key_norm == "width" and name.rpartition(".")[0].endswith(NORMS)
        for axis, (size, along) in enumerate(zip(shapes[name], split, strict=True)):
            own = chunks(size, parts)[place.index] if along and not norm_of_all else slice(size)
            array = _own(array, axis, size, own)
        if "v" in axes:
            array = _filled(array, axes.split().index("v"), -(-config.target_vocabulary // parts))
        if name.endswith("output.bias") and place.index:
            array = np.zeros_like(array)  # one of the parts that are added up has it
        native_name, native_axes = layout.native(name, axes, TABLE)
        sizes = dict(zip(axes.split(), array.shape, strict=True))
        yield native_name, layout.rearranged(array, axes, native_axes, sizes)


def _own(array: np.ndarray, axis: int, size: int, own: slice) -> np.ndarray:
    """Returns these of `size` places of an axis, in which fewer groups stand several times each."""
    if array.shape[axis] == size:
        return array[(slice(None),) * axis + (own,)]
    return np.take(array, np.arange(size)[own] * array.shape[axis] // size, axis)


def _filled(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Returns the array with zeros up to this size."""
    if array.shape[axis] == size:
        return array
    after = [(0, size - array.shape[axis] if place == axis else 0) for place in range(array.ndim)]
    return np.pad(array, after)
