"""The last steps to an output: the input of each, and the rest of the forward pass from there."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from reference_numpy import arithmetic, attention, dropout, embedding, feed_forward, normalization, softmax, transformer

from ...case import Case
from ...reference import components
from ...reference.trace import TracedCall
from .run_values import last_layer, residuals

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
    value_bshe = attention.repeat_kv(call.inputs["value_bsge"], call.inputs["query_bthk"])
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
