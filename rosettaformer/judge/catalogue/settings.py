"""Settings: legitimate choices in which a port differs from its config.

Each is an alteration of the reference. Diagnosis tries them if no known bug explains an output.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic
from reference_numpy.config import ACTIVATIONS

from ..expectation.patching import patched
from .alteration import CONFIGURED, LOADED, Alteration, on_arguments, on_call, on_result, setting
from .beam_settings import beam_settings
from .choice_settings import choices
from .decoding import caches
from .deviation import normalised, variance
from .experts import routings
from .kernels import FUSED, PROJECTIONS, SITES, exchanged, interleaved, of_bias, of_projection, spread, transposed, without_bias
from .loss import losses
from .multi_head_attention import orders
from .optimizer import schedules
from .precision import precisions
from .search_settings import searches
from .tables import POSITIONS
from .transformer import other_final_norm
from .update_settings import updates

Tree = Mapping[str, Any]
RMS = "normalization.rms_norm"
RMS_EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12)
FRACTIONS = (0.25, 0.5, 0.75)
# other windows as functions of the config's window
WINDOWS: dict[str, Callable[[int], int]] = {"half as long": lambda window: max(window // 2, 1), "twice as long": lambda window: 2 * window}


def readings() -> Iterator[Alteration]:
    """Yields settings of norms, rotary fraction, scale, window and fused kernels."""
    fix = "give the norm the config's epsilon (rms_norm_eps)"
    for value in RMS_EPSILONS:
        title, altered = f"epsilon of the RMS norm is {value:g}", on_arguments(epsilon=value)
        yield setting(f"rms_norm.epsilon={value:g}", "rms_norm", title, fix, altered, RMS, elsewhere=CONFIGURED)
    title, altered = "the RMS norm's scale is not applied", on_arguments(parameters=_neutral)
    yield setting("rms_norm.scale=none", "rms_norm", title, "multiply by the norm's scale", altered, RMS, elsewhere=LOADED)
    title, fix = "1 is added to the norm's scale twice, in the loaded weights and in the norm", "add 1 once"
    yield setting("norm.scale=2+", "rms_norm", title, fix, on_call(_twice_one), RMS, elsewhere=LOADED)
    for fraction in FRACTIONS:
        title, fix = f"RoPE rotates a fraction of {fraction:g} of each head", "use the config's partial_rotary_factor"
        altered = on_arguments(config=lambda config, fraction=fraction: _with_fraction(config, fraction))
        yield setting(f"rotary_fraction={fraction:g}", "rotary_embedding", title, fix, altered, "rotary.rotation", elsewhere=CONFIGURED)
    title, fix = (
        "attention is scaled by 1 / sqrt(width / heads)",
        "scale by the head size, or by the config's query_pre_attn_scalar",
    )
    place = "config.TransformerConfig.scores"
    yield setting("score_scale=width / heads", "multi_head_attention", title, fix, _scaled_by_width, place, elsewhere=CONFIGURED)
    for name, change in WINDOWS.items():
        title, fix = f"the sliding window is {name}", "use the config's sliding_window"
        yield setting(f"window={name}", "window_mask", title, fix, on_arguments(window=change), elsewhere=CONFIGURED)
    fix = "split the fused kernel in the order query, key, value"
    for order in itertools.permutations(FUSED):
        if order != FUSED:
            words = ", ".join(order)
            title, altered = f"the fused query/key/value kernel is split as {words}", on_arguments(parameters=_split(order))
            yield setting(
                f"fused={' '.join(order)}", "multi_head_attention", title, fix, altered, *SITES, elsewhere=LOADED,
            )  # fmt: skip


def _scaled_by_width(original: Callable, config: Any, layer: Any, causal: bool = False) -> Any:
    return original(config, layer, causal)._replace(scale=(config.model_width // config.heads) ** -0.5)


def _neutral(parameters: Tree) -> Tree:
    return dict(parameters) | {"scale": np.ones_like(parameters["scale"])}


def _twice_one(parameters: Tree, one_plus_scale: bool, **others: Any) -> dict[str, Any]:
    scale = parameters["scale"]
    return {"parameters": dict(parameters) | {"scale": scale + scale.dtype.type(1)}} if one_plus_scale else {}


def _with_fraction(config: Any, fraction: float) -> Any:
    size = int(config.key_size * fraction)
    fits = size >= 2 and size % 2 == 0 and config.rotary_scaling.kind != "longrope"
    return config.replace(rotary_fraction=fraction) if fits else config


def _split(order: tuple[str, ...]) -> Callable[[Tree], Tree]:
    """Splits the columns query | key | value in another order, each at its own width.

    Equal shapes are left to the settings `projections=`.
    """

    def read(parameters: Tree) -> Tree:
        if len({parameters[name]["kernel"].shape[1:] for name in FUSED}) == 1:
            return parameters
        found: dict[str, dict[str, np.ndarray]] = {name: {} for name in FUSED}
        for leaf in parameters["query"]:
            shapes = {name: parameters[name][leaf].shape for name in FUSED}
            outer = len(shapes["query"]) - 2
            fused = np.concatenate([parameters[name][leaf].reshape(*shapes[name][:outer], -1) for name in FUSED], axis=-1)
            widths = [int(np.prod(shapes[name][outer:])) for name in order]
            for name, part in zip(order, np.split(fused, np.cumsum(widths)[:-1], axis=-1), strict=True):
                found[name][leaf] = part.reshape(shapes[name])
        return dict(parameters) | found

    return read


EPSILONS = (1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-12)
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "the square, without ReLU": np.square,
    "leaky ReLU of slope 0.01": lambda x: np.where(x > 0, x, x * x.dtype.type(0.01)),
    "leaky ReLU of slope 0.2": lambda x: np.where(x > 0, x, x * x.dtype.type(0.2)),
    "leaky ReLU of slope 0.3": lambda x: np.where(x > 0, x, x * x.dtype.type(0.3)),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "SELU": lambda x: x.dtype.type(1.0507009873554805) * np.where(x > 0, x, x.dtype.type(1.6732632423543772) * np.expm1(np.minimum(x, 0))),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "squared ReLU": lambda x: np.maximum(x, 0) ** 2,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
    "hard swish": lambda x: x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1),
}
ORDERS = ("key query value", "value key query", "key value query", "value query key")


def all_settings() -> dict[str, Alteration]:
    """Returns the settings by id. A setting that equals the config changes nothing."""
    groups = (
        _norms,
        _activations,
        inputs,
        _attention,
        _biases,
        _layouts,
        orders,
        readings,
        routings,
        precisions,
        losses,
        updates,
        schedules,
        caches,
        choices,
        searches,
        beam_settings,
    )
    return {one.id: one for group in groups for one in group()}


def _norms() -> Iterator[Alteration]:
    for value in EPSILONS:
        fix = "give the norm the config's epsilon"
        yield setting(f"epsilon={value:g}", "layer_norm", f"epsilon is {value:g}", fix, on_arguments(epsilon=value), elsewhere=CONFIGURED)
    title, altered = (
        "epsilon is outside the square root",
        normalised(lambda x, epsilon: np.sqrt(variance(x)) + epsilon),
    )
    yield setting("epsilon=outside the root", "layer_norm", title, "sqrt(variance + epsilon)", altered)
    title, altered = "the variance is divided by d - 1", normalised(lambda x, epsilon: np.sqrt(variance(x, lost=1) + epsilon))
    yield setting("variance=unbiased", "layer_norm", title, "divide the variance by d", altered)
    for name, neutral in (("scale", 1), ("offset", 0)):
        title, altered = f"the norm's {name} is not applied", on_arguments(parameters=_filled(name, neutral))
        yield setting(f"norm.{name}=none", "layer_norm", title, f"apply the norm's {name}", altered, elsewhere=LOADED)
    for stack in ("encoder", "decoder"):
        title = f"only the {stack} has an extra final norm, or lacks it"
        yield setting(f"{stack}.final_norm", stack, title, "use the config's final_norm", other_final_norm, elsewhere=CONFIGURED)


def _filled(name: str, value: float) -> Callable[[Tree], Tree]:
    """Fills one of the parameters with this number."""
    return lambda parameters: dict(parameters) | {name: np.full_like(parameters[name], value)}


def _activations() -> Iterator[Alteration]:
    def of(curve: Callable[[np.ndarray], np.ndarray]) -> Callable:
        return lambda original, x, name: curve(arithmetic.upcast_half(x)).astype(x.dtype, copy=False)

    named = {name: on_arguments(name=name) for name in ACTIVATIONS} | {name: of(curve) for name, curve in CURVES.items()}
    for name, altered in named.items():
        id_ = f"activation={name.lower() if name == 'SiLU' else name}"
        yield setting(id_, "activation", f"the activation is {name}", "use the config's activation", altered, elsewhere=CONFIGURED)
    fix, altered = "use the config's pooler activation", on_arguments(activation_name="tanh")
    yield setting("pooler.activation=tanh", "pooler", "the pooler's activation is tanh", fix, altered, elsewhere=CONFIGURED)


def _attention() -> Iterator[Alteration]:
    def not_a_number(original: Callable, logits: Any, mask: Any = None) -> np.ndarray:
        present = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
        empty = ~(present & ~np.isneginf(logits)).any(axis=-1, keepdims=True)
        return np.where(empty, logits.dtype.type(np.nan), original(logits, mask))

    title, fix = "the target's padding is not masked", "pass the target's padding mask to the decoder's self-attention"
    yield setting("target_mask=none", "decoder_layer", title, fix, on_arguments(self_mask_bhts=None))
    title, fix = "a query that may attend to nothing gives NaN", "set the weights of fully masked rows to zero"
    yield setting("empty rows=NaN", "softmax", title, fix, not_a_number)


def _of_layer(name: str, change: Callable[[Tree], Tree]) -> Callable:
    """Changes the parameters of one layer of a component."""
    return on_arguments(parameters=lambda parameters: dict(parameters) | {name: change(parameters[name])})


def _biases() -> Iterator[Alteration]:
    for name in ("query", "value", "output"):  # a key bias shifts all logits of a query equally and changes no output
        title, altered = f"the {name} projection has no bias", of_projection(without_bias, name)
        fix, place = f"add the {name} bias", "attention.projection"
        yield setting(f"{name}.bias=none", "multi_head_attention", title, fix, altered, place, elsewhere=LOADED)
    fix = "add the biases with axes h k, head first"
    for order, change in (("read size by size, as k h", interleaved), ("flattened size by size, and read as h k", spread)):
        title, altered = f"the query, key and value biases are {order}", of_projection(of_bias(change))
        yield setting(f"projections.bias={order}", "multi_head_attention", title, fix, altered, place, elsewhere=LOADED)
        for name in ("query", "value"):
            title, altered = f"the {name} projection's bias is {order}", of_projection(of_bias(change), name)
            yield setting(f"{name}.bias={order}", "multi_head_attention", title, fix, altered, place, elsewhere=LOADED)
    for name in ("hidden", "output"):
        title, altered = f"the feed-forward's {name} layer has no bias", _of_layer(name, _filled("bias", 0))
        yield setting(f"feed_forward.{name}.bias=none", "feed_forward", title, f"add the {name} bias", altered, elsewhere=LOADED)
    for component in ("pooler", "classifier"):
        altered = on_arguments(parameters=_filled("bias", 0))
        yield setting(f"{component}.bias=none", component, f"the {component} has no bias", "add the bias", altered, elsewhere=LOADED)
    altered = _of_layer("hidden", _filled("bias", 0))
    title, fix = "the masked-language head's hidden layer has no bias", "add the bias of the head's transform"
    yield setting("masked_language_head.hidden.bias=none", "masked_language_head", title, fix, altered, elsewhere=LOADED)


def _layouts() -> Iterator[Alteration]:
    applied = "y = x W, with W of axes (in, out); torch's Linear stores (out, in)"
    for name in PROJECTIONS:
        heads = "merge the heads as h e, head first" if name == "output" else f"split the {name} into heads as h k, head first"
        for layout, change in (("transposed", transposed), ("heads interleaved", interleaved), ("heads spread", spread)):
            title, altered = f"the {name} kernel is read {layout}", of_projection(change, name)
            fix, place = applied if layout == "transposed" else heads, "attention.projection"
            yield setting(f"{name}.kernel={layout}", "multi_head_attention", title, fix, altered, place, elsewhere=LOADED)
    for order in ORDERS:
        title, fix = f"the fused projection is split in the order {order}", "split the fused kernel in the order query, key, value"
        altered = exchanged(FUSED, order.split())
        yield setting(f"projections={order}", "multi_head_attention", title, fix, altered, *SITES, elsewhere=LOADED)
    for name in ("hidden", "output"):
        title, altered = f"the feed-forward's {name} kernel is applied transposed", _of_layer(name, transposed)
        yield setting(f"feed_forward.{name}.kernel=transposed", "feed_forward", title, applied, altered, elsewhere=LOADED)
    for component, name, altered in (
        ("pooler", "pooler", on_arguments(parameters=transposed)),
        ("classifier", "classifier", on_arguments(parameters=transposed)),
        ("masked_language_head", "masked_language_head.hidden", _of_layer("hidden", transposed)),
    ):
        title = f"the kernel of {name} is applied transposed"
        yield setting(f"{name}.kernel=transposed", component, title, applied, altered, elsewhere=LOADED)


def _without_positions(side: str) -> Callable:
    """Leaves the positions out on one side of a model with two stacks."""

    def altered(original: Callable, parameters: Any, config: Any, own: str, *rest: Any) -> np.ndarray:
        if own != side or not (config.encoder_layers and config.decoder_layers):
            return original(parameters, config, own, *rest)
        with patched(dict.fromkeys(POSITIONS, on_result(np.zeros_like))):
            return original(parameters, config, own, *rest)

    return altered


def _default_segment(number: int) -> Callable:
    """Puts every token in this segment if no segments are passed and the segment exists."""

    def altered(original: Callable, config: Any, token: np.ndarray, segment_bt: np.ndarray | None) -> np.ndarray:
        return original(config, token, segment_bt) + number * (segment_bt is None and number < config.segments)

    return altered


def inputs() -> Iterator[Alteration]:
    """Yields the settings of embeddings, positions and segments."""

    def shared(config: Any) -> Any:
        return config.replace(share_embeddings=True) if config.source_vocabulary == config.target_vocabulary else config

    def choice(name: str, component: str, title: str, altered: Callable, *places: str) -> Alteration:
        return setting(
            f"{name}=True", component, title, f"build the model with the config's {name}", altered, *places, elsewhere=CONFIGURED
        )

    yield choice("scale_embedding", "embedding", "embeddings are multiplied by sqrt(d)", on_arguments(scale=True))
    tied = on_arguments(config=lambda config: config.replace(tie_logits=True))
    yield choice("tie_logits", "transformer", "the logits are tied to the target embedding", tied, "transformer.decode")
    sharing = on_arguments(config=shared)
    yield choice("share_embeddings", "transformer", "source and target share one embedding table", sharing, "transformer.decode")
    title, fix = "positions are not added", "add each token's position"
    yield setting("positions=none", "transformer", title, fix, on_result(np.zeros_like), *POSITIONS)
    for side in ("source", "target"):
        altered = _without_positions(side)
        yield setting(
            f"positions=none of the {side}", "transformer", f"positions are not added to the {side}", fix, altered, "inputs.embed"
        )
    title, fix = "positions are counted from 1", "count positions from 0"
    yield setting("positions=1..", "token_positions", title, fix, on_result(lambda position_bt: position_bt + 1))
    title, fix = "segment embeddings are not added", "add the segment embedding, segment 0 by default"
    yield setting("segments=none", "segment_embedding", title, fix, on_result(np.zeros_like))
    title, fix = "the default segment is 1 instead of 0", "use segment 0 for every token if no segments are passed"
    yield setting("segments=1 by default", "segment_embedding", title, fix, _default_segment(1), "inputs.segments")
