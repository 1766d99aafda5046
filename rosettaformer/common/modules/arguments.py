"""The arguments of a module's call: by name, and those that say whether it trains."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

# an argument that says whether a call trains -> its value if it does
_TRAINS = {
    "train": True, "training": True, "is_training": True, "istraining": True, "is_train": True, "deterministic": False,
    "inference": False, "use_running_average": False,
}  # fmt: skip
_NEVER = {"use_cache": False}  # arguments that have one value in every call: a cache would make a second call another one
# what published models call the same input
TOKENS = {"input_ids", "token_ids", "tokens", "token", "ids", "inputs", "input", "x", "source", "src", "encoder_token_ids"}
TARGET = {"decoder_input_ids", "decoder_token_ids", "target", "tgt"}
MASK = {"attention_mask", "padding_mask", "input_mask", "token_mask", "encoder_padding_mask", "source_mask_bs"}
TARGET_MASK = {"decoder_attention_mask", "decoder_padding_mask", "target_mask_bt"}
SEGMENTS = {"token_type_ids", "segment_ids", "segments", "type_ids", "segment_bs"}
POSITIONS = {"position_ids", "positions"}
TARGET_POSITIONS = {"decoder_position_ids"}
_BESIDE = (MASK, TARGET_MASK, SEGMENTS, POSITIONS, TARGET_POSITIONS)  # what a model may have no argument for, since it makes its own
_SYNONYMS = (TOKENS, TARGET, *_BESIDE, {"pixel_values", "images", "image", "pixels"})
# an input that a model requires and nobody gives -> the input whose shape it has, and its value made of that
_FILLED = (
    (MASK, TOKENS, lambda tokens: tokens * 0 + 1),
    (TARGET_MASK, TARGET, lambda tokens: tokens * 0 + 1),
    (SEGMENTS, TOKENS, lambda tokens: tokens * 0),
    (POSITIONS, TOKENS, lambda tokens: tokens * 0 + np.arange(tokens.shape[-1])),
    (TARGET_POSITIONS, TARGET, lambda tokens: tokens * 0 + np.arange(tokens.shape[-1])),
)


def training_flag(name: str, trains: bool) -> bool | None:
    """Returns the value of an argument that says whether a call trains; None if it is no such argument."""
    flag = _TRAINS.get(name.lower())
    return None if flag is None else flag == trains


def names(function: Callable[..., Any]) -> dict[str, bool]:
    """Returns the arguments by name, and whether each has no default; those whose value does not depend on the inputs are left out."""
    return {name: each.default is each.empty for name, each in _parameters(function).items() if _flag(name, False) is None}


def bound(function: Callable[..., Any], inputs: Mapping[str, Any], trains: bool = False) -> dict[str, Any]:
    """Returns the arguments of a call: the inputs as `placed` places them, what says whether the call trains, and None for what may be.

    Raises ValueError as `placed`.
    """
    parameters, known = _parameters(function), names(function)
    flags = {name: _flag(name, trains) for name in parameters if name not in known}
    optional = {name for name in known if known[name] and "None" in str(parameters[name].annotation)}
    found = placed({name: required and name not in optional for name, required in known.items()}, inputs)
    return dict.fromkeys(optional, None) | found | flags


def placed(known: Mapping[str, bool], inputs: Mapping[str, Any], ordered: bool = True) -> dict[str, Any]:
    """Returns the inputs by the names of a model's arguments: those of the same name, those that mean the same, such as `input_ids` and
    `token_ids`, and the others in their order in the places that are left. What is `beside` is left out.

    known: the arguments, and whether each is required. A mask that is required and not given is all ones, segments are all zeros, and
    positions count from 0. ordered: whether the order of the arguments means anything. Raises ValueError if an input has no place, or an
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
    """Returns the inputs by the names of a decoder alone, which calls its tokens and their mask the target's; of another model as they
    are. known: the model's arguments.
    """
    known = {*known}
    if known & TOKENS or not known & TARGET:
        return inputs
    meant = {
        name: min(known & of_target) for plain, of_target in ((TOKENS, TARGET), (MASK, TARGET_MASK)) if known & of_target for name in plain
    }
    return {meant.get(name, name): value for name, value in inputs.items()}


def masked(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs with masks that are true at what counts."""
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
    """Returns the value of an argument that does not depend on the inputs; None if it is no such argument."""
    return _NEVER.get(name, training_flag(name, trains))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds and name != "self"}
