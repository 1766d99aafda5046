"""The values of a run of the reference, each with its name in words."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from reference_numpy import attention

from ...case import Case
from ...expectation.trace import TracedCall

SMALL = 1 << 16  # largest parameter, in elements, that may be an output


@dataclass(frozen=True)
class Value:
    """An array of the run, with its words. role: `input`, `parameter`, `computed` or `derived`."""

    words: str
    array: np.ndarray
    role: str


def values(case: Case, calls: Mapping[str, TracedCall]) -> list[Value]:
    """The values of a float64 case and its calls, simplest first, one for each name."""
    found: dict[str, Value] = {}
    for value in _all(case, calls):
        words = last_layer(case, value.words)
        if value.array.dtype.kind in "fb" and value.array.size:
            found.setdefault(words, Value(words, value.array, value.role))
    return list(found.values())


def _all(case: Case, calls: Mapping[str, TracedCall]) -> Iterator[Value]:
    for name, array in case.inputs.items():
        if isinstance(array, np.ndarray):
            yield Value(f"the input `{name}`", array, "input")
    for name, array in ((name, array) for name, array in case.parameters.items() if array.size <= SMALL):
        yield Value(f"the parameter `{name}`", np.asarray(array), "parameter")
    for path, call in reversed(list(calls.items())):  # the whole, then its parts from the last
        if path:
            yield Value(f"the output of `{path}`", call.output, "computed")
            for name, array in call.inputs.items():
                if isinstance(array, np.ndarray):
                    yield Value(f"the `{name}` that `{path}` is given", array, "computed")
    for call in calls.values():
        of = f" of `{call.path}`" if call.path else ""
        yield from (Value(words.format(of=of), array, "derived") for words, array in _derived(call))


def _derived(call: TracedCall) -> Iterator[tuple[str, np.ndarray]]:
    """Intermediate results of a component that no alteration gives."""
    if call.component == "layer_norm":
        x, scale, offset = call.inputs["x_btd"], call.parameters["scale"], call.parameters["offset"]
        centred = x - x.mean(-1, keepdims=True)
        normalised = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + call.config.epsilon)
        yield "the normalized values{of}, before scale and offset", normalised
        yield "the normalized values{of} with the scale applied twice", normalised * scale * scale + offset
        yield "the normalized values{of} plus scale plus offset", normalised + scale + offset
    elif call.component == "scaled_dot_product_attention":
        value = attention.repeat_kv(call.inputs["value_bsge"], call.inputs["query_bthk"].shape[2])
        shape = (value.shape[0], call.inputs["query_bthk"].shape[1], *value.shape[2:])
        yield "the mean of all values{of}, masked or not", np.broadcast_to(value.mean(1, keepdims=True), shape)


def last_layer(case: Case, words: str) -> str:
    """The words with `layers.last` in place of the last layer's index."""
    if not (stack := re.search(r"(encoder|decoder)?\.?layers\.(\d+)", words)):
        return words
    name = stack[1] or case.component
    count = getattr(case.config, f"{name}_layers", 0)
    return words.replace(f"layers.{stack[2]}", "layers.last") if int(stack[2]) == count - 1 else words
