"""What the judge calls: every component of the port, built from a config."""

import itertools
from collections.abc import Callable, Mapping
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

from .attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from .decoding import Searcher
from .dropout import Dropout, Keep
from .embedding import Logits, SegmentEmbedding
from .feed_forward import FeedForward, activation
from .framework import device_context
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import position_embedding, token_embedding
from .layers import DecoderLayer, EncoderLayer
from .loss import cross_entropy
from .mask import causal_mask, combine_masks, padding_mask, real_rows, token_mask, window_mask
from .normalization import norm
from .optimizer import adam, clip_global_norm
from .positional_encoding import positional_encoding, token_positions
from .programs import compiled as program
from .programs.on_mesh import answer, owner
from .programs.sharding import Sharding, named
from .programs.static_cache import decode_in_steps
from .rotary import Rotation, rotary_embedding, rotations
from .sampling import draw, penalise, truncate
from .schedule import noam
from .softmax import soft_cap, softmax
from .stacks import Decoder, Encoder
from .training import Trainer, moments
from .transformer import Transformer
from .values import Drop, Heads, Text
from .weights import TABLE, from_numpy

__all__ = ["call", "compiled", "components", "framework", "modes", "on_mesh", "weights"]

Module = TypeVar("Module", bound=nnx.Module)
Result = TypeVar("Result")
Inputs = Mapping[str, Any]  # of a case, by name
Row = dict[str, Any]  # own argument -> input, or a function of all inputs


@cache  # of shapes, no arrays; tracing the draws takes half of the Python time of a case
def _abstract(
    build: Callable[..., Module], config: TransformerConfig, dtype: np.dtype
) -> tuple[nnx.GraphDef[Module], nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: build(config, param_dtype=dtype, rngs=nnx.Rngs(0))))


def blank(build: Callable[..., Module], config: TransformerConfig, dtype: Dtype) -> Module:
    """A module of zeros: the judge loads the parameters, and random ones need a program a shape."""
    graph, state = _abstract(build, config, jnp.dtype(dtype))
    seeds = itertools.count()

    def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(next(seeds))
        return from_numpy(np.zeros(leaf.shape, leaf.dtype))

    return nnx.merge(graph, jax.tree.map(filled, state))


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Leaves padding out of the smallest batch, so that the cases show what large ones have."""
    return program.compiled(function, least=0)


def _adam(
    parameters: optax.Params, gradients: optax.Updates, first_moment: optax.Updates,
    second_moment: optax.Updates, step: int, **choices: float,
) -> dict[str, optax.Params]:  # fmt: skip
    """A step of the optimiser that the Trainer has. choices: the arguments of `adam`."""
    optimizer = adam(**choices)
    held = {"mu": first_moment, "nu": second_moment, "count": jnp.asarray(step - 1, jnp.int32)}
    state = optax.tree.set(optimizer.init(parameters), **held)
    updates, state = optimizer.update(gradients, state, parameters)
    return {"parameters": optax.apply_updates(parameters, updates)} | moments(state)


def _searching(
    method: Callable[..., Result], config: TransformerConfig, dtype: Dtype
) -> Callable[..., Result]:
    def search(model: Transformer, compiled: bool = True, **inputs: Any) -> Result:
        return method(Searcher(model, compiled=compiled), **inputs)

    return partial(search, blank(Transformer, config, dtype))


def _initialise(config: TransformerConfig, dtype: Dtype, seed: int) -> dict[str, jax.Array]:
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    return named(nnx.state(model, nnx.Param))


def _attention(
    heads: Heads, mask_bhts: jax.Array | None, scores: Scores, keep_bhts: jax.Array | None = None,
    dropout_rate: float = 0.0, return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
    """The attention of a case, and its weights if the case asks for them."""
    drop = Drop(keep_bhts, dropout_rate)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    if not return_weights:
        return output_bthe
    return output_bthe, attention_weights(heads.query_bthk, heads.key_bsgk, mask_bhts, scores)


class _Whole(Transformer):
    """A model, whose call may be asked for zeros in the place of the logits at padding."""

    def __call__(
        self,
        source: Text | jax.Array | None,
        target: Text | jax.Array | None = None,
        keep: Keep | None = None,
        skip_padding: bool = False,
    ) -> jax.Array:
        logits_btv = super().__call__(source, target, keep)
        if not skip_padding:
            return logits_btv
        return real_rows(logits_btv, Text.of(target).real(self.config.padding_id))


class _First(nnx.Module):
    """A part of the first layer of a case, which is given the positions of its tokens."""

    def __init__(self, config: TransformerConfig, **own: Any) -> None:
        super().__init__(config, **own)  # type: ignore[call-arg]
        self.config = config

    def rotation(self, x_btd: jax.Array, position_bt: jax.Array | None) -> Rotation | None:
        """By default token t has position t."""
        # Vectors of other axes are refused by the call.
        return rotations(self.config, [0], x_btd, position_bt)[0] if x_btd.ndim == 3 else None


class _Attention(_First, MultiHeadAttention):
    def __call__(  # type: ignore[override]
        self, query_btd: jax.Array, memory_bsd: jax.Array, mask_bhts: jax.Array | None = None,
        return_weights: bool = False, keep_bhts: jax.Array | None = None,
        position_bt: jax.Array | None = None,
    ) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
        rotation = self.rotation(query_btd, position_bt)
        output_btd = super().__call__(query_btd, memory_bsd, mask_bhts, rotation, keep_bhts)
        if not return_weights:
            return output_btd
        return output_btd, self.weights(self.project(query_btd, memory_bsd, rotation), mask_bhts)


class _Layer(_First):
    def __call__(
        self, x_btd: jax.Array, *, position_bt: jax.Array | None = None, **inputs: Any
    ) -> jax.Array:
        rotation = self.rotation(x_btd, position_bt)
        return super().__call__(x_btd, rotation=rotation, **inputs)  # type: ignore[misc]


class _EncoderLayer(_Layer, EncoderLayer):  # type: ignore[misc]
    pass


class _DecoderLayer(_Layer, DecoderLayer):  # type: ignore[misc]
    pass


def _heads(inputs: Inputs) -> Heads:
    return Heads(inputs["query_bthk"], inputs["key_bsgk"], inputs["value_bsge"])


def _scores(inputs: Inputs) -> Scores:
    given = (name for name in ("scale", "cap", "window", "causal") if name in inputs)
    return Scores(**{name: inputs[name] for name in given})


def _mask(inputs: Inputs, shape: tuple[int | None, ...]) -> jax.Array | None:
    """The mask and the bias of a case as one mask, floating if there is a bias.

    shape: `b h t s`; None: the attention checks this axis.
    """
    mask_bhts, bias_bhts = inputs.get("mask_bhts"), inputs.get("bias_bhts")
    if bias_bhts is None:
        return mask_bhts
    checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), shape)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), shape)
    return combine_masks(bias_bhts, mask_bhts)


def _mask_of_heads(inputs: Inputs) -> jax.Array | None:
    (batch, target, count), source = inputs["query_bthk"].shape[:3], inputs["key_bsgk"].shape[1]
    return _mask(inputs, (batch, count, target, source))


def _mask_of_vectors(inputs: Inputs) -> jax.Array | None:
    """With causality, which the first layer of a case lacks."""
    (batch, target), source = inputs["query_btd"].shape[:2], inputs["memory_bsd"].shape[1]
    mask_bhts = _mask(inputs, (batch, None, target, source))
    if not inputs.get("causal"):
        return mask_bhts
    return combine_masks(mask_bhts, causal_mask(target, source))


def _text(inputs: Inputs, side: str, axes: str) -> Text | None:
    """A side of a model's input. Raises ValueError on a mask or segments without ids."""
    mask, segment = f"{side}_mask_{axes}", f"segment_{axes}"
    ids, *others = (inputs.get(name) for name in (side, mask, segment))
    if ids is None and any(x is not None for x in others):
        raise ValueError(f"a call without a {side} takes neither {mask} nor {segment}; got one")
    return None if ids is None else Text(ids, *others)


def arguments(component: str, inputs: Inputs) -> Inputs:
    """The arguments of a component's call, of the inputs of a case."""
    if component not in call:
        return inputs
    return {
        name: what(inputs) if callable(what) else inputs[what]
        for name, what in call[component].items()
        if callable(what) or what in inputs
    }


def on_mesh(case: Any, axes: AxisType = AxisType.Auto) -> Any:
    """What the component gives, or its gradients, computed on the mesh of the case: NumPy arrays.

    axes: of the mesh of devices.
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
    """The losses and the parameters after steps on batches, the first axis of the inputs."""
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


# The arguments of calls that take values, such as a side of the input, of the inputs of a case.
_source = partial(_text, side="source", axes="bs")
_target = partial(_text, side="target", axes="bt")
_SOURCE: Row = {"source": _source, "keep": "keep"}
_LOSS: Row = {"label_b": "label_b", "smoothing": "smoothing", "total": "total"}
call: dict[str, Row] = {
    "scaled_dot_product_attention": {
        "heads": _heads, "mask_bhts": _mask_of_heads, "scores": _scores, "keep_bhts": "keep_bhts",
        "dropout_rate": "dropout_rate", "return_weights": "return_weights",
    },
    "multi_head_attention": {
        "query_btd": "query_btd", "memory_bsd": "memory_bsd", "mask_bhts": _mask_of_vectors,
        "return_weights": "return_weights", "keep_bhts": "keep_bhts", "position_bt": "position_bt",
    },
    "transformer": _SOURCE | {"target": _target, "skip_padding": "skip_padding"},
    "pool": _SOURCE,
    "classify": _SOURCE,
    "masked_language_logits": _SOURCE,
    "classification_loss": _SOURCE | _LOSS,
    "states": {"source": _source, "target": _target},
}  # fmt: skip
_model = partial(blank, Transformer)
framework = "jax"
modes = ("compiled", "eager")
weights = TABLE
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
    "padding_mask": lambda config, dtype: padding_mask,
    "causal_mask": lambda config, dtype: causal_mask,
    "combine_masks": lambda config, dtype: combine_masks,
    "window_mask": lambda config, dtype: window_mask,
    "softmax": lambda config, dtype: softmax,
    "soft_cap": lambda config, dtype: soft_cap,
    "scaled_dot_product_attention": lambda config, dtype: _attention,
    "multi_head_attention": partial(blank, _Attention),
    "activation": lambda config, dtype: partial(activation, name=config.activation),
    "feed_forward": partial(blank, FeedForward),
    "layer_norm": lambda config, dtype: norm(config.replace(norm="layer"), param_dtype=dtype),
    "rms_norm": lambda config, dtype: norm(config.replace(norm="rms"), param_dtype=dtype),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate),
    "encoder_layer": partial(blank, _EncoderLayer),
    "decoder_layer": partial(blank, _DecoderLayer),
    "encoder": partial(blank, Encoder),
    "decoder": partial(blank, Decoder),
    "logits": partial(blank, lambda config, **own: Logits(config, config.target_vocabulary, **own)),
    "pooler": partial(blank, Pooler),
    "classifier": partial(blank, Classifier),
    "masked_language_head": partial(blank, MaskedLanguageHead),
    "transformer": partial(blank, _Whole),
    "pool": lambda config, dtype: _model(config, dtype).pool,
    "classify": lambda config, dtype: _model(config, dtype).classify,
    "masked_language_logits": lambda config, dtype: _model(config, dtype).masked_language_logits,
    "states": lambda config, dtype: _model(config, dtype).states,
    "decode_in_steps": lambda config, dtype: partial(decode_in_steps, _model(config, dtype)),
    "penalise": lambda config, dtype: penalise,
    "truncate": lambda config, dtype: truncate,
    "draw": lambda config, dtype: draw,
    "greedy_search": partial(_searching, Searcher.greedy_search),
    "sample": partial(_searching, Searcher.sample),
    "beam_search": partial(_searching, Searcher.beam_search),
    "cross_entropy": lambda config, dtype: cross_entropy,
    "training_loss": lambda config, dtype: _model(config, dtype).training_loss,
    "classification_loss": lambda config, dtype: _model(config, dtype).classification_loss,
    "adam": lambda config, dtype: _adam,
    "clip_global_norm": lambda config, dtype: clip_global_norm,
    "noam": lambda config, dtype: partial(noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(_initialise, config, dtype),
    "random_dropout": lambda config, dtype: (
        lambda x, seed: Dropout(config.dropout_rate, rngs=nnx.Rngs(seed))(x)
    ),
}
