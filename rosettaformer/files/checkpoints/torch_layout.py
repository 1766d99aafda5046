"""The state dict layout of `torch.nn.Transformer` plus embeddings and an output layer."""

from collections.abc import Mapping

import numpy as np

from reference_numpy import TransformerConfig, parameters

from . import tables
from .tables import Part, Row, Table

_ATTENTION: Table = (
    Row("in_proj_weight", (Part("query.kernel", "(h k) d"), Part("key.kernel", "(g k) d"), Part("value.kernel", "(g e) d"))),
    Row("in_proj_bias", (Part("query.bias", "(h k)"), Part("key.bias", "(g k)"), Part("value.bias", "(g e)"))),
    *tables.dense("out_proj", "output", "d (h e)", "d"),
)
_FEED_FORWARD: Table = (
    *tables.dense("linear1", "feed_forward.hidden", "f d", "f"),
    *tables.dense("linear2", "feed_forward.output", "d f", "d"),
)

TABLE: Table = (
    Row("source_embedding.weight", (Part("source_embedding.table", "v d"),)),
    Row("target_embedding.weight", (Part("target_embedding.table", "v d"),)),
    *tables.dense("logits", "logits", "v d", "v"),
    *tables.within("encoder.layers.*.self_attn", "encoder.layers.*.self_attention", _ATTENTION),
    *tables.within("encoder.layers.*", "encoder.layers.*", _FEED_FORWARD),
    *tables.within("encoder.layers.*.norm1", "encoder.layers.*.self_attention_norm", tables.NORM),
    *tables.within("encoder.layers.*.norm2", "encoder.layers.*.feed_forward_norm", tables.NORM),
    *tables.within("encoder.norm", "encoder.final_norm", tables.NORM),
    *tables.within("decoder.layers.*.self_attn", "decoder.layers.*.self_attention", _ATTENTION),
    *tables.within("decoder.layers.*.multihead_attn", "decoder.layers.*.cross_attention", _ATTENTION),
    *tables.within("decoder.layers.*", "decoder.layers.*", _FEED_FORWARD),
    *tables.within("decoder.layers.*.norm1", "decoder.layers.*.self_attention_norm", tables.NORM),
    *tables.within("decoder.layers.*.norm2", "decoder.layers.*.cross_attention_norm", tables.NORM),
    *tables.within("decoder.layers.*.norm3", "decoder.layers.*.feed_forward_norm", tables.NORM),
    *tables.within("decoder.norm", "decoder.final_norm", tables.NORM),
)

# native names outside nn.Transformer; the user's names are mapped to these
OUTER = ("source_embedding.weight", "target_embedding.weight", "logits.weight", "logits.bias")


def to_native(tensors: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Converts canonical parameters to a state dict, with a tied tensor under each of its names."""
    tied = ties(config)
    result: dict[str, np.ndarray] = {}
    for native in tables.natives(TABLE, config):
        result[native.name] = result[tied[native.name]].copy() if native.name in tied else tables.merged(native, tensors)
    return result


def from_native(natives: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Converts native tensors to canonical ones, tied ones once; the inverse of `to_native`."""
    tied, tensors = ties(config), dict[str, np.ndarray]()
    for native in tables.natives(TABLE, config):
        if native.name in natives and native.name not in tied:
            tensors |= tables.split(native, natives[native.name])
    return tensors


def native_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every native tensor; tied tensors under each of their names."""
    return {native.name: native.shape for native in tables.natives(TABLE, config)}


def ties(config: TransformerConfig) -> dict[str, str]:
    """Returns the ties between native tensors. All have axes `v d`, so tied tensors are equal."""
    names = {row.parts[0].name: row.name for row in TABLE}
    return {names[name]: names[stored] for name, stored in parameters.ties(config).items()}
