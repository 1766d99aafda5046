"""What the cases that a port fails have in common, and no case that it answers has: an argument, a size, a setting, an input."""

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
        "r": "model_width", "p": "rows of positions", "a": "segments", "c": "classes"}  # fmt: skip
LENGTHS = ("target length", "source length", "number of tokens")
COUNTS = ("batch", *LENGTHS)  # sizes of which a bound is likelier than that they are odd
SHOWN = 3  # properties of one kind that are reported
TOKENS = {"source": "source length", "target": "target length", "token": "target length"}  # their axes: b, and this one


def condition(failed: Sequence[Case], answered: Sequence[Case]) -> str:
    """Where a port fails, `only where batch is 1` or `not where batch is 2`: a property that all the cases on one side have and none on
    the other. Empty where there is none, or a side has no cases.

    The simplest kind is reported: a number that is given at all, a size or a setting that is one
    value, an input that is given, a length above a limit of the config, a bound of a length or of
    the batch, an odd size, equal sizes, another bound, one number above another. Of one kind all
    are, up to SHOWN, since the cases do not tell which it is.
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
    """Everything that can be said of a case, in words, and how simple each is."""
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
    """The bounds that the case's own numbers reach, of those that the numbers of all cases are."""
    for name, number in own.items():
        for bound in sorted({other[name] for other in all_numbers if name in other}):
            if number >= bound:
                yield f"{name} is at least {bound}"


def _limits(case: Case) -> dict[str, int]:
    """The lengths that the config names, from which on a model does something else."""
    original = case.config.rotary_scaling.original_length
    found = {"the window": case.config.window, "the original length of the positions": original}
    return {name: length for name, length in found.items() if length}


def _numbers(case: Case) -> dict[str, float]:
    """The arguments that are numbers, by their own names; of a row of whole numbers that has no letter of an axis the largest."""
    found: dict[str, float] = {}
    for name, value in case.inputs.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[_own(name)] = value
        elif isinstance(value, np.ndarray) and value.ndim == 1 and value.size and value.dtype.kind in "iu" and "_" not in name:
            found[_own(name)] = int(value.max())
    return found


def _options(case: Case) -> Iterator[str]:
    """The numbers that are given: neither what the function takes without them, nor 0 where it needs one."""
    declared = {name: one.default for name, one in signature_of(case.component).parameters.items()}
    declared |= {field.name: field.default for field in dataclasses.fields(Strategy)}
    for name, value in _numbers(case).items():
        default = declared.get(name)
        if value != (default if isinstance(default, int | float) else 0):
            yield name


def _own(name: str) -> str:
    """The name of an argument without that of the mapping that holds it."""
    return name.rpartition(".")[2]


def _steps(case: Case) -> Iterator[str]:
    """What can be said of the lengths of the steps in which a target is decoded."""
    first, *later = case.inputs.get("splits") or (1,)
    if later:
        yield "there is more than one step"
    if max(first, *later, 1) > 1:
        yield "a step is longer than one token"
    if max(later, default=1) > 1:
        yield "a step after the first is longer than one token"


def _settings(case: Case) -> dict[str, Any]:
    """The arguments that are no arrays, and the choices of the config; rates of dropout only where it is drawn."""
    arguments = {_own(name): value for name, value in case.inputs.items() if isinstance(value, bool | int | float | str)}
    choices = {name: value for name, value in dataclasses.asdict(case.config).items() if isinstance(value, bool | float | str)}
    evaluated = "keep" not in _given(case)
    return arguments | {name: value for name, value in choices.items() if not (evaluated and name.endswith("dropout_rate"))}


def _sizes(case: Case) -> dict[str, int]:
    """The lengths of the axes of inputs and parameters, and the numbers of layers."""
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
    """The sizes in the config that the component's parameters have."""
    if not case.parameters:
        return {}
    names = parameters.axes(case.config, model_of(forward_of(case.component) or case.component))
    letters = {letter for axes in names.values() for letter in axes.split()}
    sizes = {AXES[letter]: size for letter, size in case.config.sizes.items() if letter in letters}
    stacks = (stack for stack in ("encoder", "decoder") if any(f"{stack}.layers." in f"{case.component}.{name}" for name in names))
    return sizes | {f"{stack}_layers": getattr(case.config, f"{stack}_layers") for stack in stacks}


def _given(case: Case) -> list[str]:
    """The inputs that are given and no numbers, of which `_options` says it; masks of dropout are one."""
    given = [
        name for name, value in case.inputs.items() if value is not None and (isinstance(value, bool) or not isinstance(value, int | float))
    ]
    return ["keep" if name.startswith("keep.") else name for name in given]
