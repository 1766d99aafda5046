"""The components that the judge calls, by name; each is built from a config."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.typing import Dtype
from jax.sharding import AxisType

from reference_numpy import TransformerConfig, checks, parameters
from reference_numpy.recipe import Recipe
from reference_numpy.scores import Scores

from . import cache as steps
from .attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from .decoding import Searcher
from .dropout import Dropout, Keep
from .embedding import Logits, SegmentEmbedding
from .experts import MixtureOfExperts, Router
from .feed_forward import FeedForward, activation
from .framework import bucket, device_context
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import position_embedding, token_embedding
from .layers import DecoderLayer, EncoderLayer
from .loss import cross_entropy, router_loss
from .mask import causal_mask, combine_masks, padding_mask, real_rows, token_mask, window_mask
from .normalization import norm
from .optimizer import adam, clip_global_norm
from .positional_encoding import positional_encoding, token_positions
from .programs import compiled as program
from .programs import static_cache
from .programs.on_mesh import answer, owner
from .programs.sharding import Sharding, named
from .rotary import rotary_embedding, rotation
from .sampling import draw, penalise, truncate
from .schedule import noam
from .softmax import soft_cap, softmax
from .stacks import Decoder, Encoder
from .training import Trainer, moments
from .transformer import Transformer
from .values import Drop, Heads, Mask, Text
from .weights import TABLE, from_numpy

__all__ = ["call", "compiled", "components", "framework", "modes", "on_mesh", "weights"]

Module = TypeVar("Module", bound=nnx.Module)
Result = TypeVar("Result")
Inputs = Mapping[str, Any]  # inputs of a case, by name
Row = dict[str, Any]  # own argument -> input, or a function of all inputs


@cache  # shapes only; tracing the draws would take half of a case's Python time
def _abstract(
    build: Callable[..., Module], config: TransformerConfig, dtype: np.dtype
) -> tuple[nnx.GraphDef[Module], nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: build(config, param_dtype=dtype, rngs=nnx.Rngs(0))))


def blank(build: Callable[..., Module], config: TransformerConfig, dtype: Dtype) -> Module:
    """Returns a module of zeros, since the judge loads parameters; random ones compile programs."""
    graph, state = _abstract(build, config, jnp.dtype(dtype))
    seeds = itertools.count()

    def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(next(seeds))
        return from_numpy(np.zeros(leaf.shape, leaf.dtype))

    return nnx.merge(graph, jax.tree.map(filled, state))


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Skips padding in even the smallest batch, so that the cases cover what large batches do."""
    return program.compiled(function, least=0)


def _adam(
    parameters: optax.Params, gradients: optax.Updates, first_moment: optax.Updates,
    second_moment: optax.Updates, step: int, **choices: float,
) -> dict[str, optax.Params]:  # fmt: skip
    """Takes one step of the training optimizer. choices: the arguments of `adam`."""
    optimizer = adam(**choices)
    held = {"mu": first_moment, "nu": second_moment, "count": jnp.asarray(step - 1, jnp.int32)}
    state = optax.tree.set(optimizer.init(parameters), **held)
    updates, state = optimizer.update(gradients, state, parameters)
    return {"parameters": optax.apply_updates(parameters, updates)} | moments(state)


def _search(
    model: Transformer, search: Callable[..., Result], compiled: bool = True, **inputs: Any
) -> Result:
    return search(Searcher(model, compiled=compiled), **inputs)


_start_cache = jax.jit(static_cache.start_cache, static_argnames=("batch", "length"))
_decode_step = jax.jit(static_cache.decode_step, donate_argnames="cache")


def _in_steps(
    model: Transformer, target: jax.Array, memory_bsd: jax.Array | None, splits: Sequence[int],
    source_mask_bs: jax.Array | None = None, target_mask_bt: jax.Array | None = None,
    compiled: bool = True,
) -> jax.Array:  # fmt: skip
    """compiled: uses a cache of fixed shapes, and one program for each step length."""
    if not compiled:
        given = target, memory_bsd, splits, source_mask_bs, target_mask_bt
        return steps.decode_in_steps(model, *given)
    model.check_ids(target=target)
    checks.check_length(target.shape[1], model.config.max_positions)
    batch, room = len(target) if memory_bsd is None else None, bucket(target.shape[1])
    cache, logits = _start_cache(model, memory_bsd, source_mask_bs, batch, length=room), []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, cache = _decode_step(model, part.ids, cache, part.mask)
        logits.append(logits_btv)
    return jnp.concatenate(logits, axis=1)


def _initialise(config: TransformerConfig, dtype: Dtype, seed: int) -> dict[str, jax.Array]:
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    return named(nnx.state(model, nnx.Param))


def _attention(
    heads: Heads, mask_bhts: jax.Array | None, scores: Scores, keep_bhts: jax.Array | None = None,
    dropout_rate: float = 0.0, return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
    """Computes the attention of a case and, if requested, its weights."""
    drop = Drop(keep_bhts, dropout_rate)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    if not return_weights:
        return output_bthe
    query_bthk, key_bsgk, _, sink_h = heads
    return output_bthe, attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)


class _Whole(Transformer):
    """A model whose call can zero the logits at padding."""

    def __call__(
        self,
        source: Text | jax.Array | None,
        target: Text | jax.Array | None = None,
        keep: Keep | None = None,
        routed: list[jax.Array] | None = None,
        skip_padding: bool = False,
    ) -> jax.Array:
        logits_btv = super().__call__(source, target, keep, routed)
        if not skip_padding:
            return logits_btv
        return real_rows(logits_btv, Text.of(target).real(self.config.padding_id))


class _First(nnx.Module):
    """Part of a first layer that takes positions as an argument; default, token t is at t."""

    project: Callable[..., Heads]  # methods of an attention
    weights: Callable[..., jax.Array]

    def __init__(self, config: TransformerConfig, **own: Any) -> None:
        super().__init__(config, **own)  # type: ignore[call-arg]
        self.config = config

    def __call__(
        self, x_btd: jax.Array, memory_bsd: jax.Array | None = None, *, mask_bhts: Mask = None,
        self_mask_bhts: Mask = None, cross_mask_bhts: Mask = None, keep: Keep | None = None,
        keep_bhts: Mask = None, position_bt: jax.Array | None = None, return_weights: bool = False,
    ) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
        inputs = {
            "memory_bsd": memory_bsd, "mask_bhts": mask_bhts, "self_mask_bhts": self_mask_bhts,
            "cross_mask_bhts": cross_mask_bhts, "keep": keep, "keep_bhts": keep_bhts,
        }  # fmt: skip
        inputs = {name: value for name, value in inputs.items() if value is not None}
        kind, turned = self.config.layer_kind(0), None
        if kind.rotary and x_btd.ndim == 3:  # the call rejects vectors with other axes
            place_bt = jnp.arange(x_btd.shape[1])[None] if position_bt is None else position_bt
            turned = rotation(self.config, kind, place_bt, x_btd.dtype)
        output_btd = super().__call__(x_btd, rotation=turned, **inputs)  # type: ignore[misc]
        if not return_weights:
            return output_btd
        return output_btd, self.weights(self.project(x_btd, memory_bsd, turned), mask_bhts)


def _first(kind: type[nnx.Module]) -> Callable[..., Callable[..., Any]]:
    return partial(blank, type(kind.__name__, (_First, kind), {}))


def _heads(inputs: Inputs) -> Heads:
    names = "query_bthk", "key_bsgk", "value_bsge", "sink_h"
    return Heads(*map(inputs.get, names))  # type: ignore[arg-type]


def _scores(inputs: Inputs) -> Scores:
    given = (name for name in ("scale", "cap", "window", "causal") if name in inputs)
    return Scores(**{name: inputs[name] for name in given})


def _mask(inputs: Inputs) -> jax.Array | None:
    """Merges the mask and bias of a case; floating if there is a bias. For vectors also adds
    causality, which the first layer of a case lacks.
    """
    of_heads = "query_bthk" in inputs
    query, key = ("query_bthk", "key_bsgk") if of_heads else ("query_btd", "memory_bsd")
    (batch, target, *heads), source = inputs[query].shape[:-1], inputs[key].shape[1]
    mask_bhts, bias_bhts = inputs.get("mask_bhts"), inputs.get("bias_bhts")
    if bias_bhts is not None:
        shape = batch, heads[0] if heads else None, target, source  # None: the attention checks it
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), shape)
        if mask_bhts is not None:
            checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), shape)
        mask_bhts = combine_masks(bias_bhts, mask_bhts)
    if of_heads or not inputs.get("causal"):
        return mask_bhts
    return combine_masks(mask_bhts, causal_mask(target, source))


def _text(inputs: Inputs, side: str, axes: str) -> Text | None:
    """Returns a side of a model's input. Raises ValueError on a mask or segments without ids."""
    mask, segment = f"{side}_mask_{axes}", f"segment_{axes}"
    ids, *others = (inputs.get(name) for name in (side, mask, segment))
    if ids is None and any(x is not None for x in others):
        raise ValueError(f"a call without a {side} takes neither {mask} nor {segment}; got one")
    return None if ids is None else Text(ids, *others)


def arguments(component: str, inputs: Inputs) -> Inputs:
    """Maps the inputs of a case to the arguments of the component's call."""
    if component not in call:
        return inputs
    return {
        name: what(inputs) if callable(what) else inputs[what]
        for name, what in call[component].items()
        if callable(what) or what in inputs
    }


def on_mesh(case: Any, axes: AxisType = AxisType.Auto) -> Any:
    """Computes a component, or its gradients, on the mesh of the case; returns NumPy arrays.

    axes: axis type of the mesh.
    """
    component = case.component.removesuffix("_vjp")
    with device_context(case.device, case.dtype):
        if component == "training_steps":
            return _training_steps(case, axes)
        built = components[component](case.config, jnp.dtype(case.dtype))
        whole = isinstance(owner(built), Transformer)
        of = "transformer" if whole else component if case.parameters else None
        sharding = Sharding(case.config, case.mesh, case.device, of, axes)
        given = partial(arguments, component)
        return answer(built, case.inputs, case.parameters, sharding, given)


def _training_steps(case: Any, axes: AxisType) -> dict[str, np.ndarray]:
    """Returns losses and parameters after steps on batches, the first axis of the inputs."""
    inputs = parameters.nest(parameters.flatten(case.inputs))
    recipe, recompute = Recipe(**inputs["recipe"]), inputs.get("recompute", False)
    setting = {"device": case.device, "mesh": case.mesh, "recompute": recompute}
    kind = type("OnAxes", (Trainer,), {"axes": axes})
    trainer, losses = kind(case.config, recipe, case.parameters, **setting), []
    for n, target in enumerate(inputs["target"]):
        source, keep = jax.tree.map(lambda x, n=n: x[n], (inputs.get("source"), inputs.get("keep")))
        losses.append(float(trainer.train_step(source, target, keep)))
    state = {name: array for name, array in trainer.tensors() if name.startswith("parameters.")}
    return {"losses": np.asarray(losses, case.dtype)} | state


# Call arguments that combine inputs of a case, such as one side of a model's input.
_SOURCE: Row = {"source": partial(_text, side="source", axes="bs"), "keep": "keep"}
_TARGET: Row = {"target": partial(_text, side="target", axes="bt")}
_ALONE = ("keep_bhts", "return_weights")
call: dict[str, Row] = {
    "scaled_dot_product_attention": {
        "heads": _heads, "mask_bhts": _mask, "scores": _scores, "dropout_rate": "dropout_rate",
    } | {name: name for name in _ALONE},
    "multi_head_attention": {
        "x_btd": "query_btd", "memory_bsd": "memory_bsd", "mask_bhts": _mask,
        "position_bt": "position_bt",
    } | {name: name for name in _ALONE},
    "transformer": _SOURCE | _TARGET | {"skip_padding": "skip_padding"},
    "pool": _SOURCE,
    "classify": _SOURCE,
    "masked_language_logits": _SOURCE,
    "classification_loss": _SOURCE | {x: x for x in ("label_b", "smoothing", "total")},
    "states": {"source": _SOURCE["source"]} | _TARGET,
}  # fmt: skip
framework = "jax"
modes = ("compiled", "eager")
weights = TABLE
_ALWAYS = (
    padding_mask, causal_mask, combine_masks, window_mask, softmax, soft_cap, penalise, truncate,
    draw, cross_entropy, clip_global_norm,
)  # fmt: skip
_OF_MODELS = (
    Transformer.pool, Transformer.classify, Transformer.masked_language_logits, Transformer.states,
    Transformer.training_loss, Transformer.classification_loss,
)  # fmt: skip
components: dict[str, Callable[[TransformerConfig, Dtype], Callable[..., Any]]] = {
    "embedding": partial(
        blank, lambda config, **own: token_embedding(config, config.source_vocabulary, **own)
    ),
    "segment_embedding": partial(
        blank, lambda config, **own: SegmentEmbedding(config.segments, config.model_width, **own)
    ),
    "token_positions": lambda config, dtype: partial(token_positions, start=config.position_start),
    "position_embedding": partial(blank, position_embedding),  # type: ignore[dict-item, type-var]
    "positional_encoding": lambda config, dtype: partial(
        positional_encoding, width=config.model_width, dtype=dtype, layout=config.sinusoid_layout
    ),
    "rotary_embedding": lambda config, dtype: partial(rotary_embedding, config=config),
    "token_mask": lambda config, dtype: partial(token_mask, padding_id=config.padding_id),
    "scaled_dot_product_attention": lambda config, dtype: _attention,
    "multi_head_attention": _first(MultiHeadAttention),
    "activation": lambda config, dtype: partial(activation, name=config.activation),
    "feed_forward": partial(blank, FeedForward),
    "router": partial(blank, Router),
    "router_loss": lambda config, dtype: partial(router_loss, per_token=config.experts_per_token),
    "mixture_of_experts": partial(blank, MixtureOfExperts),
    "layer_norm": lambda config, dtype: norm(config.replace(norm="layer"), param_dtype=dtype),
    "rms_norm": lambda config, dtype: norm(config.replace(norm="rms"), param_dtype=dtype),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate),
    "encoder_layer": _first(EncoderLayer),
    "decoder_layer": _first(DecoderLayer),
    "encoder": partial(blank, Encoder),
    "decoder": partial(blank, Decoder),
    "logits": partial(blank, lambda config, **own: Logits(config, config.target_vocabulary, **own)),
    "pooler": partial(blank, Pooler),
    "classifier": partial(blank, Classifier),
    "masked_language_head": partial(blank, MaskedLanguageHead),
    "transformer": partial(blank, _Whole),
    "decode_in_steps": lambda *of: partial(_in_steps, blank(Transformer, *of)),
    "adam": lambda config, dtype: _adam,
    "noam": lambda config, dtype: partial(noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(_initialise, config, dtype),
    "random_dropout": lambda config, dtype: (
        lambda x, seed: Dropout(config.dropout_rate, rngs=nnx.Rngs(seed))(x)
    ),
}
components |= {own.__name__: lambda *_, own=own: own for own in _ALWAYS}
components |= {
    own.__name__: lambda *of, name=own.__name__: getattr(blank(Transformer, *of), name)
    for own in _OF_MODELS
}
components |= {
    own.__name__: lambda *of, own=own: partial(_search, blank(Transformer, *of), search=own)
    for own in (Searcher.greedy_search, Searcher.sample, Searcher.beam_search)
}
