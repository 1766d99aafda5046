"""Components as other models split them: the math of `reference_numpy` with different module boundaries.

Only ports that define such a module run its cases. Each component and its vjp come from one function
of their arguments, which returns both.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, attention, experts, feed_forward, layers, transformer
from reference_numpy.values import Attending, Text

from . import calls
from .routing import Decisions

Array = np.ndarray
Tree = Mapping[str, Any]
Pair = tuple[Callable[..., Any], Callable[..., dict[str, Any]]]  # a computation and its vjp


def _paired(both: Callable[..., Pair], gradient: str) -> Pair:
    """Returns a component and its vjp from one function. gradient: the vjp's docstring."""
    declared = inspect.signature(both).parameters

    @functools.wraps(both)
    def forward(*args: Any, **options: Any) -> Any:
        return both(*args, **options)[0]()

    def backward(*args: Any, cotangent: Array, **options: Any) -> dict[str, Any]:
        return both(*args, **options)[1](cotangent)

    taken = [parameter for name, parameter in declared.items() if name != "return_weights"]
    cotangent = inspect.Parameter("cotangent", inspect.Parameter.KEYWORD_ONLY)
    backward.__signature__ = inspect.Signature([*taken, cotangent])  # type: ignore[attr-defined]
    backward.__doc__ = gradient
    return forward, backward


def _self_attention(
    parameters: Tree,
    x_btd: Array,
    mask_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    config: TransformerConfig | None = None,
    position_bt: Array | None = None,
) -> Pair:
    """`multi_head_attention` of x to itself, for modules that take one sequence.

    Its parameters and results are those of `multi_head_attention`; config and positions decide about the first layer, as there.
    """
    given = calls.multi_head_attention(parameters, x_btd, x_btd, mask_bhts, None, causal, config=config, position_bt=position_bt)

    def forward() -> Any:
        if return_weights:
            return calls.with_weights(attention.multi_head_attention, given)
        return attention.multi_head_attention(**given)

    def vjp(cotangent: Array) -> dict[str, Any]:
        inner = attention.multi_head_attention_vjp(**given, cotangent=cotangent)
        return {"parameters": inner["parameters"], "x_btd": inner["query_btd"] + inner["memory_bsd"]}

    return forward, vjp


def _sublayer(parameters: Tree, config: TransformerConfig, name: str, x_btd: Array, sublayer: Pair) -> Pair:
    """A sub-layer with its residual connection and norms."""
    return (
        lambda: layers.residual(parameters, config, name, x_btd, sublayer[0], None),
        lambda cotangent: layers.run_vjp(parameters, config, x_btd, {name: sublayer}, cotangent=cotangent),
    )


def _self_sublayer(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: Array,
    mask_bhts: Array | None = None,
    causal: bool = False,
    position_bt: Array | None = None,
) -> Pair:
    """Self-attention with its residual connection and norms: the first part of a layer.

    post: `norm(x + attention(x, x))`; pre: `x + attention(norm(x), norm(x))`. parameters: self_attention, self_attention_norm.
    """
    own, rest = parameters["self_attention"], (mask_bhts, causal)
    place: Any = {"config": config, "position_bt": position_bt}
    attend = (
        lambda y_btd: self_attention(own, y_btd, *rest, **place),
        lambda y_btd, cotangent: self_attention_vjp(own, y_btd, *rest, **place, cotangent=cotangent),
    )
    return _sublayer(parameters, config, "self_attention", x_btd, attend)


def _cross_sublayer(
    parameters: Tree, config: TransformerConfig, x_btd: Array, memory_bsd: Array,
    mask_bhts: Array | None = None,
) -> Pair:  # fmt: skip
    """Attention to the memory with its residual connection and norm: the second part of a decoder layer.

    post: `norm(x + attention(x, memory))`; pre: `x + attention(norm(x), memory)`. parameters: cross_attention, cross_attention_norm.
    """
    own, rest = parameters["cross_attention"], (memory_bsd, Attending(mask_bhts, config.scores(None)))

    def vjp(y_btd: Array, cotangent: Array) -> dict[str, Any]:
        inner = attention.multi_head_attention_vjp(own, config, y_btd, *rest, cotangent=cotangent)
        return {"x_btd": inner.pop("query_btd"), **inner}

    attend = (lambda y_btd: attention.multi_head_attention(own, config, y_btd, *rest)), vjp
    return _sublayer(parameters, config, "cross_attention", x_btd, attend)


def _network_sublayer(parameters: Tree, config: TransformerConfig, x_btd: Array) -> Pair:
    """The feed-forward network with its residual connection and norm: the last part of a layer.

    post: `norm(x + FFN(x))`; pre: `x + FFN(norm(x))`. parameters: feed_forward, feed_forward_norm.
    """
    own = parameters["feed_forward"]
    if "router" in own:
        network = (
            lambda y_btd: experts.mixture_of_experts(own, config, y_btd),
            lambda y_btd, cotangent: experts.mixture_of_experts_vjp(own, config, y_btd, cotangent=cotangent),
        )
    else:
        given: dict[str, Any] = {"activation_name": config.activation, "gate": config.gate}
        network = (
            lambda y_btd: feed_forward.feed_forward(own, y_btd, **given),
            lambda y_btd, cotangent: feed_forward.feed_forward_vjp(own, y_btd, **given, cotangent=cotangent),
        )
    return _sublayer(parameters, config, "feed_forward", x_btd, network)


def routed_experts(parameters: Tree, config: TransformerConfig, target: Array, target_mask_bt: Array | None = None) -> Array:
    """The experts that every token of a decoder chooses, `b t l x`, True = chosen; layers without experts are left out.

    Ports return ids `b t l k` in any order. Padding chooses none.
    """
    decisions = Decisions()
    with decisions.recorded():
        transformer.transformer(parameters, config, None, Text(target, target_mask_bt))
    chosen_btlx = np.stack(decisions.made, axis=2)
    return chosen_btlx if target_mask_bt is None else chosen_btlx & target_mask_bt[..., None, None]


def _token_encoder(
    parameters: Tree,
    config: TransformerConfig,
    source: Array,
    source_mask_bs: Array | None = None,
    segment_bs: Array | None = None,
) -> Pair:
    """`encode` of a whole model, for encoders that hold their embedding: ids `b s` in, vectors `b s d` out.

    source_mask_bs: boolean, True = real token; without it, every id but the padding id. parameters: source_embedding with what is added
    to it, and encoder.
    """
    given: Any = parameters, config, Text(source, source_mask_bs, segment_bs)
    encode, encode_vjp = transformer.encode, transformer.encode_vjp
    return lambda: encode(*given), lambda cotangent: encode_vjp(*given, cotangent=cotangent)


def _token_decoder(
    parameters: Tree,
    config: TransformerConfig,
    target: Array,
    memory_bsd: Array | None = None,
    source_mask_bs: Array | None = None,
    target_mask_bt: Array | None = None,
) -> Pair:
    """`decode` of a whole model, for decoders that hold their embedding and the projection to logits: ids `b t` in, logits `b t v` out.

    memory_bsd: what the encoder gave, whose padding source_mask_bs hides. target_mask_bt: boolean, True = real token; without it, every id
    but the padding id. parameters: target_embedding with what is added to it, decoder, logits.
    """
    own = config.replace(share_embeddings=False)
    given: Any = parameters, own, Text(target, target_mask_bt), memory_bsd, source_mask_bs
    decode, decode_vjp = transformer.decode, transformer.decode_vjp
    return lambda: decode(*given), lambda cotangent: decode_vjp(*given, cotangent=cotangent)


_OF_ITSELF = "The gradient of x is the sum of its two uses, as query and as memory; parameters, x_btd."
self_attention, self_attention_vjp = _paired(_self_attention, _OF_ITSELF)
_SUBLAYER = "Backwards through the sub-layer; parameters, x_btd"
self_attention_sublayer, self_attention_sublayer_vjp = _paired(_self_sublayer, f"{_SUBLAYER}.")
cross_attention_sublayer, cross_attention_sublayer_vjp = _paired(_cross_sublayer, f"{_SUBLAYER}, memory_bsd.")
feed_forward_sublayer, feed_forward_sublayer_vjp = _paired(_network_sublayer, f"{_SUBLAYER}.")
_OF_ENCODER = "As `encode_vjp`; parameters, and source where it is soft."
token_encoder, token_encoder_vjp = _paired(_token_encoder, _OF_ENCODER)
_OF_DECODER = "As `decode_vjp`; parameters, memory_bsd where there is one, and target where it is soft."
token_decoder, token_decoder_vjp = _paired(_token_decoder, _OF_DECODER)
