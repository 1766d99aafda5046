"""What the judge calls: every component of the port, built from a config."""

import itertools
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

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
from .cache import decode_in_steps
from .decoding import Searcher
from .dropout import Dropout, Keep
from .embedding import Embedding, Logits, SegmentEmbedding
from .feed_forward import FeedForward, activation
from .framework import device_context
from .heads import Classifier, MaskedLanguageHead, Pooler
from .layers import DecoderLayer, EncoderLayer
from .loss import cross_entropy
from .mask import (
    causal_mask,
    combine_masks,
    padding_mask,
    real_rows,
    token_mask,
    window_mask,
)
from .normalization import norm
from .optimizer import adam, clip_global_norm
from .positional_encoding import PositionEmbedding, positional_encoding, token_positions
from .programs import compiled as program
from .programs.on_mesh import answer, owner
from .programs.sharding import Sharding
from .rotary import Rotation, rotary_embedding, rotations
from .sampling import draw, penalise, truncate
from .schedule import noam
from .softmax import soft_cap, softmax
from .stacks import Decoder, Encoder
from .training import Trainer, moments, with_moments
from .transformer import Transformer, token_embedding
from .values import Drop, Heads, Text
from .weights import TABLE, from_numpy

__all__ = ["call", "compiled", "components", "framework", "modes", "on_mesh", "weights"]

Builder = Callable[[TransformerConfig, Dtype], Callable[..., Any]]


@cache  # of shapes, no arrays; tracing the draws takes half of the Python time of a case
def _abstract(build: Callable[..., nnx.Module], config: TransformerConfig, dtype: np.dtype) -> Any:
    return nnx.split(nnx.eval_shape(lambda: build(config, param_dtype=dtype, rngs=nnx.Rngs(0))))


def blank(build: Callable[..., nnx.Module], config: TransformerConfig, dtype: Dtype) -> Any:
    """A module of zeros: the judge loads the parameters, and random ones need a program a shape."""
    graph, state = _abstract(build, config, jnp.dtype(dtype))
    seeds = itertools.count()

    def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return (
            jax.random.key(next(seeds)) if is_key else from_numpy(np.zeros(leaf.shape, leaf.dtype))
        )

    return nnx.merge(graph, jax.tree.map(filled, state))


def _embedding(config: TransformerConfig, **own: Any) -> Embedding:
    return token_embedding(config, config.source_vocabulary, **own)


def _logits(config: TransformerConfig, **own: Any) -> Logits:
    end = config.output_bias, config.logit_scale, config.logit_cap
    return Logits(config.model_width, config.target_vocabulary, *end, **own)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves padding out of the smallest batch, so that the cases show what large ones have."""
    return program.compiled(function, least=0)


def _adam(
    parameters: Any, gradients: Any, first_moment: Any, second_moment: Any, step: int,
    learning_rate: float, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """`adam` on arrays, by the optimiser that the Trainer has."""
    optimizer = adam(learning_rate, beta_1, beta_2, epsilon, weight_decay)
    state = with_moments(
        optimizer.init(parameters), jnp.asarray(step - 1, jnp.int32), first_moment, second_moment
    )
    updates, state = optimizer.update(gradients, state, parameters)
    return {"parameters": optax.apply_updates(parameters, updates)} | moments(state)


def _search(
    model: Transformer, search: Callable[..., Any], *args: Any, compiled: bool = True, **kwargs: Any
) -> dict[str, jax.Array]:
    return search(Searcher(model, compiled=compiled), *args, **kwargs)


def _initialise(config: TransformerConfig, dtype: Dtype, seed: int) -> dict[str, jax.Array]:
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    return {
        ".".join(map(str, path)): variable[...]
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


def _attention(
    query_bthk: jax.Array, key_bsgk: jax.Array, value_bsge: jax.Array,
    mask_bhts: jax.Array | None = None, bias_bhts: jax.Array | None = None, causal: bool = False,
    return_weights: bool = False, keep_bhts: jax.Array | None = None, dropout_rate: float = 0.0,
    window: int = 0, scale: float | None = None, cap: float | None = None,
) -> Any:  # fmt: skip
    """The attention of a case, and its weights if the case asks for them."""
    heads, scores = Heads(query_bthk, key_bsgk, value_bsge), Scores(scale, cap, window, causal)
    checks.check_attention(*(x.shape for x in heads))
    (batch, target, count, _), source = query_bthk.shape, key_bsgk.shape[1]
    mask_bhts = _one_mask(mask_bhts, bias_bhts, (batch, count, target, source))
    drop = Drop(keep_bhts, dropout_rate)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    if not return_weights:
        return output_bthe
    return output_bthe, attention_weights(query_bthk, key_bsgk, mask_bhts, scores)


def _one_mask(
    mask_bhts: jax.Array | None, bias_bhts: jax.Array | None, shape: tuple[int, ...]
) -> jax.Array | None:
    """The mask and the bias of a case as one mask, floating if there is a bias."""
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), shape)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), shape)
    return mask_bhts if bias_bhts is None else combine_masks(bias_bhts, mask_bhts)


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
        return real_rows(logits_btv, self.token_mask(Text.of(target)))


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
        bias_bhts: jax.Array | None = None, causal: bool = False, return_weights: bool = False,
        keep_bhts: jax.Array | None = None, position_bt: jax.Array | None = None,
    ) -> Any:  # fmt: skip
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        (batch, target, _), source = query_btd.shape, memory_bsd.shape[1]
        shape = batch, self.config.heads, target, source
        mask_bhts = _one_mask(mask_bhts, bias_bhts, shape)
        if causal:
            mask_bhts = combine_masks(mask_bhts, causal_mask(target, source))
        rotation = self.rotation(query_btd, position_bt)
        output_btd = super().__call__(query_btd, memory_bsd, mask_bhts, rotation, keep_bhts)
        if not return_weights:
            return output_btd
        return output_btd, self.weights(self.project(query_btd, memory_bsd, rotation), mask_bhts)


class _EncoderLayer(_First, EncoderLayer):
    def __call__(  # type: ignore[override]
        self, x_btd: jax.Array, mask_bhts: jax.Array | None = None,
        keep: Keep | None = None, position_bt: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        return super().__call__(x_btd, mask_bhts, self.rotation(x_btd, position_bt), keep)


class _DecoderLayer(_First, DecoderLayer):
    def __call__(  # type: ignore[override]
        self, x_btd: jax.Array, memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None, cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None, position_bt: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        given = memory_bsd, self_mask_bhts, cross_mask_bhts, self.rotation(x_btd, position_bt)
        return super().__call__(x_btd, *given, keep)


def _text(inputs: Mapping[str, Any], side: str, axes: str) -> Text | None:
    """A side of a case's input. Raises ValueError on a mask or segments without ids."""
    mask, segment = f"{side}_mask_{axes}", f"segment_{axes}"
    ids, *others = (inputs.get(name) for name in (side, mask, segment))
    if ids is None and any(x is not None for x in others):
        raise ValueError(f"a call without a {side} takes neither {mask} nor {segment}; got one")
    return None if ids is None else Text(ids, *others)


def arguments(component: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
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
        named = "transformer" if whole else component if case.parameters else None
        sharding = Sharding(case.config, case.mesh, case.device, named, axes)
        pulled = case.component.endswith("_vjp")
        given = partial(arguments, component)
        return answer(built, case.inputs, case.parameters, sharding, pulled, given)


def _training_steps(case: Any, axes: AxisType) -> dict[str, np.ndarray]:
    """The losses and the parameters after steps on batches, the first axis of the inputs."""
    inputs = parameters.nest(parameters.flatten(case.inputs))
    recipe, again = Recipe(**inputs["recipe"]), inputs.get("recompute", False)
    given = case.config, recipe, case.parameters
    trainer = type("OnAxes", (Trainer,), {"axes": axes})(
        *given, device=case.device, mesh=case.mesh, recompute=again
    )
    batches = {
        name: inputs[name] for name in ("source", "target", "keep") if inputs.get(name) is not None
    }
    losses = [
        float(trainer.train_step(**{"source": None} | jax.tree.map(lambda x, n=n: x[n], batches)))
        for n in range(len(inputs["target"]))
    ]
    state = {name: array for name, array in trainer.tensors() if name.startswith("parameters.")}
    return {"losses": np.asarray(losses, case.dtype)} | state


# The arguments of calls that take a side of the input as one, of the inputs of a case.
_source = partial(_text, side="source", axes="bs")
_target = partial(_text, side="target", axes="bt")
_SOURCE: dict[str, Any] = {"source": _source, "keep": "keep"}
_LOSS = {"label_b": "label_b", "smoothing": "smoothing", "total": "total"}
call: dict[str, dict[str, Any]] = {
    "transformer": _SOURCE | {"target": _target, "skip_padding": "skip_padding"},
    "pool": _SOURCE,
    "classify": _SOURCE,
    "masked_language_logits": _SOURCE,
    "classification_loss": _SOURCE | _LOSS,
    "states": {"source": _source, "target": _target},
}
_model = partial(blank, Transformer)
framework = "jax"
modes = ("compiled", "eager")
weights = TABLE
components: dict[str, Builder] = {
    "embedding": partial(blank, _embedding),
    "segment_embedding": partial(
        blank, lambda config, **own: SegmentEmbedding(config.segments, config.model_width, **own)
    ),
    "token_positions": lambda config, dtype: partial(token_positions, start=config.position_start),
    "position_embedding": partial(
        blank,
        lambda config, **own: PositionEmbedding(
            config.sizes["p"], config.model_width, config.position_offset, **own
        ),
    ),
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
    "logits": partial(blank, _logits),
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
    "greedy_search": lambda config, dtype: partial(
        _search, _model(config, dtype), Searcher.greedy_search
    ),
    "sample": lambda config, dtype: partial(_search, _model(config, dtype), Searcher.sample),
    "beam_search": lambda config, dtype: partial(
        _search, _model(config, dtype), Searcher.beam_search
    ),
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
