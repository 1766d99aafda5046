"""Finds a property that separates failing cases: an argument, a size, a setting, an input."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from reference_numpy import parameters
from reference_numpy.strategy import Strategy

from ...case import Case
from ...expectation.components import config_arguments, forward_of, model_of, signature_of

AXES = {"b": "batch", "t": "target length", "s": "source length", "n": "number of tokens", "d": "model_width", "h": "heads",
        "g": "key_value_heads", "k": "key_size", "e": "value_size", "f": "feed_forward_width", "v": "vocabulary",
        "x": "experts", "m": "expert_width", "w": "shared_width",
        "r": "model_width", "p": "rows of positions", "a": "segments", "c": "classes"}  # fmt: skip
LENGTHS = ("target length", "source length", "number of tokens")
COUNTS = ("batch", *LENGTHS)  # sizes for which a bound is more likely than oddness
SHOWN = 3  # properties of one kind reported at most
TOKENS = {"source": "source length", "target": "target length", "token": "target length"}  # the name of their second axis


def condition(failed: Sequence[Case], answered: Sequence[Case]) -> str:
    """Returns where a port fails, such as `only where batch is 1` or `not where batch is 2`; empty
    if nothing separates the cases.

    The property holds for all cases on one side and for none on the other. Only the simplest kind
    is reported: a number is passed at all, a size or a setting has one value, an input is passed, a
    length exceeds a limit of the config, a length or the batch has a bound, a size is odd, sizes
    are equal, another bound, one number exceeds another. All properties of that kind are reported,
    up to SHOWN, since the cases do not tell them apart.
    """
    if not failed or not answered:
        return ""
    numbers = [_sizes(case) | _numbers(case) for case in (*failed, *answered)]
    described = [_properties(case, numbers) for case in (*failed, *answered)]
    inside, outside = described[: len(failed)], described[len(failed) :]
    found = [(rank, "only", words) for words, rank in inside[0].items() if _separates(words, inside, outside)]
    found += [(rank, "not", words) for words, rank in outside[0].items() if _separates(words, outside, inside)]
    if not found:
        return ""
    simplest = min(found, key=lambda one: one[0])[:2]
    return f"{simplest[1]} where {' and '.join([words for *kind, words in found if tuple(kind) == simplest][:SHOWN])}"


def _separates(words: str, inside: Sequence[dict[str, int]], outside: Sequence[dict[str, int]]) -> bool:
    return all(words in one for one in inside) and not any(words in one for one in outside)


def _properties(case: Case, all_numbers: Sequence[dict[str, float]]) -> dict[str, int]:
    """All properties of a case in words, each with the rank of its kind, simplest first."""
    sizes, numbers = _sizes(case), _numbers(case)
    return {words: rank for rank, kind in reversed([*enumerate((
        [*(f"{name} is given" for name in _options(case)), *_steps(case)],
        [f"{name} is {value}" for name, value in (sizes | _settings(case)).items()],
        [f"{name} is given" for name in _given(case)],
        [f"{length} is above {limit}" for limit, most in _limits(case).items() for length in LENGTHS if sizes.get(length, 0) > most],
        [*_bounds(case, {name: sizes[name] for name in COUNTS if name in sizes}, all_numbers)],
        [f"{name} is odd" for name, size in sizes.items() if size % 2],
        [f"{one} equals {other}" for one, other in itertools.combinations(sorted(sizes), 2) if sizes[one] == sizes[other]],
        [*_bounds(case, sizes | numbers, all_numbers)],
        [f"{one} is above {other}" for one, other in itertools.permutations(numbers, 2) if numbers[one] > numbers[other]],
    ))]) for words in kind}  # fmt: skip


def _bounds(case: Case, own: dict[str, float], all_numbers: Sequence[dict[str, float]]) -> Iterator[str]:
    """The bounds that the case's numbers reach, among the values in all cases."""
    for name, number in own.items():
        for bound in sorted({other[name] for other in all_numbers if name in other}):
            if number >= bound:
                yield f"{name} is at least {bound}"


def _limits(case: Case) -> dict[str, int]:
    """The lengths in the config beyond which a model changes its behavior."""
    original = case.config.rotary_scaling.original_length
    found = {"the window": case.config.window, "the original length of the positions": original}
    return {name: length for name, length in found.items() if length}


def _numbers(case: Case) -> dict[str, float]:
    """The numeric arguments by name; the largest for a vector of integers without an axis."""
    found: dict[str, float] = {}
    for name, value in case.inputs.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[_own(name)] = value
        elif isinstance(value, np.ndarray) and value.ndim == 1 and value.size and value.dtype.kind in "iu" and "_" not in name:
            found[_own(name)] = int(value.max())
    return found


def _options(case: Case) -> Iterator[str]:
    """The numeric arguments that differ from their default, or from 0 without a default."""
    declared = {name: one.default for name, one in signature_of(case.component).parameters.items()}
    declared |= {field.name: field.default for field in dataclasses.fields(Strategy)}
    for name, value in _numbers(case).items():
        default = declared.get(name)
        if value != (default if isinstance(default, int | float) else 0):
            yield name


def _own(name: str) -> str:
    """The name of an argument without the name of its mapping."""
    return name.rpartition(".")[2]


def _steps(case: Case) -> Iterator[str]:
    """Properties of the step lengths in which a target is decoded."""
    first, *later = case.inputs.get("splits") or (1,)
    if later:
        yield "there is more than one step"
    if max(first, *later, 1) > 1:
        yield "a step is longer than one token"
    if max(later, default=1) > 1:
        yield "a step after the first is longer than one token"


def _settings(case: Case) -> dict[str, Any]:
    """The scalar arguments and config settings; dropout rates only if masks are passed."""
    arguments = {_own(name): value for name, value in case.inputs.items() if isinstance(value, bool | int | float | str)}
    choices = {name: value for name, value in dataclasses.asdict(case.config).items() if isinstance(value, bool | float | str)}
    evaluated = "keep" not in _given(case)
    return arguments | {name: value for name, value in choices.items() if not (evaluated and name.endswith("dropout_rate"))}


def _sizes(case: Case) -> dict[str, int]:
    """The sizes of the axes of inputs and parameters, and the numbers of layers."""
    sizes: dict[str, int] = {}
    for name, value in case.inputs.items():
        letters = name.rpartition("_")[2]
        if not isinstance(value, np.ndarray) or value.dtype.kind == "b":  # an axis of a mask may be 1 and broadcast
            continue
        if name in TOKENS:
            sizes |= {"batch": value.shape[0], TOKENS[name]: value.shape[1]}
        elif len(letters) == value.ndim:
            sizes |= {AXES[letter]: size for letter, size in zip(letters, value.shape, strict=True)}
        else:
            sizes |= {f"axis {axis} of {name}": size for axis, size in enumerate(value.shape)}
    taken = config_arguments(case.component, case.config, case.dtype)  # by the component's function from the config
    return sizes | {name: value for name, value in taken.items() if type(value) is int} | _config_sizes(case)


def _config_sizes(case: Case) -> dict[str, int]:
    """The sizes in the config that occur in the component's parameters."""
    if not case.parameters:
        return {}
    names = parameters.axes(case.config, model_of(forward_of(case.component) or case.component))
    letters = {letter for axes in names.values() for letter in axes.split()}
    sizes = {AXES[letter]: size for letter, size in case.config.sizes.items() if letter in letters}
    stacks = (stack for stack in ("encoder", "decoder") if any(f"{stack}.layers." in f"{case.component}.{name}" for name in names))
    return sizes | {f"{stack}_layers": getattr(case.config, f"{stack}_layers") for stack in stacks}


def _given(case: Case) -> list[str]:
    """The inputs that are passed, except numbers; dropout masks count as one."""
    given = [
        name for name, value in case.inputs.items() if value is not None and (isinstance(value, bool) or not isinstance(value, int | float))
    ]
    return ["keep" if name.startswith("keep.") else name for name in given]
