"""Settings on which ports differ without being wrong: what a port may do although its config says otherwise.

Each is an alteration of the reference like those of the catalogue. Diagnosis tries them where no defect explains an output.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from . import Defect
from .normalization import centred, normalised
from .training_settings import training_settings
from .transformer import other_final_norm

__all__ = ["all_settings"]

EPSILONS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-12)
PROJECTIONS = {"query": "btd,dhk->bthk", "key": "bsd,dgk->bsgk", "value": "bsd,dge->bsge", "output": "bthe,hed->btd"}
ORDERS = ("key query value", "value key query", "key value query", "value query key")


def all_settings() -> dict[str, Defect]:
    """The settings by id. A setting that the config already has alters nothing."""
    settings = [*_norms(), *_activations(), *_embeddings(), *_masks(), *_attention(), *_biases(), *_layouts(), *training_settings()]
    return {setting.id: setting for setting in settings}


def _setting(id_: str, component: str, title: str, fix: str, place: str, altered: Callable, *others: str) -> Defect:
    fixes = dict.fromkeys(("torch", "tf", "jax"), fix)
    replaces = dict.fromkeys((place, *others), altered)
    return Defect(id=id_, title=title, component=component, what=title, shows="", fix=fixes, evidence="", replaces=replaces)


def _norms() -> Iterator[Defect]:
    for value in EPSILONS:

        def with_epsilon(original: Callable, parameters: Any, x_btd: Any, epsilon: float, value: float = value) -> np.ndarray:
            return original(parameters, x_btd, value)

        fix = "give the norm the config's epsilon"
        yield _setting(f"epsilon={value:g}", "layer_norm", f"epsilon is {value:g}", fix, "normalization.layer_norm", with_epsilon)
    for id_, title, fix, formula in (
        ("epsilon=outside the root", "epsilon is added to the deviation, not to the variance", "sqrt(variance + epsilon)", _outside),
        ("variance=unbiased", "the variance is divided by d - 1", "divide the variance by d", _unbiased),
    ):
        yield _setting(id_, "layer_norm", title, fix, "normalization.layer_norm", normalised(formula))
    for name, neutral in (("scale", 1), ("offset", 0)):

        def without(
            original: Callable, parameters: Any, x_btd: Any, epsilon: float, name: str = name, neutral: int = neutral
        ) -> np.ndarray:
            return original(dict(parameters) | {name: np.full_like(parameters[name], neutral)}, x_btd, epsilon)

        title = f"the norm's {name} is not applied"
        yield _setting(f"norm.{name}=none", "layer_norm", title, f"load the norm's {name}", "normalization.layer_norm", without)
    for stack in ("encoder", "decoder"):
        title = f"the {stack} alone has a final norm where the config has none, or lacks it"
        yield _setting(f"{stack}.final_norm", stack, title, "set final_norm as the config", f"stacks.{stack}", other_final_norm)


def _outside(x: np.ndarray, epsilon: Any) -> np.ndarray:
    x_centred = centred(x)
    return arithmetic.divide(x_centred, np.sqrt(arithmetic.mean(x_centred * x_centred, -1)) + epsilon)


def _unbiased(x: np.ndarray, epsilon: Any) -> np.ndarray:
    x_centred = centred(x)
    variance = arithmetic.divide(arithmetic.sum(x_centred * x_centred, -1), x.dtype.type(x.shape[-1] - 1))
    return arithmetic.divide(x_centred, np.sqrt(variance + epsilon))


def _activations() -> Iterator[Defect]:
    for value in ("relu", "gelu_erf", "gelu_tanh"):

        def activation(original: Callable, x: Any, name: str, value: str = value) -> np.ndarray:
            return original(x, value)

        title = f"the activation is {value}"
        yield _setting(f"activation={value}", "activation", title, "use the config's activation", "feed_forward.activation", activation)

    def silu(original: Callable, x: Any, name: str) -> np.ndarray:
        return x / (1 + np.exp(-x))

    yield _setting(
        "activation=silu", "activation", "the activation is SiLU", "use the config's activation", "feed_forward.activation", silu
    )


def _embeddings() -> Iterator[Defect]:
    def scaled(original: Callable, parameters: Any, token: Any, scale: bool) -> np.ndarray:
        return original(parameters, token, True)

    def tied(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
        return original(parameters, config.replace(tie_logits=True), *rest, **options)

    def shared(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
        if config.source_vocabulary != config.target_vocabulary:
            return original(parameters, config, *rest, **options)
        return original(parameters, config.replace(share_embeddings=True), *rest, **options)

    def nowhere(original: Callable, *arguments: Any, **options: Any) -> np.ndarray:
        return np.zeros_like(original(*arguments, **options))

    def from_one(original: Callable, mask_bt: Any) -> np.ndarray:
        return original(mask_bt) + 1

    config = "build the model with the config's"
    yield _setting(
        "scale_embedding=True", "embedding", "embeddings are multiplied by sqrt(d)", f"{config} scale", "embedding.embedding", scaled
    )
    yield _setting("tie_logits=True", "transformer", "the logits use the target table", f"{config} tie_logits", "transformer.decode", tied)
    title = "the target embedding is the source table"
    yield _setting("share_embeddings=True", "transformer", title, f"{config} share_embeddings", "transformer.decode", shared)
    place = "positional_encoding.positional_encoding"
    yield _setting("positions=none", "positional_encoding", "positions are not added", "add the positional encoding", place, nowhere)
    place = "positional_encoding.token_positions"
    yield _setting("positions=1..", "token_positions", "positions are counted from 1", "count positions from 0", place, from_one)


def _masks() -> Iterator[Defect]:
    def everything(original: Callable, target_length: int, source_length: int) -> np.ndarray:
        return np.ones_like(original(target_length, source_length))

    def target_unmasked(
        original: Callable,
        parameters: Any,
        config: Any,
        x_btd: Any,
        memory_bsd: Any,
        self_mask_bhts: Any = None,
        *rest: Any,
        **options: Any,
    ) -> np.ndarray:
        return original(parameters, config, x_btd, memory_bsd, None, *rest, **options)

    yield _setting("causal=False", "causal_mask", "no causal mask", "mask later targets in the decoder", "mask.causal_mask", everything)
    title, fix = "the target's padding is not masked", "give the decoder's self-attention the target's padding mask"
    yield _setting("target_mask=none", "decoder_layer", title, fix, "layers.decoder_layer", target_unmasked)

    def not_a_number(original: Callable, logits: Any, mask: Any = None) -> np.ndarray:
        present = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
        empty = ~(present & ~np.isneginf(logits)).any(axis=-1, keepdims=True)
        return np.where(empty, logits.dtype.type(np.nan), original(logits, mask))

    title, fix = "a query that may attend to nothing gives NaN", "replace the weights of such a row by zeros"
    yield _setting("empty rows=NaN", "softmax", title, fix, "softmax.softmax", not_a_number)


def _attention() -> Iterator[Defect]:
    def scaled_in_float32(original: Callable, query_bthk: Any, *rest: Any, **options: Any) -> Any:
        scale = query_bthk.shape[-1] ** -0.5
        return original(query_bthk * query_bthk.dtype.type(float(np.float32(scale)) / scale), *rest, **options)

    title, fix = "the scale is rounded to float32", "compute the scale in the dtype of the query"
    place = "attention.scaled_dot_product_attention"
    yield _setting("scale=float32", "scaled_dot_product_attention", title, fix, place, scaled_in_float32)


def _biases() -> Iterator[Defect]:
    for name, subscripts in PROJECTIONS.items():
        if name == "key":  # a bias of the keys moves all logits of a query alike, and no output
            continue

        def unbiased(original: Callable, given: str, parameters: Any, x: Any, subscripts: str = subscripts) -> np.ndarray:
            return original(given, {"kernel": parameters["kernel"]} if given == subscripts else parameters, x)

        title = f"the {name} projection has no bias"
        yield _setting(f"{name}.bias=none", "multi_head_attention", title, f"load the {name} bias", "attention._projection", unbiased)
    for name in ("hidden", "output"):

        def without(original: Callable, parameters: Any, *rest: Any, name: str = name, **options: Any) -> np.ndarray:
            layer = dict(parameters[name]) | {"bias": np.zeros_like(parameters[name]["bias"])}
            return original(dict(parameters) | {name: layer}, *rest, **options)

        title = f"the feed-forward's {name} layer has no bias"
        yield _setting(
            f"feed_forward.{name}.bias=none", "feed_forward", title, f"load the {name} bias", "feed_forward.feed_forward", without
        )

    def logits(original: Callable, parameters: Any, x_btd: Any) -> np.ndarray:
        return original({"kernel": parameters["kernel"]}, x_btd)

    yield _setting("logits.bias=none", "logits", "the logits have no bias", "load the logits bias", "embedding.logits", logits)


def _layouts() -> Iterator[Defect]:
    for name, subscripts in PROJECTIONS.items():
        for layout, change in (("transposed", _transposed), ("heads interleaved", _interleaved)):

            def altered(original: Callable, given: str, parameters: Any, x: Any, subscripts: str = subscripts, change: Any = change) -> Any:
                return original(given, change(parameters, given == PROJECTIONS["output"]) if given == subscripts else parameters, x)

            title = f"the {name} kernel is read {layout}"
            fix = f"declare the axes of the {name} kernel in the weight table"
            yield _setting(f"{name}.kernel={layout}", "multi_head_attention", title, fix, "attention._projection", altered)
    for order in ORDERS:
        title, fix = f"the fused projection is read in the order {order}", "split the fused kernel in the order query, key, value"
        yield _setting(
            f"projections={order}", "multi_head_attention", title, fix, "attention.multi_head_attention", _in_order(order.split())
        )
    for name in ("hidden", "output"):

        def network(original: Callable, parameters: Any, *rest: Any, name: str = name, **options: Any) -> np.ndarray:
            return original(dict(parameters) | {name: _transposed(parameters[name], False)}, *rest, **options)

        title, fix = f"the feed-forward's {name} kernel is read transposed", "transpose the kernel in the weight table"
        yield _setting(f"feed_forward.{name}.kernel=transposed", "feed_forward", title, fix, "feed_forward.feed_forward", network)


def _transposed(parameters: Mapping[str, np.ndarray], output: bool) -> dict[str, np.ndarray]:
    """A kernel stored with its outputs first and read, by its bytes, with its inputs first; a square one is transposed."""
    kernel = parameters["kernel"]
    inputs = kernel.ndim - 1 if output else 1
    stored = np.moveaxis(kernel, range(inputs), range(-inputs, 0))
    return dict(parameters) | {"kernel": np.ascontiguousarray(stored).reshape(kernel.shape)}


def _interleaved(parameters: Mapping[str, np.ndarray], output: bool) -> dict[str, np.ndarray]:
    """Heads before sizes, read as sizes before heads: `d (k h)` for `d (h k)`; biases too."""
    kernel = parameters["kernel"]
    if output:
        heads, size, width = kernel.shape
        return dict(parameters) | {"kernel": kernel.reshape(size, heads, width).swapaxes(0, 1)}
    width, heads, size = kernel.shape
    altered = dict(parameters) | {"kernel": kernel.reshape(width, size, heads).swapaxes(1, 2)}
    if "bias" in parameters:
        altered["bias"] = parameters["bias"].reshape(size, heads).T
    return altered


def _in_order(order: list[str]) -> Callable:
    def altered(original: Callable, parameters: Any, *rest: Any, **options: Any) -> Any:
        shapes = {parameters[name]["kernel"].shape for name in order}
        if len(shapes) > 1:
            return original(parameters, *rest, **options)
        moved = {name: parameters[other] for name, other in zip(("query", "key", "value"), order, strict=True)}
        return original(dict(parameters) | moved, *rest, **options)

    return altered
