"""The values of a run of the reference: inputs, parameters and intermediate results, each with the words that name it.

And the last steps to an output: the input of each, and the rest of the forward pass from there.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from reference_numpy import arithmetic, attention, dropout, embedding, feed_forward, normalization, softmax, transformer

from ...case import Case
from ...expectation import components
from ...expectation.trace import TracedCall

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
        yield "the queries{of}", attention.queries(tree, call.config, call.inputs["query_btd"])
        keys, values = attention.keys_and_values(tree, call.config, call.inputs["memory_bsd"])
        yield "the keys{of}", keys
        yield "the values{of}", values
    elif call.component == "scaled_dot_product_attention":
        value = attention.repeat_kv(call.inputs["value_bsge"], call.inputs["query_bthk"].shape[2])
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


DEEPEST = 5

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Step:
    """A step near an output. words: what is done to its input on the way to the output, with {} for the input; `{}` for the output itself.

    axes: the letters of the input's axes, if they are known. sublayer: the path of a sub-layer if the input is the sum of its output and
    its residual.
    """

    words: str
    axes: str
    given: np.ndarray
    onward: Function
    sublayer: str = ""


Calls = Mapping[str, TracedCall]
Taken = tuple[str, str, np.ndarray, np.ndarray, Function]


def last_steps(case: Case, calls: Calls) -> dict[str, list[Step]]:
    """For each output the steps that lead to it, the last first; the first entry is the output itself.

    calls: the calls of the reference's run on the case, in float64.
    """
    outputs = components.answer(case)
    result = {}
    for name, output in outputs.items():
        steps = [Step("{}", "", output.astype(np.float64), lambda value: value)]
        step = _with_padding(calls, case, steps[0])
        while len(steps) < DEEPEST and (before := _before(calls, case, step)):
            steps.append(step := before)
        result[name] = steps + [found for step in steps for found in _sums(calls, case, step)]
    return result


def _with_padding(calls: Calls, case: Case, step: Step) -> Step:
    """The step, whose way to the output sets the rows of padding to zero if the case has `skip_padding`."""
    if not case.inputs.get("skip_padding"):
        return step
    real = {"config": case.config, "target": case.inputs["target"], "target_mask_bt": case.inputs.get("target_mask_bt")}
    return Step(step.words, step.axes, calls["logits"].output.astype(np.float64), functools.partial(transformer.real_rows, **real))


def _sums(calls: Calls, case: Case, step: Step) -> Iterator[Step]:
    """The step, in words that are the same for pre-norm and post-norm if its input is the sum of the last sub-layer and its residual."""
    for path, residual, output in residuals(calls, case):
        if path.endswith("feed_forward") and step.given.shape == output.shape and np.allclose(residual + output, step.given, 1e-9, 0):
            name = last_layer(case, path)
            words = f"what follows from the sum of `{name}` and its residual, with {{}} as that sum"
            yield Step(words, step.axes, step.given, step.onward, name)


def _before(calls: Calls, case: Case, step: Step) -> Step | None:
    """The step whose output is the input of this one; None if no step with one main input has it."""
    for call in reversed(list(calls.values())):
        for words, axes, output, given, function in _taken(calls, call, last_layer(case, call.path)):
            done = words.format("") in step.words
            if not done and output.shape == step.given.shape and np.array_equal(output, step.given, equal_nan=True):
                return Step(step.words.format(words), axes, given.astype(np.float64), _both(function, step.onward))
    return None


def _both(first: Function, second: Function) -> Function:
    return lambda value: second(first(value))


def _taken(calls: Calls, call: TracedCall, name: str) -> Iterator[Taken]:
    """A call in words, with {} for its main input; the axes of that input; its output; the input; the call as a function of the input."""
    path = f"{call.path}." if call.path else ""
    if call.component in ("layer_norm", "rms_norm", "logits", "activation", "classifier", "softmax"):
        argument = next(iter(call.inputs))
        axes = "bhts" if argument == "logits" else argument.rpartition("_")[2]
        yield f"`{name or call.component}` of {{}}", axes, call.output, call.inputs[argument], _again(call)
    elif call.component == "pooler":
        yield from _pooled(call, name)
    elif call.component == "scaled_dot_product_attention":
        weights = calls[f"{path}softmax"].output
        yield f"the values{_of(name)} weighted by {{}}", "bhts", call.output, weights, _weighted(call)
        if not call.path:
            logits, bias = calls["softmax"].inputs["logits"], call.inputs.get("bias_bhts", 0.0)
            given = np.where(np.isfinite(bias), logits - bias, 0.0)
            yield "{} (before a `bias_bhts` is added)", "bhts", logits, given, lambda logits_bhts: logits_bhts + bias
    elif call.component == "multi_head_attention":
        heads = calls[f"{path}scaled_dot_product_attention"].output
        yield f"the output projection{_of(name)} of {{}}", "bthe", call.output, heads, _affine("bthe,hed->btd", call, "output.")
    elif call.component == "feed_forward" and f"{path}activation" in calls:
        active = calls[f"{path}activation"].output
        if "gate.kernel" in call.parameters:
            active = active * _affine("btd,df->btf", call, "hidden.")(call.inputs["x_btd"])
        yield f"the second layer{_of(name)} of {{}}", "btf", call.output, active, _second(call)


def _pooled(call: TracedCall, name: str) -> Iterator[Taken]:
    first = call.inputs["x_bsd"][:, 0]
    dense = _affine("bd,dr->br", call, "")
    relu = call.config.pooler_activation == "relu"
    function: Function = (lambda x: np.maximum(x, 0)) if relu else np.tanh
    yield f"{call.config.pooler_activation}{_of(name)} of {{}}", "br", call.output, dense(first), function
    yield f"the dense layer{_of(name)} of {{}}", "bd", dense(first), first, dense


def _weighted(call: TracedCall) -> Function:
    """The product of weights and values, after the weights' dropout."""
    value_bshe = attention.repeat_kv(call.inputs["value_bsge"], call.inputs["query_bthk"].shape[2])
    keep, rate = call.inputs.get("keep_bhts"), call.inputs.get("dropout_rate", 0.0)
    return lambda weights_bhts: arithmetic.einsum("bhts,bshe->bthe", dropout.dropout(weights_bhts, keep, rate), value_bshe)


def _second(call: TracedCall) -> Function:
    """The product with the output's kernel, after the hidden layer's dropout."""
    dense, keep, rate = _affine("btf,fd->btd", call, "output."), call.inputs.get("keep_btf"), call.config.hidden_dropout_rate
    return lambda hidden_btf: dense(dropout.dropout(hidden_btf, keep, rate))


def _affine(subscripts: str, call: TracedCall, part: str) -> Function:
    """The product with the part's kernel, and its bias."""
    names = {name.removeprefix(part): name for name in call.parameters if name.startswith(part)}
    return lambda value: arithmetic.affine(subscripts, value, {own: call.parameters[name] for own, name in names.items()})


def _of(name: str) -> str:
    return f" of `{name}`" if name else ""


def _again(call: TracedCall) -> Function:
    """The call as a function of its main input."""
    if call.component in ("layer_norm", "rms_norm"):
        return lambda x: normalization.norm(call.parameters, call.config.replace(norm=call.component.partition("_")[0]), x)
    if call.component == "logits":
        return lambda x: embedding.logits(call.parameters, x, call.config.logit_scale, call.config.logit_cap)
    if call.component == "activation":
        return lambda x: feed_forward.activation(x, call.config.activation)
    if call.component == "softmax":
        return lambda logits: softmax.softmax(logits, call.inputs.get("mask"))
    dense, keep = _affine("br,rc->bc", call, ""), call.inputs.get("keep_br")
    return lambda x: dense(dropout.dropout(x, keep, call.config.classifier_dropout_rate))
