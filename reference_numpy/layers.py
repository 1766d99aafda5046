"""Encoder and decoder layers: residual sub-layers, each with norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping

from . import arithmetic, attention, checks, dropout, experts, feed_forward, normalization
from .arrays import Array, Gradients, Keep, Tree
from .config import TransformerConfig as Config
from .scores import Scores
from .values import Attending, Memory

__all__ = ["decoder_layer", "decoder_layer_vjp", "encoder_layer", "encoder_layer_vjp"]

Sublayer = Callable[[Array], Array]
Routed = list[Array] | None  # collects the logits of routers
Pair = tuple[Sublayer, Callable[..., Gradients]]  # a sub-layer and its vjp


def residual(
    parameters: Tree, config: Config, name: str, x_btd: Array, sublayer: Sublayer, keep: Keep
) -> Array:
    """Applies a sub-layer by name, with its norms, dropout and residual connection."""
    y_btd = sublayer(residual_in(parameters, config, name, x_btd))
    return residual_out(parameters, config, name, x_btd, y_btd, keep)


def branch(config: Config, y_btd: Array) -> Array:
    """Multiplies a sub-layer's output, before it is added to x (Granite Team 2024)."""
    if config.residual_multiplier == 1:
        return y_btd
    wide_btd = arithmetic.upcast_half(y_btd)
    wide_btd = wide_btd * wide_btd.dtype.type(config.residual_multiplier)
    return wide_btd.astype(y_btd.dtype, copy=False)


def run(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    attend: Sublayer,
    attend_to_memory: Sublayer | None = None,
    keep: Keep = None,
    routed: Routed = None,
) -> Array:
    """Runs the residual sub-layers in order: `b t d`. The caller provides the attentions.

    attend: self-attention of its argument. attend_to_memory: cross-attention of it, as the query.
    routed: collects the router's logits, if the layer has experts.
    """
    first_btd = x_btd
    x_btd = residual(parameters, config, "self_attention", x_btd, attend, keep)
    if attend_to_memory is not None:
        x_btd = residual(parameters, config, "cross_attention", x_btd, attend_to_memory, keep)

    read_btd = first_btd if config.parallel else x_btd
    y_btd = residual_in(parameters, config, "feed_forward", read_btd)
    y_btd = network(parameters, config, y_btd, keep, routed)
    return residual_out(parameters, config, "feed_forward", x_btd, y_btd, keep)


def encoder_layer(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    attending: Attending = Attending(),
    keep: Keep = None,
) -> Array:
    """Self-attention, then feed-forward, each as a residual sub-layer: `b t d`.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`; after:
    `x = x + dropout(norm(sublayer(x)))`; sandwich: `x = x + dropout(norm(sublayer(norm(x))))`;
    parallel: `x = x + dropout(attention(norm(x))) + dropout(FFN(norm(x)))`, with two norms of the
    same x; parallel_shared: with one, the self_attention_norm.
    parameters: self_attention, self_attention_norm, feed_forward, feed_forward_norm; sandwich also
    self_attention_output_norm and feed_forward_output_norm. attending: for the self-attention.
    keep: masks of self_attention_dropout, self_attention.weights_dropout, feed_forward_dropout and
    feed_forward.hidden_dropout; None in evaluation. Raises ValueError if the shapes do not match.
    Source: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020; sandwich: Ding et al. 2021,
    Gemma Team 2024; after: Liu et al. 2022, OLMo Team 2024; parallel: Black et al. 2022, GPT-NeoX;
    parallel_shared: Wang & Komatsuzaki 2021, GPT-J.
    """

    def attend(y_btd: Array) -> Array:
        return self_attention(parameters, config, y_btd, attending, keep)

    return run(parameters, config, x_btd, attend, keep=keep)


def encoder_layer_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    attending: Attending = Attending(),
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through the sub-layers. Returns parameters and x_btd."""
    sublayers = _pairs(parameters, config, None, attending, keep)
    return run_vjp(parameters, config, x_btd, sublayers, keep, cotangent=cotangent)


def decoder_layer(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory: Memory | None = None,
    attending: Attending = Attending(scores=Scores(causal=True)),
    keep: Keep = None,
    routed: Routed = None,
) -> Array:
    """Causal self-attention, cross-attention to the memory, then feed-forward: `b t d`.

    Each is a residual sub-layer, as in `encoder_layer`; the memory is not normalized here. A
    decoder-only model has neither cross-attention nor memory. parameters and keep: also those of
    cross_attention. attending: for the self-attention. routed: as in `run`. Raises ValueError if
    the shapes do not match. Source: Vaswani et al. 2017, section 3.1.
    """
    shape = None if memory is None else memory.vectors_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape)
    if shape is not None:
        checks.check_same_batch(x=x_btd.shape, memory=shape)

    def attend(y_btd: Array) -> Array:
        return self_attention(parameters, config, y_btd, attending, keep)

    if memory is None:
        return run(parameters, config, x_btd, attend, keep=keep, routed=routed)

    def attend_to_memory(y_btd: Array) -> Array:
        return cross_attention(parameters, config, y_btd, memory, keep)

    return run(parameters, config, x_btd, attend, attend_to_memory, keep, routed)


def decoder_layer_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory: Memory | None = None,
    attending: Attending = Attending(scores=Scores(causal=True)),
    keep: Keep = None,
    *,
    cotangent: Array,
    routed_btx: Array | None = None,
) -> Gradients:
    """Backward pass through the sub-layers. Returns parameters, x_btd, memory_bsd if present.

    routed_btx: the cotangent of the router's logits.
    """
    sublayers = _pairs(parameters, config, memory, attending, keep, routed_btx)
    return run_vjp(parameters, config, x_btd, sublayers, keep, cotangent=cotangent)


def residual_in(parameters: Tree, config: Config, name: str, x_btd: Array) -> Array:
    """The input of a sub-layer: `norm(x)` (pre, sandwich, parallel), otherwise x."""
    if not (of_input := _input_norm(parameters, config, name)):
        return x_btd
    return normalization.norm(parameters.get(of_input, {}), config, x_btd)


def residual_in_vjp(
    parameters: Tree, config: Config, name: str, x_btd: Array, *, cotangent: Array
) -> Gradients:
    """Returns norms, the gradients of this norm by name, and x_btd."""
    if not (of_input := _input_norm(parameters, config, name)):
        return {"norms": {}, "x_btd": cotangent}
    return _norm_vjp(parameters, config, of_input, x_btd, cotangent)


def residual_out(
    parameters: Tree, config: Config, name: str, x_btd: Array, y_btd: Array, keep: Keep
) -> Array:
    """Joins a sub-layer's output y: `x + dropout(y)` (pre, parallel), the norm of that (post), or
    `x + dropout(norm(y))` (sandwich, after).
    """
    keep_btd = dropout.part(keep, f"{name}_dropout")
    if of_output := config.output_norm(name):
        y_btd = normalization.norm(parameters.get(of_output, {}), config, y_btd)
    sum_btd = x_btd + branch(config, dropout.dropout(y_btd, keep_btd, config.dropout_rate))
    if config.norm_placement != "post":
        return sum_btd
    return normalization.norm(parameters.get(f"{name}_norm", {}), config, sum_btd)


def residual_out_vjp(
    parameters: Tree,
    config: Config,
    name: str,
    x_btd: Array,
    y_btd: Array,
    keep: Keep,
    *,
    cotangent: Array,
) -> Gradients:
    """Returns norms, the gradients of this norm by name, x_btd and y_btd."""
    keep_btd, rate = dropout.part(keep, f"{name}_dropout"), config.dropout_rate
    found: Gradients = {"norms": {}, "x_btd": cotangent}
    if config.norm_placement == "post":
        sum_btd = x_btd + branch(config, dropout.dropout(y_btd, keep_btd, rate))
        found = _norm_vjp(parameters, config, f"{name}_norm", sum_btd, cotangent)
    g_btd = branch(config, found["x_btd"])
    g_btd = dropout.dropout_vjp(y_btd, keep_btd, rate, cotangent=g_btd)["x"]
    if not (of_output := config.output_norm(name)):
        return found | {"y_btd": g_btd}
    inner = _norm_vjp(parameters, config, of_output, y_btd, g_btd)
    return found | {"norms": inner["norms"], "y_btd": inner["x_btd"]}


def _input_norm(parameters: Tree, config: Config, name: str) -> str:
    of_input = config.input_norm(name)
    there = of_input in parameters or not config.norm_scale
    return of_input if there else ""  # the first layer may have none


def _norm_vjp(
    parameters: Tree, config: Config, name: str, x_btd: Array, cotangent: Array
) -> Gradients:
    own = parameters.get(name, {})
    inner = normalization.norm_vjp(own, config, x_btd, cotangent=cotangent)
    return {"norms": {name: inner["parameters"]}, "x_btd": inner["x_btd"]}


def self_attention(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    attending: Attending = Attending(),
    keep: Keep = None,
) -> Array:
    """Attention of x to itself, without norm and residual connection: `b t d`."""
    own = parameters["self_attention"]
    keep_bhts = dropout.part(keep, "self_attention", "weights_dropout")
    return attention.multi_head_attention(own, config, x_btd, x_btd, attending, keep_bhts)


def cross_attention(
    parameters: Tree, config: Config, x_btd: Array, memory: Memory, keep: Keep = None
) -> Array:
    """Attention of x to the memory, without norm and residual connection: `b t d`."""
    own, (vectors_bsd, mask_bhts) = parameters["cross_attention"], memory
    attending = Attending(mask_bhts, config.scores(None))
    keep_bhts = dropout.part(keep, "cross_attention", "weights_dropout")
    return attention.multi_head_attention(own, config, x_btd, vectors_bsd, attending, keep_bhts)


def network(
    parameters: Tree, config: Config, x_btd: Array, keep: Keep = None, routed: Routed = None
) -> Array:
    """The feed-forward network, with the dropout mask of its hidden layer, or the experts."""
    own, rate = parameters["feed_forward"], config.hidden_dropout_rate
    if "router" in own:
        if routed is not None:
            routed.append(experts.router_logits(own["router"], config, x_btd))
        return experts.mixture_of_experts(own, config, x_btd)
    keep_btf = dropout.part(keep, "feed_forward", "hidden_dropout")
    return feed_forward.feed_forward(own, x_btd, config.activation, keep_btf, rate, config.gate)


def _pairs(
    parameters: Tree,
    config: Config,
    memory: Memory | None,
    attending: Attending,
    keep: Keep,
    routed_btx: Array | None = None,
) -> dict[str, Pair]:
    """Returns the sub-layers of a layer in order, each with its vjp."""

    def attention_vjp(
        name: str, y_btd: Array, memory_bsd: Array, attending: Attending, g_btd: Array
    ) -> Gradients:
        own, keep_bhts = parameters[name], dropout.part(keep, name, "weights_dropout")
        given = own, config, y_btd, memory_bsd, attending, keep_bhts
        return attention.multi_head_attention_vjp(*given, cotangent=g_btd)

    def attend_vjp(y_btd: Array, *, cotangent: Array) -> Gradients:
        inner = attention_vjp("self_attention", y_btd, y_btd, attending, cotangent)
        x_btd = inner["query_btd"] + inner["memory_bsd"]
        return {"parameters": inner["parameters"], "x_btd": x_btd}

    def network_vjp(y_btd: Array, *, cotangent: Array) -> Gradients:
        own, rate = parameters["feed_forward"], config.hidden_dropout_rate
        if "router" in own:
            return routed_vjp(own, config, y_btd, routed_btx, cotangent=cotangent)
        given = own, y_btd, config.activation, dropout.part(keep, "feed_forward", "hidden_dropout")
        return feed_forward.feed_forward_vjp(*given, rate, config.gate, cotangent=cotangent)

    pairs: dict[str, Pair] = {}
    pairs["self_attention"] = (
        lambda y_btd: self_attention(parameters, config, y_btd, attending, keep),
        attend_vjp,
    )
    if memory is not None:

        def cross_vjp(y_btd: Array, *, cotangent: Array) -> Gradients:
            vectors_bsd, mask_bhts = memory
            crossing = Attending(mask_bhts, config.scores(None))
            inner = attention_vjp("cross_attention", y_btd, vectors_bsd, crossing, cotangent)
            names = {"parameters": "parameters", "x_btd": "query_btd", "memory_bsd": "memory_bsd"}
            return {name: inner[of] for name, of in names.items()}

        pairs["cross_attention"] = (
            lambda y_btd: cross_attention(parameters, config, y_btd, memory, keep),
            cross_vjp,
        )
    pairs["feed_forward"] = lambda y_btd: network(parameters, config, y_btd, keep), network_vjp
    return pairs


def routed_vjp(
    parameters: Tree, config: Config, x_btd: Array, routed_btx: Array | None, *, cotangent: Array
) -> Gradients:
    """Backward pass through experts, and with routed_btx through the router's logits."""
    found = experts.mixture_of_experts_vjp(parameters, config, x_btd, cotangent=cotangent)
    if routed_btx is None:
        return found
    router = parameters["router"]
    inner = experts.router_logits_vjp(router, config, x_btd, cotangent=routed_btx)
    own = found["parameters"]["router"]
    summed = {name: own[name] + g for name, g in inner["parameters"].items()}
    gradients = found["parameters"] | {"router": own | summed}
    return {"parameters": gradients, "x_btd": found["x_btd"] + inner["x_btd"]}


def run_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    sublayers: Mapping[str, Pair],
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Runs the residual sub-layers in order, then their vjps in reverse.

    Returns parameters, x_btd, and anything else that the vjps of the sub-layers return.
    """
    steps, first_btd = [], x_btd
    for name, (sublayer, vjp) in sublayers.items():
        read_btd = first_btd if config.parallel else x_btd
        in_btd = residual_in(parameters, config, name, read_btd)
        out_btd = sublayer(in_btd)
        steps.append((name, vjp, x_btd, read_btd, in_btd, out_btd))
        x_btd = residual_out(parameters, config, name, x_btd, out_btd, keep)
    gradients: Gradients = {}
    others: Gradients = {}
    of_first: list[Array] = []  # the gradients of the input that parallel sub-layers share
    for name, vjp, x_btd, read_btd, in_btd, out_btd in reversed(steps):
        of = parameters, config, name
        after = residual_out_vjp(*of, x_btd, out_btd, keep, cotangent=cotangent)
        inner = vjp(in_btd, cotangent=after["y_btd"])
        before = residual_in_vjp(*of, read_btd, cotangent=inner.pop("x_btd"))
        norms = before["norms"] | after["norms"]
        for shared in norms.keys() & gradients.keys():
            other = gradients.pop(shared)
            norms[shared] = {part: g + other[part] for part, g in norms[shared].items()}
        gradients = {name: inner.pop("parameters"), **norms, **gradients}
        others |= inner
        cotangent = after["x_btd"]
        if config.parallel:
            of_first.append(before["x_btd"])
        else:
            cotangent = cotangent + before["x_btd"]
    return {"parameters": gradients, "x_btd": sum(of_first, cotangent), **others}
