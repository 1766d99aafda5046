"""Runs a model without padding: finds the tokens worth keeping, and computes only those."""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf

from reference_numpy import checks
from reference_numpy import parameters as canonical

from .. import loss, mask
from ..dropout import Keep, part
from ..framework import attached_mask, other_layers, sizes
from ..inputs import checked_texts, real_tokens, texts
from ..kernels.unpadding import PaddedMask, Tokens, counted, pad, unpad
from ..transformer import Transformer
from ..values import Ids, Text

__all__ = ["LEAST", "STEPS", "Sides", "Unpadded", "of_forward", "of_loss", "unpadded"]

LEAST = 16384  # saved positions times model width; saving less costs as much as it gains
SHARE = 16  # unpadding must save at least one in 16 positions
STEPS = 16  # a side has at most 16 lengths, each with its own graph

P = ParamSpec("P")
R = TypeVar("R")


class Sides(NamedTuple):
    """The source and target tokens that a model runs on; None: all positions of that side."""

    source: Tokens | None = None
    target: Tokens | None = None


class Unpadded(Generic[P, R]):
    """A Transformer, or its `training_loss`, that skips padding; other functions are unchanged.

    A call finds the tokens on the host (`tokens`) and runs the model on them (`run`, which may be
    traced). Rows are kept if ids or masks have no values, if less than `least` (default LEAST) is
    saved, and in a model with layers of other packages. Calls of a Transformer accept
    skip_padding=True: the logits of target padding are zeros (PADDING).
    """

    _model: Transformer
    _find: Callable[..., Sides] | None = None

    def __init__(self, function: Callable[P, R], least: int | None = None) -> None:
        self._function, self._least = function, least
        method, owner = (getattr(function, name, None) for name in ("__func__", "__self__"))
        if isinstance(function, Transformer):
            self._model, self._find = function, of_forward
        elif isinstance(owner, Transformer) and method is Transformer.training_loss:
            self._model, self._find = owner, of_loss

    def tokens(self, *arguments: P.args, **keywords: P.kwargs) -> Sides | None:
        """Returns the tokens that a call with these arguments needs; None: all."""
        if self._find is None or self._model.config.rotary_by_length:
            return None
        least = LEAST if self._least is None else self._least
        sides = self._find(self._model, least, *arguments, **keywords)
        return sides if any(side is not None for side in sides) else None

    def run(self, sides: Sides | None, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Runs the function with the other arguments on the tokens of these sides only."""
        function, whole = self._function, isinstance(self._function, Transformer)
        if whole and (sides is not None or keywords.get("skip_padding")):
            function = partial(self._forward, sides)
        elif sides is not None:
            function = partial(self._training_loss, sides)
        elif whole:
            keywords.pop("skip_padding", None)
        return function(*arguments, **keywords)

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self.run(self.tokens(*arguments, **keywords), *arguments, **keywords)

    def _forward(
        self,
        sides: Sides | None,
        source: Ids | None = None,
        target: Ids | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        skip_padding: bool = False,
    ) -> tf.Tensor:
        """`model(...)`, with zero logits at skipped target positions."""
        source, target = checked_texts(self._model.config, source, target)
        if sides is None or target is None:
            logits_btv = self._model(source, target, keep=keep, training=training)
        else:
            logits_1nv, tokens = _logits(self._model, sides, source, target, keep, training)
            logits_btv = pad(logits_1nv, tokens)
            skip_padding &= tokens.index_n is None  # other rows are already zero
        if not skip_padding or target is None:
            return logits_btv
        mask_bt = real_tokens(self._model.config, target)
        return logits_btv if mask_bt is None else mask.real_rows(logits_btv, mask_bt)

    def _training_loss(
        self,
        sides: Sides,
        source: Ids | None,
        target: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`model.training_loss(...)`."""
        model, (input_bt, label_bt) = self._model, loss.teacher_forcing(target)
        source, _ = checked_texts(model.config, source, input_bt)
        logits_1nv, tokens = _logits(model, sides, source, Text(input_bt), keep, training)
        mask_1n = counted(mask.token_mask(label_bt, model.config.padding_id), tokens)
        logits_1nv = tf.cast(logits_1nv, model.variable_dtype)
        return loss.cross_entropy(logits_1nv, unpad(label_bt, tokens), mask_1n, smoothing, total)


unpadded = Unpadded  # the name in the other packages


def of_forward(
    model: Transformer,
    least: int,
    source: Ids | None = None,
    target: Ids | None = None,
    *_: object,
    skip_padding: bool = False,
    **__: object,
) -> Sides:
    """Returns the tokens of a model call: of the source, since nothing attends to its padding, and
    with skip_padding of the target. An encoder-only model keeps its rows.
    """
    if not model.config.decoder_layers:
        return Sides()
    source, target = texts(model.config, source, target)
    masks = (_real(model, least, text) for text in (source, target if skip_padding else None))
    return Sides(*(_tokens(mask_bt, _steps(model, least, mask_bt)) for mask_bt in masks))


def of_loss(
    model: Transformer,
    least: int,
    source: Ids | None,
    target: tf.Tensor,
    *_: object,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
    **__: object,
) -> Sides:
    """Returns the tokens of `training_loss`; of the target, those that a counted label depends on:
    its position, and the real tokens before it in its row.

    Both sides skip the same share of positions, so that a shape of rows has few graphs, which
    compile slowly; a side that saves too little keeps all positions, and so does a loss with
    weights of routers.
    """
    if router_aux_weight or router_z_weight:
        return Sides()
    of_source, of_target = (_real(model, least, Text.of(side)) for side in (source, target))
    if of_target is not None:
        label_bt = of_target[:, 1:]
        later_bt = np.logical_or.accumulate(label_bt[:, ::-1], axis=1)[:, ::-1]
        of_target = (label_bt | of_target[:, :-1]) & later_bt
    masks = of_source, of_target
    steps = [_steps(model, least, mask_bt) for mask_bt in masks]
    pairs = zip(masks, steps, strict=True)
    return Sides(*(_tokens(mask_bt, own and max(steps)) for mask_bt, own in pairs))


def _logits(
    model: Transformer,
    sides: Sides,
    source: Text | None,
    target: Text,
    keep: Keep | None,
    training: bool | None,
) -> tuple[tf.Tensor, Tokens]:
    """Returns the logits of target tokens, `1 n v`, and these tokens."""
    if not model.built:
        model.build()

    def flat(
        side: str, text: Text, tokens: Tokens
    ) -> tuple[tf.Tensor, PaddedMask, Keep | None, tf.Tensor]:
        """Returns the input of a stack, its self-attention mask, keep masks and positions."""
        text = Text(*(None if x is None else tf.convert_to_tensor(x) for x in text))
        x_btd, mask_bhts, position_bt = model.embed(side, text, keep, training)
        layers = part(keep, "encoder" if side == "source" else "decoder", "layers")
        kept = None if layers is None else {"layers": _kept(layers, tokens)}
        if position_bt is None:
            position_bt = tf.broadcast_to(tf.range(sizes(x_btd)[1]), sizes(x_btd)[:2])
        flat_mask = PaddedMask(mask_bhts, tokens, tokens)
        return unpad(x_btd, tokens), flat_mask, kept, unpad(position_bt, tokens)

    tokens, memory_1md, cross_mask = sides.target or _all(target.ids), None, None
    if source is not None:
        of_source = sides.source or _all(source.ids)
        x_1md, self_mask, kept, position_1m = flat("source", source, of_source)
        memory_1md = model.encoder(x_1md, self_mask, kept, position_1m, training=training)
        cross_mask = PaddedMask(self_mask.mask_bhts, tokens, of_source)
    x_1nd, self_mask, kept, position_1n = flat("target", target, tokens)
    x_1nd = model.decoder(
        x_1nd, memory_1md, self_mask, cross_mask, kept, position_1n, training=training
    )
    return model.head(x_1nd), tokens


def _kept(keep: Keep, tokens: Tokens) -> Keep:
    """Flattens keep masks of layers, except those of attention weights, `b h t s`."""
    flat = canonical.flatten(keep)
    for site, drop in flat.items():
        if not site.endswith("weights_dropout"):
            rows = (*tokens.mask_bt.shape, *(drop.shape[-1:] or (1,)))
            checks.check_keep(drop.shape, tf.as_dtype(drop.dtype).name, rows, 0.0)
            flat[site] = unpad(tf.broadcast_to(drop, rows), tokens)
    return canonical.nest(flat)


def _all(token: tf.Tensor) -> Tokens:
    """Returns all positions of these ids as flat tokens."""
    return Tokens(None, None, tf.ones(sizes(token)[:2], tf.bool))


def _real(model: Transformer, least: int, text: Text | None) -> np.ndarray | None:
    """Returns which tokens are real; None if unknown, or if too little could be saved."""
    if text is None or text.ids is None:
        return None
    token, mask_bt, _ = text
    if tf.is_symbolic_tensor(token if mask_bt is None else mask_bt) or token.ndim < 2:
        return None
    if np.prod(token.shape[:2]) * model.config.model_width < least:
        return None
    if mask_bt is not None:
        mask_bt = np.asarray(mask_bt)
        fits = mask_bt.dtype == bool and mask_bt.shape == tuple(token.shape[:2])
        return mask_bt if fits else None
    padding_id = model.config.padding_id
    if padding_id is None or token.ndim != 2 or attached_mask(token) is not None:
        return None
    return np.asarray(token) != padding_id


def _steps(model: Transformer, least: int, mask_bt: np.ndarray | None) -> int:
    """Returns the length of the flat tokens in steps of `_step`; 0 if too little is saved."""
    if mask_bt is None or not mask_bt.size:
        return 0
    step = _step(mask_bt)
    steps = max(1, -(-int(np.count_nonzero(mask_bt)) // step))
    saved = mask_bt.size - steps * step
    if saved * SHARE < mask_bt.size or saved * model.config.model_width < least:
        return 0
    # A layer of another package may look at neighboring tokens.
    return 0 if other_layers(model) else steps


def _step(mask_bt: np.ndarray) -> int:
    return -(-mask_bt.size // STEPS)


def _tokens(mask_bt: np.ndarray | None, steps: int) -> Tokens | None:
    if mask_bt is None or not steps:
        return None
    place_m = np.flatnonzero(mask_bt)
    index_n = np.zeros(steps * _step(mask_bt), np.int32)
    index_n[: len(place_m)] = place_m
    place_bt = np.zeros(mask_bt.shape, np.int32)
    place_bt[mask_bt] = np.arange(len(place_m))
    return Tokens(tf.constant(index_n), tf.constant(place_bt), tf.constant(mask_bt))
