"""The layout of `torch.nn.Transformer`'s state dict, with embeddings and an output layer around it.

A native tensor is a stack, along its first axis, of one or more canonical ones: the packed input projection is the stack of the query,
key and value kernels. Both directions of the conversion follow from the table and from the canonical axes.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters

__all__ = ["OUTER", "TABLE", "from_native", "native_shapes", "ties", "to_native"]

Part = tuple[str, str]  # canonical name, axes within the native tensor
Table = tuple[tuple[str, tuple[Part, ...]], ...]  # native name, its parts; * stands for the number of a layer


def _within(native: str, canonical: str, rows: Table) -> Table:
    return tuple((f"{native}.{end}", tuple((f"{canonical}.{name}", axes) for name, axes in parts)) for end, parts in rows)


_ATTENTION: Table = (
    ("in_proj_weight", (("query.kernel", "(h k) d"), ("key.kernel", "(g k) d"), ("value.kernel", "(g e) d"))),
    ("in_proj_bias", (("query.bias", "(h k)"), ("key.bias", "(g k)"), ("value.bias", "(g e)"))),
    ("out_proj.weight", (("output.kernel", "d (h e)"),)),
    ("out_proj.bias", (("output.bias", "d"),)),
)
_FEED_FORWARD: Table = (
    ("linear1.weight", (("feed_forward.hidden.kernel", "f d"),)),
    ("linear1.bias", (("feed_forward.hidden.bias", "f"),)),
    ("linear2.weight", (("feed_forward.output.kernel", "d f"),)),
    ("linear2.bias", (("feed_forward.output.bias", "d"),)),
)
_NORM: Table = (("weight", (("scale", "d"),)), ("bias", (("offset", "d"),)))

TABLE: Table = (
    ("source_embedding.weight", (("source_embedding.table", "v d"),)),
    ("target_embedding.weight", (("target_embedding.table", "v d"),)),
    ("logits.weight", (("logits.kernel", "v d"),)),
    ("logits.bias", (("logits.bias", "v"),)),
    *_within("encoder.layers.*.self_attn", "encoder.layers.*.self_attention", _ATTENTION),
    *_within("encoder.layers.*", "encoder.layers.*", _FEED_FORWARD),
    *_within("encoder.layers.*.norm1", "encoder.layers.*.self_attention_norm", _NORM),
    *_within("encoder.layers.*.norm2", "encoder.layers.*.feed_forward_norm", _NORM),
    *_within("encoder.norm", "encoder.final_norm", _NORM),
    *_within("decoder.layers.*.self_attn", "decoder.layers.*.self_attention", _ATTENTION),
    *_within("decoder.layers.*.multihead_attn", "decoder.layers.*.cross_attention", _ATTENTION),
    *_within("decoder.layers.*", "decoder.layers.*", _FEED_FORWARD),
    *_within("decoder.layers.*.norm1", "decoder.layers.*.self_attention_norm", _NORM),
    *_within("decoder.layers.*.norm2", "decoder.layers.*.cross_attention_norm", _NORM),
    *_within("decoder.layers.*.norm3", "decoder.layers.*.feed_forward_norm", _NORM),
    *_within("decoder.norm", "decoder.final_norm", _NORM),
)

# native names around the nn.Transformer, where the user's own are renamed to
OUTER = ("source_embedding.weight", "target_embedding.weight", "logits.weight", "logits.bias")


def to_native(tensors: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Canonical parameters as a state dict, in which a tied tensor stands under each of its names."""
    tied = ties(config)
    natives: dict[str, np.ndarray] = {}
    for native, parts in _rows(config):
        if native in tied:
            natives[native] = natives[tied[native]].copy()
        else:
            natives[native] = np.concatenate([layout.relayout(tensors[name], axes, part, sizes) for name, axes, part, sizes in parts])
    return natives


def from_native(natives: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Canonical parameters, tied ones once, from the native tensors that are there; the inverse of `to_native`."""
    tied, tensors = ties(config), {}
    for native, parts in _rows(config):
        start = 0
        for name, axes, part, sizes in parts if native in natives and native not in tied else ():
            stop = start + layout.shape(part, sizes)[0]
            tensors[name] = layout.relayout(natives[native][start:stop], part, axes, sizes)
            start = stop
    return tensors


def native_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every native tensor, tied ones under each of their names."""
    shapes = {}
    for native, parts in _rows(config):
        first, *rest = (layout.shape(part, sizes) for _, _, part, sizes in parts)
        shapes[native] = (first[0] + sum(shape[0] for shape in rest), *first[1:])
    return shapes


def ties(config: TransformerConfig) -> dict[str, str]:
    """The native tensors that the config declares to be another one; all of them have the axes `v d`, so that ties are equalities."""
    native_names = {parts[0][0]: native for native, parts in TABLE}
    return {native_names[name]: native_names[stored] for name, stored in parameters.ties(config).items()}


def _rows(config: TransformerConfig) -> Iterator[tuple[str, list[tuple[str, str, str, dict[str, int]]]]]:
    """The rows of the table that the config has, one for each layer, tied tensors too.

    Each is a native name and its parts: canonical name, canonical axes, axes within the native tensor, the size of each axis.
    """
    untied = config.replace(share_embeddings=False, tie_logits=False)
    axes, shapes = parameters.axes(untied), parameters.shapes(untied)
    sizes = {name: dict(zip(letters.split(), shapes[name], strict=True)) for name, letters in axes.items()}
    for native, parts in TABLE:
        layers = config.encoder_layers if native.startswith("encoder") else config.decoder_layers
        for index in range(layers if "*" in native else 1):
            numbered = [(name.replace("*", str(index)), part) for name, part in parts]
            if numbered[0][0] in axes:
                yield native.replace("*", str(index)), [(name, axes[name], part, sizes[name]) for name, part in numbered]
