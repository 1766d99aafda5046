"""Known bugs of padding, and of models that pack real tokens (PADDING)."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import mask
from reference_numpy.scores import Scores
from reference_numpy.values import Attending

from ..expectation import calls
from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, bound, called, on_arguments

Change = Callable[[Array, Array, Any], Array]  # (logits with zero padding rows, mask, parameters) -> other logits
MODEL, REAL = "transformer.transformer", "transformer.real_rows"
SKIPPING = f"{calls.__name__}.real_logits"  # the call of a model that skips the target's padding


def _packed(given: Mapping[str, Any], side: str) -> Array | None:
    """Returns the mask `b t` of the tokens packed on this side; None if nothing is packed."""
    if given[side] is None:
        return None
    mask_bt = given[f"{side}_mask_{'bs' if side == 'source' else 'bt'}"]
    mask_bt = mask.token_mask(given[side], given["config"].padding_id) if mask_bt is None else mask_bt
    return mask_bt if mask_bt.any() and not mask_bt.all() else None


def _put(real_nv: Array, mask_bt: Array) -> Array:
    """Restores the packed rows where the mask is True, in order, with zeros elsewhere."""
    rows = np.zeros((*mask_bt.shape, *real_nv.shape[1:]), real_nv.dtype)
    rows[mask_bt] = real_nv
    return rows


def _rows(change: Change) -> Replaces:
    """Changes how the packed logits are restored."""

    def altered(original: Callable, function: Callable, values: Mapping[str, Any]) -> Array:
        logits_btv, mask_bt = original(function, values), _packed(calls.unfolded(values), "target")
        return logits_btv if mask_bt is None else change(logits_btv, mask_bt, values["parameters"])

    return {SKIPPING: altered}


def _first_at_padding(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return np.where(mask_bt[..., None], logits_btv, logits_btv[mask_bt][0])


def _bias_at_padding(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    bias_v = parameters.get("logits", {}).get("bias", logits_btv.dtype.type(0))
    return np.where(mask_bt[..., None], logits_btv, bias_v)


def _at_the_beginning(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return _put(logits_btv[mask_bt], np.arange(mask_bt.shape[1]) < mask_bt.sum(axis=1)[:, None])


def _position_by_position(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return _put(logits_btv[mask_bt], mask_bt.T).swapaxes(0, 1)


def _real(which: Callable[[Array, Any, Array | None], Array]) -> Replaces:
    """Zeros rows by another mask: a function of the target, the padding id and the passed mask."""

    def altered(original: Callable, x_btv: Array, config: Any, target: Array, target_mask_bt: Array | None = None) -> Array:
        return original(x_btv, config, target, which(target, config.padding_id, target_mask_bt))

    return {REAL: altered}


def _other_real(change: Callable[[Array], Array]) -> Replaces:
    """Zeros rows by a function of the correct mask."""
    return _real(lambda target, padding_id, mask_bt: change(mask.token_mask(target, padding_id) if mask_bt is None else mask_bt))


def _within(replacement: Callable[[Mapping[str, Array]], Replaces], *sides: str) -> Replaces:
    """Runs the model with functions replaced depending on the masks of the packed sides."""

    def packing(original: Callable, given: Mapping[str, Any], *sides: str, **values: Any) -> Array:
        packed = {side: mask_bt for side in sides if (mask_bt := _packed(given, side)) is not None}
        with patched(replacement(packed)):
            return original(**values)

    def source(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        return packing(functools.partial(called, original), given, "source", **given)

    def target(original: Callable, function: Callable, values: Mapping[str, Any]) -> Array:
        return packing(original, calls.unfolded(values), *sides, function=function, values=values)

    own = {MODEL: source} if "source" in sides else {}
    return own | ({SKIPPING: target} if "target" in sides else {})


def _in_one_row(packed: Mapping[str, Array]) -> Replaces:
    """Makes packed tokens of all rows attend to each other; causality follows the packed order."""

    def attention(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        x_btd, mask_bt = given["query_btd"], packed.get("target" if given["causal"] else "source")
        if mask_bt is None or x_btd.shape[:2] != mask_bt.shape or given["memory_bsd"] is not x_btd or given["keep_bhts"] is not None:
            return original(*args, **options)
        packed_1nd, attending = x_btd[mask_bt][None], Attending(scores=Scores(causal=given["causal"]))
        return _put(original(given["parameters"], given["config"], packed_1nd, packed_1nd, attending)[0], mask_bt)

    return {"attention.multi_head_attention": attention}


def _counted(packed: Mapping[str, Array]) -> Replaces:
    """Numbers the packed tokens of all rows consecutively."""

    def positions(original: Callable, config: Any, side: str, *rest: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = original(config, side, *rest)
        return mask_bt, np.maximum(np.cumsum(mask_bt) - 1, 0).reshape(mask_bt.shape) if side in packed else position_bt

    return {"inputs.masked_positions": positions}


DECODE = "transformer.decode"
SIDES = ("source", "target")


def _taken(id_: int | None) -> Replaces:
    """Builds masks with this padding id; None for no padding."""
    return {"mask.token_mask": on_arguments(padding_id=id_)}


def _in_models(id_: Callable[[int], int | None], *sides: str, positions: bool = True) -> Replaces:
    """Builds a model's masks on these sides with another id, a function of the vocabulary size.

    positions: whether the positions follow it too.
    """

    def masked(original: Callable, config: Any, side: str, token: Array, mask_bt: Any = None) -> tuple[Array, Array]:
        if mask_bt is not None or side not in sides:
            return original(config, side, token, mask_bt)
        other_bt = mask.token_mask(token, id_(config.source_vocabulary if side == "source" else config.target_vocabulary))
        return original(config, side, token, other_bt) if positions else (other_bt, original(config, side, token)[1])

    def crossing(original: Callable, parameters: Any, config: Any, source: Any, *rest: Any, **options: Any) -> Array:
        given = bound(original, parameters, config, source, *rest, **options)
        if source is None or given["source_mask_bs"] is not None:
            return called(original, **given)

        under = on_arguments(source_mask_bs=mask.token_mask(given["source"], id_(config.source_vocabulary)))
        with patched({DECODE: under}):
            return called(original, **given)

    return {"inputs.masked_positions": masked} | ({"transformer.transformer": crossing} if "source" in sides else {})


def _at(stack: str, id_: int | None, ignoring: bool) -> Replaces:
    """Builds the source mask with this id only in the encoder or only in the cross-attention.

    ignoring: also if a mask is passed.
    """
    argument = {"encoder": "mask_bhts", "decoder": "cross_mask_bhts"}[stack]

    def altered(original: Callable, parameters: Any, config: Any, source: Any, *rest: Any, **options: Any) -> Array:
        given = bound(original, parameters, config, source, *rest, **options)
        if source is None or (given["source_mask_bs"] is not None and not ignoring):
            return called(original, **given)
        other = on_arguments(**{argument: mask.padding_mask(mask.token_mask(given["source"], id_))})
        with patched({f"stacks.{stack}": other}):
            return called(original, **given)

    return {"transformer.transformer": altered}


def _each(id_: int | None) -> Iterator[tuple[str, Replaces]]:
    """Yields variants with this padding id (None: no padding), on one side or both."""
    words = "padding id is assumed to be " + ("unused" if id_ is None else str(id_))
    for side in ("source", "target"):
        yield f"the {side}'s {words}", _in_models(lambda vocabulary: id_, side)
        yield f"the {side}'s {words} in the mask, but not in the positions", _in_models(lambda vocabulary: id_, side, positions=False)
    yield f"the {words} in the masks, but not in the positions", _in_models(lambda vocabulary: id_, *SIDES, positions=False)
    for stack, place in (("encoder", "the encoder's mask"), ("decoder", "the cross-attention's mask")):
        yield f"the source's {words} only in {place}", _at(stack, id_, False)
        yield f"the source's {words} only in {place}, even if a mask is passed", _at(stack, id_, True)


def _zero(y_btd: Array, mask_bt: Array) -> Array:
    return y_btd * mask_bt[..., None].astype(y_btd.dtype)


def _zero_embedding(original: Callable, *args: Any, **options: Any) -> Array:
    given = bound(original, *args, **options)
    return _zero(original(*args, **options), mask.token_mask(given["token"], given["config"].padding_id))


def _zero_logits(original: Callable, *args: Any, **options: Any) -> Array:
    given = bound(original, *args, **options)
    mask_bt = given["target_mask_bt"]
    real_bt = mask.token_mask(given["target"], given["config"].padding_id) if mask_bt is None else mask_bt
    return _zero(original(*args, **options), real_bt)


def _zero_where_hidden(name: str, cross: str = "") -> Callable:
    """Zeros the output at tokens that the mask argument `name` hides as keys.

    cross: the argument that equals query_btd unless the mask belongs to another sequence.
    """

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        y_btd, given = original(*args, **options), bound(original, *args, **options)
        mask_bhts, other = given[name], bool(cross) and given[cross] is not given["query_btd"]
        if other or mask_bhts is None or mask_bhts.shape[1:3] != (1, 1) or mask_bhts.shape[3] != y_btd.shape[1]:
            return y_btd
        return _zero(y_btd, mask_bhts[:, 0, 0])

    return altered


def _logit(value: float) -> Replaces:
    """Sets the padding id's logit to this value."""

    def altered(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> Array:
        logits_btv = original(parameters, config, *rest, **options)
        if config.padding_id is None:
            return logits_btv
        return np.where(np.arange(logits_btv.shape[-1]) == config.padding_id, logits_btv.dtype.type(value), logits_btv)

    return {DECODE: altered}


ALTERED: Altered = {
    "PAD4": _real(lambda target, padding_id, mask_bt: np.ones(target.shape[:2], bool)),
    "PAD5": _rows(_at_the_beginning),
    "PAD6": _other_real(lambda mask_bt: np.pad(mask_bt[:, 1:], ((0, 0), (0, 1)))),
    "PAD7": _real(lambda target, padding_id, mask_bt: mask.token_mask(target, padding_id)),
    "PAD8": _within(_in_one_row, "source"),
    "PAD9": _within(_counted, "source"),
    "PAD1": _taken(0),
    "PAD2": {"inputs.summed": _zero_embedding},
    "PAD3": _logit(-np.inf),
}
VARIANTS: Variants = {
    "PAD4": {
        "padding rows of the logits repeat the first real token's row": _rows(_first_at_padding),
        "padding rows of the logits hold the bias": _rows(_bias_at_padding),
    },
    "PAD5": {"packed rows are restored position by position instead of row by row": _rows(_position_by_position)},
    "PAD6": {
        "the zero rows are those after padding": _other_real(
            lambda mask_bt: np.pad(mask_bt[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        )
    },
    "PAD7": {
        "id 0 decides which rows are zeros although a mask is passed": _real(lambda target, padding_id, given: mask.token_mask(target, 0))
    },
    "PAD8": {
        "packed target tokens attend to tokens of other rows": _within(_in_one_row, "target"),
        "packed source and target tokens attend to tokens of other rows": _within(_in_one_row, "source", "target"),
    },
    "PAD9": {
        "positions count the packed target tokens": _within(_counted, "target"),
        "positions count the packed source and target tokens": _within(_counted, "source", "target"),
    },
    "PAD1": {
        "the padding id is assumed to be unused": _taken(None),
        **{f"the padding id is assumed to be {id_}": _taken(id_) for id_ in (1, 2, 3)},
        "the padding id is assumed to be the last id of the vocabulary": _in_models(lambda vocabulary: vocabulary - 1, *SIDES),
        **dict(_each(0)),
        **dict(_each(None)),
        **dict(_each(1)),
    },
    "PAD2": {
        "the self-attention's output is zero at padding": {"attention.multi_head_attention": _zero_where_hidden("mask_bhts", "memory_bsd")},
        "the layers' output is zero at padding": {
            "layers.encoder_layer": _zero_where_hidden("mask_bhts"),
            "layers.decoder_layer": _zero_where_hidden("self_mask_bhts"),
        },
        "the logits are zero at padding": {DECODE: _zero_logits},
    },
    "PAD3": {"the padding id's logit is -1e9": _logit(-1e9), "the padding id's logit is 0": _logit(0.0)},
}
