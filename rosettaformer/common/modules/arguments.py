"""Assigns inputs to the arguments of a module's call, and recognizes training flags."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

# argument that says whether a call trains -> its value when training
_TRAINS = {
    "train": True, "training": True, "is_training": True, "istraining": True, "is_train": True, "deterministic": False,
    "inference": False, "use_running_average": False,
}  # fmt: skip
_NEVER = {"use_cache": False}  # arguments with a fixed value: a cache would change the next call
# names of the same input in published models
TOKENS = {"input_ids", "token_ids", "tokens", "token", "ids", "inputs", "input", "x", "source", "src", "encoder_token_ids"}
TARGET = {"decoder_input_ids", "decoder_token_ids", "target", "tgt"}
MASK = {"attention_mask", "padding_mask", "input_mask", "token_mask", "encoder_padding_mask", "source_mask_bs"}
TARGET_MASK = {"decoder_attention_mask", "decoder_padding_mask", "target_mask_bt"}
SEGMENTS = {"token_type_ids", "segment_ids", "segments", "type_ids", "segment_bs"}
POSITIONS = {"position_ids", "positions"}
TARGET_POSITIONS = {"decoder_position_ids"}
_BESIDE = (MASK, TARGET_MASK, SEGMENTS, POSITIONS, TARGET_POSITIONS)  # inputs that a model may compute by itself
_SYNONYMS = (TOKENS, TARGET, *_BESIDE, {"pixel_values", "images", "image", "pixels"})
# required argument without an input -> the input with its shape, and its value from that
_FILLED = (
    (MASK, TOKENS, lambda tokens: tokens * 0 + 1),
    (TARGET_MASK, TARGET, lambda tokens: tokens * 0 + 1),
    (SEGMENTS, TOKENS, lambda tokens: tokens * 0),
    (POSITIONS, TOKENS, lambda tokens: tokens * 0 + np.arange(tokens.shape[-1])),
    (TARGET_POSITIONS, TARGET, lambda tokens: tokens * 0 + np.arange(tokens.shape[-1])),
)


def training_flag(name: str, trains: bool) -> bool | None:
    """Returns the value of an argument that says whether a call trains; None for others."""
    flag = _TRAINS.get(name.lower())
    return None if flag is None else flag == trains


def names(function: Callable[..., Any]) -> dict[str, bool]:
    """Returns the arguments that depend on inputs, and whether each is required."""
    return {name: each.default is each.empty for name, each in _parameters(function).items() if _flag(name, False) is None}


def bound(function: Callable[..., Any], inputs: Mapping[str, Any], trains: bool = False) -> dict[str, Any]:
    """Returns the arguments of a call: inputs as in `placed`, training flags, and None if optional.

    Raises ValueError like `placed`.
    """
    parameters, known = _parameters(function), names(function)
    flags = {name: _flag(name, trains) for name in parameters if name not in known}
    optional = {name for name in known if known[name] and "None" in str(parameters[name].annotation)}
    found = placed({name: required and name not in optional for name, required in known.items()}, inputs)
    return dict.fromkeys(optional, None) | found | flags


def placed(known: Mapping[str, bool], inputs: Mapping[str, Any], ordered: bool = True) -> dict[str, Any]:
    """Assigns inputs to a model's arguments: by equal name, by synonym, then in order.

    Inputs in `beside` are dropped. known: the arguments, and whether each is required. A missing
    required mask is all ones, segments are zeros, and positions count from 0. ordered: whether the
    order of arguments is meaningful. Raises ValueError if an input has no argument, or a required
    argument no input.
    """
    found = {name: value for name, value in inputs.items() if name in known}
    left_out = beside(known, inputs)
    waiting = [name for name in inputs if name not in known and name not in left_out]
    for name in [*waiting]:
        if other := next((one for one in known if one not in found and _alike(one, name)), ""):
            found[other] = inputs[name]
            waiting.remove(name)
    free = [name for name in known if name not in found]
    for name in waiting:
        if not free or (len(free) > 1 and not ordered):
            raise ValueError(f"the model has no argument for the input {name}; its arguments are {', '.join(known) or 'none'}")
        found[free.pop(0)] = inputs[name]
    for several, like, filled in _FILLED:
        tokens = next((given for name, given in found.items() if name in like), None)
        if tokens is not None:
            found |= {name: filled(tokens) for name in free if known[name] and name in several}
    if required := [name for name in free if known[name] and name not in found]:
        raise ValueError(f"the model needs the arguments {', '.join(required)}; the inputs are {', '.join(inputs)}")
    return found


def of_decoder(known: Iterable[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Renames inputs for a decoder whose arguments are only the target's tokens and mask.

    known: the model's arguments. For other models, the inputs stay unchanged.
    """
    known = {*known}
    if known & TOKENS or not known & TARGET:
        return inputs
    meant = {
        name: min(known & of_target) for plain, of_target in ((TOKENS, TARGET), (MASK, TARGET_MASK)) if known & of_target for name in plain
    }
    return {meant.get(name, name): value for name, value in inputs.items()}


def masked(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts masks to booleans, True at real elements."""
    masks = {name for name in inputs if name in MASK | TARGET_MASK and "bool" not in str(inputs[name].dtype)}
    return {name: value != 0 if name in masks else value for name, value in inputs.items()}


def beside(known: Iterable[str], inputs: Iterable[str]) -> list[str]:
    """Returns the masks, segments and positions for which a model has no argument."""
    known = [*known]
    return [
        name
        for name in inputs
        if name not in known and any(name in several for several in _BESIDE) and not any(_alike(name, one) for one in known)
    ]


def _alike(one: str, other: str) -> bool:
    return any({one, other} <= several for several in _SYNONYMS)


def _flag(name: str, trains: bool) -> bool | None:
    """Returns the value of an argument that does not depend on inputs; None for others."""
    return _NEVER.get(name, training_flag(name, trains))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds and name != "self"}
