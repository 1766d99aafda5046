"""The values of a run of the reference: inputs, parameters and intermediate results, each with the words that name it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from reference_numpy import arithmetic, attention, softmax

from ...case import Case
from ...reference.trace import TracedCall

SMALL = 1 << 16  # elements of a parameter that may be an output


@dataclass(frozen=True)
class Value:
    """An array of the run. words: its name in a sentence. role: `input`, `parameter`, `computed`, or `derived` from a computed one."""

    words: str
    array: np.ndarray
    role: str


def values(case: Case, calls: Mapping[str, TracedCall]) -> list[Value]:
    """The values of a case in float64 and of the calls of its run, the simplest first; only the first of two with the same words."""
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
    for path, call in reversed(list(calls.items())):  # the whole first, then its last parts
        if path:
            yield Value(f"the output of `{path}`", call.output, "computed")
            for name, array in call.inputs.items():
                if isinstance(array, np.ndarray):
                    yield Value(f"the `{name}` that `{path}` is given", array, "computed")
    for path, residual, _ in residuals(calls, case):
        yield Value(f"the residual of `{path}`", residual, "derived")
    for call in calls.values():
        path = call.path.removesuffix("softmax").rstrip(".") if call.component == "softmax" else call.path
        of = f" of `{path}`" if path else ""
        yield from (Value(words.format(of=of), array, "derived") for words, array in _derived(call))


def _derived(call: TracedCall) -> Iterator[tuple[str, np.ndarray]]:
    """The intermediate results of a component."""
    if call.component == "layer_norm":
        yield from _normalised(call)
    elif call.component == "multi_head_attention":
        tree = _nested(call)
        yield "the queries{of}", attention.queries(tree, call.inputs["query_btd"], call.config)
        keys, values = attention.keys_and_values(tree, call.inputs["memory_bsd"], call.config)
        yield "the keys{of}", keys
        yield "the values{of}", values
    elif call.component == "scaled_dot_product_attention":
        value = attention.repeat_kv(call.inputs["value_bsge"], call.inputs["query_bthk"])
        shape = (value.shape[0], call.inputs["query_bthk"].shape[1], *value.shape[2:])
        yield "the mean of all values{of}, masked or not", np.broadcast_to(value.mean(1, keepdims=True), shape)
    elif call.component == "softmax":
        yield from _weights(call)
    elif call.component == "embedding" and call.config.scale_embedding:
        yield "the rows of the table{of} before they are multiplied by sqrt(model_width)", call.output / call.output.shape[-1] ** 0.5
    elif call.component in ("feed_forward", "masked_language_head") and "hidden.kernel" in call.parameters:
        gated = "gate.kernel" in call.parameters
        for name, words in (("hidden", "the hidden layer"), ("gate", "the gate"))[: 1 + gated]:
            hidden = arithmetic.einsum("btd,df->btf", next(iter(call.inputs.values())), call.parameters[f"{name}.kernel"])
            if f"{name}.bias" in call.parameters:
                yield f"{words}{{of}} before its bias", hidden
                hidden = hidden + call.parameters[f"{name}.bias"]
            yield f"{words}{{of}} before its {'gate' if gated and name == 'hidden' else 'activation'}", hidden
    elif call.component == "pooler":
        x, tokens = call.inputs["x_bsd"], "{} of the `x_bsd` that the pooler{{of}} is given"
        yield tokens.format("the first token"), x[:, 0]
        yield tokens.format("the last token"), x[:, -1]
        yield tokens.format("the mean over the tokens"), x.mean(1)
        yield tokens.format("the largest over the tokens"), x.max(1)
        dense = arithmetic.affine("bd,dr->br", x[:, 0], call.parameters)
        yield "the dense layer of the pooler{of} before its activation", dense
    bias = {"multi_head_attention": "output.bias", "feed_forward": "output.bias", "logits": "bias"}.get(call.component, "")
    if bias in call.parameters:
        yield f"the output{{of}} without `{bias}`", call.output - call.parameters[bias]


def _normalised(call: TracedCall) -> Iterator[tuple[str, np.ndarray]]:
    x, scale, offset = call.inputs["x_btd"], call.parameters["scale"], call.parameters["offset"]
    centred = x - x.mean(-1, keepdims=True)
    normalised = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + call.config.epsilon)
    yield "the normalised values{of}, before scale and offset", normalised
    yield "the normalised values{of}, scaled, before the offset", normalised * scale
    yield "the normalised values{of} plus the offset, without the scale", normalised + offset
    yield "the normalised values{of} with the scale applied twice", normalised * scale * scale + offset
    yield "scale times (the normalised values{of} plus the offset)", (normalised + offset) * scale
    yield "the normalised values{of} plus scale and offset, which are added", normalised + scale + offset
    yield "the normalised values{of} with offset as scale and scale as offset", normalised * offset + scale
    yield (
        "what the norm{of} is given, divided by its deviation, the mean not subtracted",
        (normalised * scale * x / np.where(centred, centred, np.inf) + offset),
    )
    yield "what the norm{of} is given, minus its mean, not divided by the deviation", centred * scale + offset
    root = np.sqrt((x**2).mean(-1, keepdims=True) + call.config.epsilon)
    yield "the RMS norm of what the norm{of} is given, with scale and offset", x / root * scale + offset
    yield "the RMS norm of what the norm{of} is given, with its scale and without its offset", x / root * scale


def _weights(call: TracedCall) -> Iterator[tuple[str, np.ndarray]]:
    """The masked logits, and the weights of masks that are applied in other ways."""
    logits, mask = call.inputs["logits"], call.inputs.get("mask")
    given = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
    yield "the masked logits{of}", np.where(given, logits, -np.inf)
    if mask is None:
        return
    yield "the softmax of the logits times the mask{of}", softmax.softmax(logits * given)
    yield "the softmax of the logits plus the mask{of}", softmax.softmax(logits + given)
    yield "the softmax of the logits plus 1 where they are masked{of}", softmax.softmax(logits + ~given)
    yield "the softmax of the unmasked logits, times the mask afterwards{of}", softmax.softmax(logits) * given
    yield "the softmax of the logits with a large negative number where they are masked{of}", softmax.softmax(np.where(given, logits, -1e9))


def _nested(call: TracedCall) -> dict[str, dict[str, np.ndarray]]:
    tree: dict[str, dict[str, np.ndarray]] = {}
    for name, array in call.parameters.items():
        part, _, leaf = name.partition(".")
        tree.setdefault(part, {})[leaf] = array
    return tree


def last_layer(case: Case, words: str) -> str:
    """The words with `layers.last` for the index of the last layer, whatever their number is."""
    if not (stack := re.search(r"(encoder|decoder)?\.?layers\.(\d+)", words)):
        return words
    name = stack[1] or case.component
    count = getattr(case.config, f"{name}_layers", 0)
    return words.replace(f"layers.{stack[2]}", "layers.last") if int(stack[2]) == count - 1 else words


def residuals(calls: Mapping[str, TracedCall], case: Case) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The path of every sub-layer, its residual, and its output after dropout."""
    for path, call in calls.items():
        if path.endswith(("self_attention", "cross_attention", "feed_forward")) and f"{path}_norm" in calls:
            post = case.config.norm_placement == "post"
            residual = next(iter(call.inputs.values())) if post else calls[f"{path}_norm"].inputs["x_btd"]
            yield path, residual, calls[f"{path}_dropout"].output
