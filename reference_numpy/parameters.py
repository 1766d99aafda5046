"""Every parameter of every component: canonical names, axes and initialization, declared once.

The parameters of a component are a nested mapping whose keys are the parts of the canonical names:
`encoder.layers.0.self_attention.query.kernel` is
`parameters["encoder"]["layers"]["0"]["self_attention"]["query"]["kernel"]`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .arrays import Array, Tree
from .config import TransformerConfig as Config
from .suggestions import Nearest, known

__all__ = [
    "axes",
    "count",
    "flatten",
    "initialise",
    "match",
    "mismatches",
    "nest",
    "shapes",
    "ties",
    "training_dtype",
]

Names = dict[str, str]  # canonical name -> axes, in the order of the forward pass


def axes(config: Config, component: str = "transformer") -> Names:
    """Returns the canonical names and axes of a component's parameters, in forward order.

    A tied tensor appears once, under the name in `ties`. Raises ValueError on an unknown component.
    """
    known("component", [component], _COMPONENTS)
    return _COMPONENTS[component](config)


def shapes(config: Config, component: str = "transformer") -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a component, by canonical name."""
    result, sizes = {}, config.sizes
    for name, letters in axes(config, component).items():
        of_source = component == "masked_language_head" or name.startswith(_OF_SOURCE)
        vocabulary = config.source_vocabulary if of_source else config.target_vocabulary
        result[name] = tuple({**sizes, "v": vocabulary}[letter] for letter in letters.split())
    return result


def count(config: Config) -> int:
    """Returns the number of scalars in the whole model; tied tensors count once."""
    return sum(math.prod(shape) for shape in shapes(config).values())


def ties(config: Config) -> dict[str, str]:
    """Returns the tied tensors: name -> the name under which the tensor is stored.

    A tied logits kernel is the transposed table: its axes are `d v`, those of the table `v d`.
    """
    result = {}
    if config.cross_attention and config.share_embeddings:
        result["target_embedding.table"] = "source_embedding.table"
    if config.decoder_layers and config.tie_logits:
        result["logits.kernel"] = result.get("target_embedding.table", "target_embedding.table")
    if config.masked_language_head and config.tie_logits:
        result["masked_language_head.logits.kernel"] = "source_embedding.table"
    return result


def initialise(config: Config, seed: int, dtype: DTypeLike = np.float64) -> dict[str, Array]:
    """Returns fresh parameters by canonical name (INIT).

    Kernels are uniform in [-a, a], where `a = sqrt(6 / (fan_in + fan_out))` with the fans of the
    unfused projection (Xavier; Glorot & Bengio 2010, eq. 16). Tables are normal, with standard
    deviation `1 / sqrt(d)`. Biases and offsets are 0; scales are 1, or 0 in norms with `1 + scale`.
    """
    rng, letters = np.random.default_rng(seed), axes(config)
    scale = float(not config.norm_one_plus_scale)
    return {
        name: initial_value(
            rng, name.rpartition(".")[2], letters[name].split(), shape, config.model_width, scale
        ).astype(dtype)
        for name, shape in shapes(config).items()
    }


def initial_value(
    rng: np.random.Generator,
    kind: str,
    letters: list[str],
    shape: tuple[int, ...],
    width: int,
    scale: float,
) -> Array:
    if kind == "kernel":
        own = shape[1:] if letters[0] == "x" else shape  # the kernel of one expert
        # Input axes: `h e` of the attention output `h e d`, otherwise the first.
        fan_in = math.prod(own[:-1] if letters[-1] == "d" else own[:1])
        limit = math.sqrt(6 / (fan_in + math.prod(own) // fan_in))
        return rng.uniform(-limit, limit, shape)
    if kind == "table":
        return rng.normal(0, width**-0.5, shape)
    return np.full(shape, scale if kind == "scale" else 0.0)


def nest(flat: Tree) -> dict[str, Any]:
    """Turns a mapping of dotted names into a nested mapping."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *branches, leaf = name.split(".")
        node = nested
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = value
    return nested


def flatten(nested: Tree, prefix: str = "") -> dict[str, Any]:
    """Turns a nested mapping into a mapping of dotted names, the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        inner = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


def match(arrays: Tree, expected: Mapping[str, tuple[int, ...]], dtype: str | None = None) -> None:
    """Raises one ValueError that lists all `mismatches`."""
    if problems := [*mismatches(arrays, expected, dtype)]:
        raise ValueError("parameters do not fit:\n  " + "\n  ".join(problems))


def training_dtype(values: Tree) -> str:
    """Returns the dtype of the parameters of a run; ValueError unless float32 or float64."""
    dtypes = sorted({str(value.dtype) for value in values.values()})
    if dtypes not in (["float32"], ["float64"]):
        wanted = "the parameters of a training run must all be float32 or all float64"
        raise ValueError(f"{wanted}; got {', '.join(dtypes) or 'none'}")
    return dtypes[0]


def mismatches(
    arrays: Tree, expected: Mapping[str, tuple[int, ...]], dtype: str | None = None
) -> Iterator[str]:
    """Yields every missing, unexpected, transposed or misshapen tensor, and every wrong dtype."""
    missing = [name for name in expected if name not in arrays]
    unexpected = [name for name in arrays if name not in expected]
    few = len(missing) * len(unexpected) <= 2500
    like_missing, like_unexpected = Nearest(missing, few), Nearest(unexpected, few)
    for name in missing:
        yield f"missing {name} of shape {tuple(expected[name])}{like_unexpected.to(name)}"
    for name, array in arrays.items():
        shape, wanted = tuple(array.shape), tuple(expected.get(name, ()))
        if name not in expected:
            yield f"unexpected {name}{like_missing.to(name)}"
        elif shape != wanted:
            if shape == wanted[::-1]:
                found = f"is transposed: has axes reversed, shape {shape}; must have shape {wanted}"
            else:
                found = f"must have shape {wanted}; got {shape}"
            yield f"{name} {found}"
        elif dtype is not None and str(array.dtype) != dtype:
            yield f"{name} must be {dtype}; got {array.dtype}"


def _within(prefix: str, names: Names) -> Names:
    return {f"{prefix}.{name}": letters for name, letters in names.items()}


def _part(config: Config, name: str, component: str = "") -> Names:
    """Returns the parameters of a component under this name, default its own."""
    return _within(name, axes(config, component or name))


def _biased(bias: bool, names: Names) -> Names:
    """Drops the biases unless the config has them."""
    return {name: letters for name, letters in names.items() if bias or not name.endswith("bias")}


def _norm(config: Config) -> Names:
    return {"scale": "d"} | ({"offset": "d"} if config.norm_offset else {})


def _own_norm(config: Config, name: str = "") -> Names:
    """Returns the parameters of a norm of the model, which has no scale without norm_scale."""
    names = {leaf: "d" for leaf in _norm(config) if leaf != "scale" or config.norm_scale}
    return _within(name, names) if name else names


def _multi_head_attention(config: Config, layer: int | None = 0) -> Names:
    """layer: of the self-attention; None: cross-attention."""
    names = _biased(config.query_key_value_bias, _PROJECTIONS)
    if config.query_key_norm != "none":
        for name, heads in (("query_norm", "h"), ("key_norm", "g")):
            letters = "k" if config.query_key_norm == "head" else f"{heads} k"
            names |= _within(name, dict.fromkeys(_own_norm(config.of_query_key_norm), letters))
    names |= {"sink": "h"} if config.has_sink(layer) else {}
    output = {"output.kernel": "h e d", "output.bias": "d"}
    return names | _biased(config.attention_output_bias, output)


def _feed_forward(config: Config, width: str = "f", of: str = "") -> Names:
    """width: the axis of the hidden layer. of: an axis before all others, such as experts."""
    names = {"gate.kernel": f"d {width}", "gate.bias": width} if config.gated_feed_forward else {}
    names |= {"hidden.kernel": f"d {width}", "hidden.bias": width}
    names |= {"output.kernel": f"{width} d", "output.bias": "d"}
    named = _biased(config.feed_forward_bias, names)
    return {name: f"{of} {letters}".strip() for name, letters in named.items()}


def _router(config: Config) -> Names:
    if not config.experts:
        return {}
    names = _biased(config.router_bias, {"kernel": "d x", "bias": "x"})
    return names | ({"selection_bias": "x"} if config.selection_bias else {})


def _mixture_of_experts(config: Config) -> Names:
    if not config.experts:
        return {}
    names = _part(config, "router") | _within("experts", _feed_forward(config, "m", of="x"))
    if config.shared_width:
        names |= _within("shared", _feed_forward(config, "w"))
        names |= {"shared_gate.kernel": "d"} if config.shared_gate else {}
    return names


def _sublayer(config: Config, part: str, layer: int = 0) -> Names:
    if part == "feed_forward":
        mixed = config.has_experts(layer)
        names = axes(config, "mixture_of_experts" if mixed else "feed_forward")
    else:
        names = _multi_head_attention(config, layer if part == "self_attention" else None)
    names = _within(part, names)
    if part != "self_attention" or not config.skips_norm(layer):
        names |= _own_norm(config, config.input_norm(part) or f"{part}_norm")
    if config.norm_placement == "sandwich":
        names |= _own_norm(config, f"{part}_output_norm")
    return names


def _layer(config: Config, layer: int = 0, crossing: bool = False) -> Names:
    names = _sublayer(config, "self_attention", layer)
    if crossing:
        names |= _sublayer(config, "cross_attention")
    return names | _sublayer(config, "feed_forward", layer)


def _stack(config: Config, layers: int, crossing: bool = False) -> Names:
    names: Names = {}
    for index in range(layers):
        names |= _within(f"layers.{index}", _layer(config, index, crossing))
    return names | (_own_norm(config, "final_norm") if config.final_norm else {})


def _embedded(config: Config, side: str) -> Names:
    """Returns the parameters of the embeddings of one side, and of their norm."""
    names = _part(config, f"{side}_embedding", "embedding")
    if config.positions == "learned":
        names |= _part(config, f"{side}_position_embedding", "position_embedding")
    if config.segments and side == "source":
        names |= _part(config, "source_segment_embedding", "segment_embedding")
    if config.embedding_norm:
        names |= _own_norm(config, f"{side}_embedding_norm")
    return names


def _token_decoder(config: Config) -> Names:
    names = _embedded(config, "target") | _part(config, "decoder") | _part(config, "logits")
    if config.tie_logits:
        del names["logits.kernel"]
    return names


def _transformer(config: Config) -> Names:
    names = axes(config, "token_encoder") if config.encoder_layers else {}
    if config.decoder_layers:
        names |= axes(config, "token_decoder")
    heads = {"pooler": config.pooler, "classifier": config.classes}
    heads["masked_language_head"] = config.masked_language_head
    for head in (name for name, present in heads.items() if present):
        names |= _part(config, head)
    return {name: letters for name, letters in names.items() if name not in ties(config)}


def _masked_language_head(config: Config) -> Names:
    hidden = _biased(config.head_bias, {"hidden.kernel": "d r", "hidden.bias": "r"})
    return hidden | _own_norm(config, "norm") | _part(config, "logits")


# name prefixes where v is the source vocabulary
_OF_SOURCE = ("source_embedding", "masked_language_head", "table")
_PROJECTIONS = {
    "query.kernel": "d h k",
    "query.bias": "h k",
    "key.kernel": "d g k",
    "key.bias": "g k",
    "value.kernel": "d g e",
    "value.bias": "g e",
}
_COMPONENTS: dict[str, Callable[[Config], Names]] = {
    "embedding": lambda config: {"table": "v d"},
    "position_embedding": lambda config: {"table": "p d"},
    "segment_embedding": lambda config: {"table": "a d"},
    "logits": lambda config: _biased(config.output_bias, {"kernel": "d v", "bias": "v"}),
    "multi_head_attention": _multi_head_attention,
    "feed_forward": _feed_forward,
    "router": _router,
    "mixture_of_experts": _mixture_of_experts,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "self_attention_sublayer": lambda config: _sublayer(config, "self_attention"),
    "cross_attention_sublayer": lambda config: _sublayer(config, "cross_attention"),
    "feed_forward_sublayer": lambda config: _sublayer(config, "feed_forward"),
    "encoder_layer": _layer,
    "decoder_layer": lambda config: _layer(config, crossing=config.cross_attention),
    "encoder": lambda config: _stack(config, config.encoder_layers),
    "decoder": lambda config: _stack(config, config.decoder_layers, config.cross_attention),
    "token_encoder": lambda config: _embedded(config, "source") | _part(config, "encoder"),
    "token_decoder": _token_decoder,
    "pooler": lambda config: {"kernel": "d r", "bias": "r"},
    "classifier": lambda config: {"kernel": "r c", "bias": "c"},
    "masked_language_head": _masked_language_head,
    "transformer": _transformer,
}
