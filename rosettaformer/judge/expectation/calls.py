"""Converts the inputs of a case to the arguments of the reference's functions.

A case has arrays and numbers by name; some functions of the reference take several of them as one
value: heads, scores, a text, a memory. Each function here takes the inputs of a component's cases
and returns the arguments of the reference's function.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, arithmetic, checks, stacks, transformer
from reference_numpy.scores import Scores
from reference_numpy.values import Attending, Drop, Heads, Memory, Text

from .patching import patched

Array = np.ndarray
Mask = Array | None
Tree = Mapping[str, Any]
Given = dict[str, Any]


def scaled_dot_product_attention(
    query_bthk: Array, key_bsgk: Array, value_bsge: Array, mask_bhts: Mask = None, bias_bhts: Array | None = None, causal: bool = False,
    return_weights: bool = False, keep_bhts: Mask = None, dropout_rate: float = 0.0, window: int = 0, scale: float | None = None,
    cap: float | None = None, sink_h: Array | None = None,
) -> Given:  # fmt: skip
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    Returns the output `b t h e`; with return_weights also the weights `b h t s` before dropout.

    mask_bhts: boolean, True = may attend (MASK); axes of size 1 are broadcast. causal: also hide the keys that come after the query
    (CAUSAL). window: also hide the keys whose distance from the query is this or more (WINDOW); 0 hides none. scale: in place of `1 /
    sqrt(k)` (SCALE). cap: `soft_cap` of the scaled logits, before bias and mask (SOFTCAP). bias_bhts: added to the logits; -inf hides a
    key. keep_bhts: dropout mask of the weights, True = keep. sink_h: a score of each head without a value, which joins the softmax and is
    never masked (SINK). A query that may attend to nothing returns zeros (EMPTY). Fewer key heads
    than query heads are shared: each serves `h/g` neighboring query heads, the first of them the first `h/g`. Half-precision dtypes hold
    logits and softmax in float32 and round the weights before they multiply the values. Raises ValueError on shapes that do not fit.
    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023.
    """
    scores = (query_bthk.shape[0], query_bthk.shape[2], query_bthk.shape[1], key_bsgk.shape[1])
    return {
        "heads": Heads(query_bthk, key_bsgk, value_bsge, sink_h),
        "mask_bhts": joined(mask_bhts, bias_bhts, scores),
        "scores": Scores(scale, cap, window, causal),
        "drop": Drop(keep_bhts, dropout_rate),
    }


def multi_head_attention(
    parameters: Tree, query_btd: Array, memory_bsd: Array, mask_bhts: Mask = None, bias_bhts: Array | None = None, causal: bool = False,
    return_weights: bool = False, keep_bhts: Mask = None, dropout_rate: float = 0.0, config: TransformerConfig | None = None,
    layer: int | None = 0, position_bt: Array | None = None,
) -> Given:  # fmt: skip
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i head_i W_i^O + b^O`.

    query_btd: x, whose tokens attend; memory_bsd: m, what they attend to, which is x itself in self-attention. parameters: query.kernel
    `d h k`, key.kernel `d g k`, value.kernel `d g e`, output.kernel `h e d`; biases `h k`, `g k`, `g e`, `d` where present, and query_norm
    and key_norm by config. Returns the output `b t d`; with return_weights the output and the weights `b h t s`. mask_bhts, bias_bhts,
    causal, keep_bhts: as `scaled_dot_product_attention`.

    config: norms queries and keys (QKNORM), then rotates them (ROTARY), scales and caps the logits (SCALE, SOFTCAP) and gives a layer its
    window (WINDOW). layer: the index of the layer whose self-attention it is; None, cross-attention, neither rotates nor has a window.
    position_bt: of the tokens; without it, token t has position t. Raises ValueError on shapes that do not fit. Source: Vaswani et al.
    2017, section 3.2.2; query-key norm: Henry et al. 2020, its place before the rotation: Yang et al. 2025, Qwen 3.
    """
    assert config is not None
    scores = (query_btd.shape[0], parameters["query"]["kernel"].shape[1], query_btd.shape[1], memory_bsd.shape[1])
    return {
        "parameters": parameters,
        "config": config if keep_bhts is None else config.replace(attention_dropout_rate=dropout_rate),
        "query_btd": query_btd,
        "memory_bsd": memory_bsd,
        "attending": attending(config, layer, query_btd, joined(mask_bhts, bias_bhts, scores), position_bt, causal),
        "keep_bhts": keep_bhts,
    }


def encoder_layer(
    parameters: Tree, config: TransformerConfig, x_btd: Array, mask_bhts: Mask = None, keep: Tree | None = None,
    position_bt: Array | None = None, layer: int = 0,
) -> Given:  # fmt: skip
    """Self-attention, then feed-forward, each as a residual sub-layer: `b t d`.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`; after: `x = x + dropout(norm(sublayer(x)))`;
    sandwich: `x = x + dropout(norm(sublayer(norm(x))))`. parameters: self_attention, self_attention_norm, feed_forward, feed_forward_norm;
    sandwich also self_attention_output_norm and feed_forward_output_norm. keep: masks of self_attention_dropout,
    self_attention.weights_dropout, feed_forward_dropout and feed_forward.hidden_dropout; None evaluates. position_bt, layer: as
    `multi_head_attention`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020;
    sandwich: Ding et al. 2021, Gemma Team 2024; after: Liu et al. 2022, OLMo Team 2024.
    """
    return {
        "parameters": parameters,
        "config": config,
        "x_btd": x_btd,
        "attending": attending(config, layer, x_btd, mask_bhts, position_bt),
        "keep": keep,
    }


def decoder_layer(
    parameters: Tree, config: TransformerConfig, x_btd: Array, memory_bsd: Array | None = None, self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None, keep: Tree | None = None, position_bt: Array | None = None, layer: int = 0,
) -> Given:  # fmt: skip
    """Causal self-attention, cross-attention to the memory, then feed-forward: `b t d`.

    Each is a residual sub-layer, as in `encoder_layer`; the memory is not normalized here. A decoder-only model has neither
    cross-attention nor memory. parameters and keep: also those of cross_attention. position_bt, layer: of the self-attention. Raises
    ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    return {
        "parameters": parameters,
        "config": config,
        "x_btd": x_btd,
        "memory": remembered(config, memory_bsd, cross_mask_bhts),
        "attending": attending(config, layer, x_btd, self_mask_bhts, position_bt, causal=True),
        "keep": keep,
    }


def decoder(
    parameters: Tree, config: TransformerConfig, x_btd: Array, memory_bsd: Array | None = None, self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None, keep: Tree | None = None, position_bt: Array | None = None,
) -> Given:  # fmt: skip
    """The decoder layers, then the final norm if the config has one: `b t d`.

    memory_bsd: what the layers attend to; None for a decoder-only model. position_bt: of the tokens, for layers that rotate; without it,
    token t has position t. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    memory = remembered(config, memory_bsd, cross_mask_bhts)
    own = {"self_mask_bhts": self_mask_bhts, "keep": keep, "position_bt": position_bt}
    return {"parameters": parameters, "config": config, "x_btd": x_btd, "memory": memory, **own}


def the_model(
    parameters: Tree, config: TransformerConfig, source: Array | None, target: Array | None = None, source_mask_bs: Mask = None,
    target_mask_bt: Mask = None, keep: Tree | None = None, segment_bs: Array | None = None, skip_padding: bool = False,
) -> Given:  # fmt: skip
    """`decode(target, encode(source))`, `b t v`: the logits of the token after each target token.

    source: ids `b s`, or soft one-hot rows `b s v`; None for a decoder-only model (ALONE). target: ids `b t`, or soft one-hot rows `b t v`;
    None for an encoder-only model, which returns what its head does: `classify`, `masked_language_logits`, or `encode` if it has none.
    source_mask_bs, target_mask_bt: boolean, True = real token; without one, every id but the padding id. segment_bs: the segment of every
    token; without it, 0. keep: dropout masks by site; None evaluates. skip_padding:
    the logits are zero where the target is padding (PADDING). Raises ValueError on ids, masks and shapes that do not fit; an encoder-only
    model with both heads also raises ValueError. Source: Vaswani et al. 2017, figure 1.
    """
    if target is None:  # a mask or segments without ids are no text
        checks.check_target_given(config.decoder_layers, None, target_mask_bt=target_mask_bt)
    if source is None:
        checks.check_source_given(config.encoder_layers, None, source_mask_bs=source_mask_bs, segment_bs=segment_bs)
    return {
        "parameters": parameters,
        "config": config,
        "source": text(source, source_mask_bs, segment_bs),
        "target": text(target, target_mask_bt),
        "keep": keep,
    }


def _of_source(
    parameters: Tree, config: TransformerConfig, source: Array, source_mask_bs: Mask = None, keep: Tree | None = None,
    segment_bs: Array | None = None,
) -> Given:  # fmt: skip
    """source_mask_bs: boolean, True = real token; without it, every id but the padding id. segment_bs: the segment of every token;
    without it, 0.
    """
    return {"parameters": parameters, "config": config, "source": text(source, source_mask_bs, segment_bs), "keep": keep}


def classification_loss(
    parameters: Tree, config: TransformerConfig, source: Array, label_b: Array, smoothing: float = 0.0, total: int | None = None,
    keep: Tree | None = None, source_mask_bs: Mask = None, segment_bs: Array | None = None,
) -> Given:  # fmt: skip
    """The cross-entropy of the class of every row: a scalar.

    label_b: integer classes. smoothing, total: as `cross_entropy`; keep: as `classify`. Raises ValueError as both do.
    """
    own = {"label_b": label_b, "smoothing": smoothing, "total": total}
    return _of_source(parameters, config, source, source_mask_bs, keep, segment_bs) | own


def states(
    parameters: Tree, config: TransformerConfig, source: Array | None = None, target: Array | None = None, source_mask_bs: Mask = None,
    target_mask_bt: Mask = None, segment_bs: Array | None = None,
) -> Given:  # fmt: skip
    """The vectors before the first and after every layer, and the attention weights of every layer.

    Both stacks give `hidden_lbtd` and `self_attention_lbhts`, and a decoder with an encoder also `cross_attention_lbhts`; the axis l is the
    layer. There is one hidden state more than layers; the last is taken after the final norm, if the config has one. Nothing is dropped.
    Arguments and errors match `transformer`. Each stack that the config has needs its tokens. Source: the outputs `hidden_states` and
    `attentions` of the library transformers.
    """
    given = the_model(parameters, config, source, target, source_mask_bs, target_mask_bt, None, segment_bs)
    return {name: value for name, value in given.items() if name != "keep"}


def _searched(
    parameters: Tree, config: TransformerConfig, source: Array | None, strategy: Any, prefix: Array | None = None,
    source_mask_bs: Mask = None, prefix_mask_bp: Mask = None,
) -> Given:  # fmt: skip
    """source_mask_bs, prefix_mask_bp: boolean, True = real token; without one, every id but the padding id."""
    if source is None:  # a mask without ids is no text
        checks.check_source_given(config.encoder_layers, None, source_mask_bs=source_mask_bs)
    texts = {"source": text(source, source_mask_bs), "prefix": None if prefix is None else text(prefix, prefix_mask_bp)}
    return {"parameters": parameters, "config": config, "strategy": strategy, **texts}


def _sampled(
    parameters: Tree, config: TransformerConfig, source: Array | None, strategy: Any, uniform_bn: Array, prefix: Array | None = None,
    source_mask_bs: Mask = None, prefix_mask_bp: Mask = None,
) -> Given:  # fmt: skip
    """source_mask_bs, prefix_mask_bp: boolean, True = real token; without one, every id but the padding id."""
    return _searched(parameters, config, source, strategy, prefix, source_mask_bs, prefix_mask_bp) | {"uniform_bn": uniform_bn}


_parts: dict[int, tuple[Mask, Array]] = {}  # the boolean mask and the bias that `joined` combined, by the id of the result


def joined(mask_bhts: Mask, bias_bhts: Array | None, scores: tuple[int, ...] | None = None) -> Mask:
    """Returns mask and bias combined: at least float32, -inf where the mask hides a key."""
    if bias_bhts is None:
        return mask_bhts
    if scores is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), scores)
    result = np.array(arithmetic.upcast_half(bias_bhts))
    if mask_bhts is not None:
        if scores is not None:
            checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), scores)
        result = np.where(mask_bhts, result, result.dtype.type(-np.inf))
    _parts[id(result)] = mask_bhts, bias_bhts
    weakref.finalize(result, _parts.pop, id(result))
    return result


def parted(mask_bhts: Mask) -> tuple[Mask, Array | None]:
    """Returns the boolean mask and the bias that a mask consists of."""
    if mask_bhts is None or mask_bhts.dtype == bool:
        return mask_bhts, None
    return _parts.get(id(mask_bhts), (None, mask_bhts))


def _masked(original: Callable, scores_bhts: Array, mask_bhts: Mask, scores: Scores) -> tuple[Array, Mask]:
    """`attention.masked` with bias and mask applied one after the other, as ports do."""
    mask_bhts, bias_bhts = parted(mask_bhts)
    if bias_bhts is not None:
        scores_bhts = scores_bhts + arithmetic.upcast_half(bias_bhts)
    return original(scores_bhts, mask_bhts, scores)


def attending(
    config: TransformerConfig, layer: int | None, x_btd: Array, mask_bhts: Mask, position_bt: Array | None, causal: bool = False
) -> Attending:
    """Returns how a layer attends: self-attention for a layer index, cross-attention for None."""
    if layer is None:
        return Attending(mask_bhts, config.scores(None, causal))
    return stacks.attending(config, layer, x_btd, mask_bhts, position_bt, causal)


def remembered(config: TransformerConfig, memory_bsd: Array | None, mask_bhts: Mask) -> Memory | None:
    """Returns the memory with its mask, or None. Raises ValueError on a mask alone."""
    if memory_bsd is None and mask_bhts is not None:
        checks.check_memory(config.cross_attention, config.model_width, None, mask_bhts)
    return None if memory_bsd is None else Memory(memory_bsd, mask_bhts)


def text(ids: Array | None, mask_bt: Mask = None, segment_bt: Array | None = None) -> Any:
    """Returns one side of a model's input; ids without mask and segments are returned unchanged."""
    if mask_bt is None and segment_bt is None:
        return ids
    return Text(ids, mask_bt, segment_bt)  # type: ignore[arg-type]


ARGUMENTS: Mapping[str, Callable[..., Given]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "multi_head_attention": multi_head_attention,
    "encoder_layer": encoder_layer,
    "decoder_layer": decoder_layer,
    "decoder": decoder,
    "transformer": the_model,
    "pool": _of_source,
    "classify": _of_source,
    "masked_language_logits": _of_source,
    "classification_loss": classification_loss,
    "states": states,
    "greedy_search": _searched,
    "sample": _sampled,
    "beam_search": _searched,
}
ADDED = (_of_source, _searched, _sampled)  # their docstrings only describe arguments that the function's docstring does not
VJP = "_vjp"


def of_case(component: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the component's function, or its vjp, with a case's inputs as arguments."""
    arguments = ARGUMENTS.get(component.removesuffix(VJP))
    if arguments is None:
        return function
    declared = [*inspect.signature(arguments).parameters.values()]
    if component.endswith(VJP):
        declared = [one for one in declared if one.name != "return_weights"]
        declared.append(inspect.Parameter("cotangent", inspect.Parameter.KEYWORD_ONLY))
    signature = inspect.Signature(declared)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        return _answered(arguments, function, given)

    call.__signature__ = signature  # type: ignore[attr-defined]
    if not component.endswith(VJP):
        call.__doc__ = arguments.__doc__
        if arguments in ADDED:  # inserts the arguments before the source of the function's docstring
            what, of, source = inspect.cleandoc(function.__doc__ or "").partition("Source: ")
            call.__doc__ = f"{what}\n{inspect.cleandoc(arguments.__doc__ or '')}\n{of}{source}"
    return call


def _answered(arguments: Callable[..., Given], function: Callable[..., Any], given: Given) -> Any:
    with patched({"attention.masked": _masked} if given.get("bias_bhts") is not None else {}):
        return _called(arguments, function, given)


def _called(arguments: Callable[..., Given], function: Callable[..., Any], given: Given) -> Any:
    own = {name: value for name, value in given.items() if name != "cotangent"}
    values = arguments(**own)
    if "cotangent" not in given:
        if given.get("return_weights"):
            return with_weights(function, values)
        return real_logits(function, values) if given.get("skip_padding") else function(**values)
    cotangent = given["cotangent"]
    if given.get("skip_padding"):
        cotangent = transformer.real_rows(cotangent, given["config"], given["target"], given.get("target_mask_bt"))
    result = function(**values, cotangent=cotangent)
    gradient, bias_bhts = result.pop("mask_bhts", None), given.get("bias_bhts")
    if gradient is not None and bias_bhts is not None:
        gradient = arithmetic.unbroadcast(gradient, bias_bhts.shape).astype(bias_bhts.dtype, copy=False)
        return {**result, "bias_bhts": gradient}
    return result


def real_logits(function: Callable[..., Array], values: Given) -> Array:
    """Returns the model's logits, with zeros where the target is padding."""
    target = Text.of(values["target"])
    return transformer.real_rows(function(**values), values["config"], target.ids, target.mask_bt)


def with_weights(function: Callable[..., Any], values: Given) -> tuple[Array, Array]:
    """Returns the output and the attention weights that it was computed with."""
    found = []

    def kept(original: Callable[..., Array], weights_bhts: Array, *drop: Any) -> Array:
        found.append(weights_bhts)
        return original(weights_bhts, *drop)

    with patched({"dropout.dropout": kept}):
        output = function(**values)
    return output, found[0]


# by argument, the names in a case for the fields of its value; other fields keep their own names
FIELDS: Mapping[str, Mapping[str, str]] = {
    "source": {"ids": "source", "mask_bt": "source_mask_bs", "segment_bt": "segment_bs"},
    "target": {"ids": "target", "mask_bt": "target_mask_bt", "segment_bt": "target_segment_bt"},
    "prefix": {"ids": "prefix", "mask_bt": "prefix_mask_bp", "segment_bt": "prefix_segment_bp"},
    "memory": {"vectors_bsd": "memory_bsd", "mask_bhts": "cross_mask_bhts"},
    "drop": {"rate": "dropout_rate"},
}
# the arguments that are values, each before the values inside it
KINDS: Mapping[str, type] = {
    "heads": Heads, "attending": Attending, "scores": Scores, "drop": Drop, "memory": Memory, "source": Text, "target": Text,
    "prefix": Text,
}  # fmt: skip


def _names(name: str, kind: Any, given: Mapping[str, Any]) -> Mapping[str, str]:
    """The case's name of each field; one of two masks is the self-attention's."""
    beside = {"mask_bhts": "self_mask_bhts"} if name == "attending" and {"memory", "cache"} & given.keys() else FIELDS.get(name, {})
    return {field: beside.get(field, field) for field in kind._fields}


def _fields(given: Mapping[str, Any]) -> Iterator[tuple[str, type, Mapping[str, str]]]:
    """The arguments that are values: name, class, and the case's name of each field."""
    names = {*given}
    for name, kind in KINDS.items():
        own = _names(name, kind, given)
        if name in names and not any(other in given for other in own.values() if other != name):
            names |= {*own.values()}
            yield name, kind, own


def unfolded(given: Mapping[str, Any]) -> Given:
    """Returns a function's arguments with values replaced by their fields, named as in cases."""
    found = dict(given)
    for name, kind, own in _fields(given):
        value = found.pop(name)
        parts: Any = value if isinstance(value, kind) else (value, *[None] * (len(own) - 1))  # no memory, or a text without a mask
        found |= dict(zip(own.values(), parts, strict=True))
    return found


def folded(given: Mapping[str, Any], changed: Mapping[str, Any]) -> Given:
    """The inverse of `unfolded`: returns the arguments with changed fields."""
    found = dict(changed)
    for name, kind, own in reversed([*_fields(given)]):
        first, *others = (found[wanted] for wanted in own.values())
        alone = kind is Text and all(other is None for other in others)
        found[name] = first if alone or (first is None and kind in (Memory, Text)) else kind(first, *others)
    return {name: found[name] for name in given if name in found}


def as_of_case(component: str, given: Mapping[str, Any], place: Mapping[str, Any]) -> Given:
    """Returns a call's arguments as a case's inputs. place: layer and position_bt, if any."""
    found = unfolded(given)
    rotation = found.pop("rotation", None)
    if component in ("scaled_dot_product_attention", "multi_head_attention"):
        found["mask_bhts"], found["bias_bhts"] = parted(found.get("mask_bhts"))
    found.pop("sink", None)  # whether there is one follows from the parameters, or from sink_h
    if "attending" in given:
        for name in ("scale", "cap", "window", *(() if component == "multi_head_attention" else ("causal",))):
            del found[name]
        found["layer"] = place.get("layer", 0)
        found["position_bt"] = place.get("position_bt") if rotation is not None else None
    return {name: value for name, value in found.items() if name != "target_segment_bt"}
