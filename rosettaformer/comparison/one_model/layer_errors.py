"""Errors after every layer and component in every dtype, and attention weights."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...judge.case import Case
from ...judge.compare import Comparison, compare
from ...judge.expectation import components, trace
from ...judge.expectation.tolerance import Expectation, expectation
from ...judge.ports.adapters.submodules import transposed
from ...judge.ports.process import Worker
from ...judge.status import Kind
from ..engine.beside import Beside
from .subject import Subject

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str], None]
EVEN = 0.05  # largest variation of a query's weights in an even head, relative to the largest weight
HEADS = {
    "encoder.self_attention": "source",
    "decoder.self_attention": "target",
    "decoder.cross_attention": "source",
}  # attention -> side of its keys


@dataclass(frozen=True)
class OutputError:
    """Errors of one intermediate output in one dtype.

    name: a title or the component. path: canonical path; empty for the whole model. depth: nesting
    level. largest: largest |r| of the float64 reference. noise: largest error of NumPy in all
    summation orders, at least half an ulp. found: comparison by implementation. said: reason why an
    implementation has none.
    """

    name: str
    path: str
    depth: int
    dtype: str
    largest: float
    noise: float
    found: Mapping[str, Comparison] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attention:
    """Weights of one kind of attention, `l h t s`: the float64 reference, and each implementation
    in the dtype.

    noise_l: noise of each layer, see `OutputError`.
    """

    name: str
    dtype: str
    queries: Sequence[str]
    keys: Sequence[str]
    reference_lhts: np.ndarray
    found_lhts: Mapping[str, np.ndarray]
    noise_l: Sequence[float]

    def even(self, layer: int, head: int) -> bool:
        """Returns whether every query attends evenly to all keys with a weight above 0."""
        weights_ts = self.reference_lhts[layer, head]
        highest_t, lowest_t = weights_ts.max(axis=1), np.where(weights_ts > 0, weights_ts, np.inf).min(axis=1)
        return bool((highest_t - lowest_t <= EVEN * highest_t).all())

    def units(self, name: str, layer: int) -> np.ndarray:
        """Returns the largest difference in each head of a layer, in units of the layer's noise."""
        away_hts = np.abs(self.found_lhts[name][layer] - self.reference_lhts[layer])
        return np.asarray(away_hts.max(axis=(1, 2)) / self.noise_l[layer])


@dataclass
class Layers:
    """Errors by layer and by component. whole: the component at the root of the tree."""

    whole: str
    dtypes: Sequence[str]
    outputs: list[OutputError] = field(default_factory=list)
    tree: list[OutputError] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)


def whole(subject: Subject) -> str:
    """Returns the component that runs every part of the model."""
    found = components.whole_model(subject.config)
    return "states" if found == "encode" else found


def whole_case(subject: Subject) -> Case:
    """Returns the case that runs the whole model."""
    component = whole(subject)
    names = components.signature_of(component).parameters
    inputs = {name: value for name, value in subject.inputs.items() if name in names}
    given = inputs if "source" in inputs else {"source": None, **inputs}
    return Case("report", component, subject.config, given, subject.parameters)


def evaluate(subject: Subject, beside: Beside, dtypes: Sequence[str], shown: str, progress: Progress, tree: bool = True) -> Layers:
    """Runs the model on the subject's tokens in every dtype.

    shown: dtype of the attention weights. tree: whether to compare the components inside layers,
    too.
    """
    result = Layers(whole(subject), dtypes)
    for dtype in dict.fromkeys([*dtypes, shown]):
        case = whole_case(subject).at(dtype)
        progress(f"layers: {dtype}")
        states = dataclasses.replace(case, component="states", inputs=subject.inputs)
        reference, runs, found = beside.measured("states", states, components.answer)
        expected = {name: _by_layer(value, [run[name] for run in runs]) for name, value in reference.items()}
        if dtype in dtypes:
            result.outputs += _outputs(expected, found, dtype)
        if dtype == shown:
            result.attention = [*_attention(subject, expected, reference, found, dtype)]
        if tree and dtype in dtypes:
            progress(f"layers: components in {dtype}")
            result.tree += _tree(case, beside)
    return result


def _by_layer(reference: np.ndarray, runs: Sequence[np.ndarray]) -> list[Expectation]:
    return [expectation(layer, [run[index] for run in runs]) for index, layer in enumerate(reference)]


def _outputs(expected: Mapping[str, list[Expectation]], found: Mapping[str, Arrays], dtype: str) -> list[OutputError]:
    """Returns the errors of every layer's output and of the embedding."""
    places = []
    for stack in ("encoder", "decoder"):
        for index, one in enumerate(expected.get(name := f"{stack}.hidden_lbtd", ())):
            given = {who: arrays.get(name, ()) for who, arrays in found.items()}
            got = {who: array[index] if len(array) > index else None for who, array in given.items()}
            title = f"{stack} layer {index - 1}" if index else f"{stack} embedding"
            places.append(_error(title, f"{stack}.layers.{index - 1}" if index else f"{stack}_embedding", 0, dtype, one, got))
    return places


def _error(name: str, path: str, depth: int, dtype: str, expected: Expectation, got: Mapping[str, Any], **more: Any) -> OutputError:
    found = {who: compare(expected, array) for who, array in got.items()}
    return OutputError(name, path, depth, dtype, expected.largest, expected.plain_error, found, **more)


def _attention(
    subject: Subject, expected: Mapping[str, list[Expectation]], reference: Arrays, found: Mapping[str, Arrays], dtype: str
) -> list[Attention]:
    result = []
    for name, side in HEADS.items():
        if (key := f"{name}_lbhts") in reference:
            queries = subject.tokens["source" if name.startswith("encoder") else "target"]
            fitting = {who: arrays[key] for who, arrays in found.items() if key in arrays and arrays[key].shape == reference[key].shape}
            got = {who: array[:, 0].astype(np.float64) for who, array in fitting.items()}
            noise = [one.plain_error for one in expected[key]]
            title = name.replace(".", " ").replace("_", "-")
            result.append(Attention(title, dtype, queries, subject.tokens[side], reference[key][:, 0], got, noise))
    return result


def _tree(case: Case, beside: Beside) -> list[OutputError]:
    """Returns the errors of every component in execution order, each before its parts."""
    calls, runs, answers = beside.measured("components", case, _recorded, lambda port: _traced(port, case, beside.limit))
    found = {who: {path: call["output"] for path, call in own.items() if "output" in call} for who, (own,) in answers.items()}
    if "numpy" in found:  # a port of functions has no parts
        found["numpy"] = {path: call.output for path, call in runs[0].items()}
    places = []
    for path, depth in _walk(calls, None, 0):
        output = calls[path].output
        if output.dtype.kind in "biu" or calls[path].component == "dropout":  # dropout is the identity in evaluation
            continue
        expected = expectation(output, [run[path].output for run in runs])
        got = {who: transposed(own[path], output.shape) for who, own in found.items() if path in own}
        places.append(component_error(calls[path].name, path, depth, case.dtype, expected, got))
    return places


def component_error(name: str, path: str, depth: int, dtype: str, expected: Expectation, got: Mapping[str, Any]) -> OutputError:
    """Returns the errors of a component's output.

    Outputs that a framework computes once for all rows or positions are broadcast; an output of
    another shape divides the work differently, and gets no number.
    """
    shape = expected.reference.shape
    arrays = {who: np.asarray(array) if array is not None else None for who, array in got.items()}
    said = {
        who: f"the shape is {getattr(array, 'shape', None)}, in the reference {shape}"
        for who, array in arrays.items()
        if array is None or array.ndim != len(shape) or any(own not in (1, size) for own, size in zip(array.shape, shape, strict=True))
    }
    spread = {who: np.broadcast_to(array, shape) for who, array in arrays.items() if array is not None and who not in said}
    return _error(name, path, depth, dtype, expected, spread, said=said)


def _recorded(case: Case) -> dict[str, trace.TracedCall]:
    """Returns the calls of the reference without their inputs, to save memory."""
    return {path: dataclasses.replace(call, inputs={}) for path, call in trace.record(case).items()}


def _traced(port: Worker, case: Case, limit: float) -> tuple[str, Any]:
    """Returns the outputs of the port's parts; a port of functions has none."""
    return port.call("trace", case, [None], limit=limit) if port.greeting[1]["framework"] else (Kind.OUTPUTS, [{}])


def _walk(calls: Mapping[str, trace.TracedCall], parent: str | None, depth: int) -> list[tuple[str, int]]:
    """Returns paths and depths, each component before its parts."""
    result = []
    for path, call in calls.items():
        if call.parent == parent:
            result += [(path, depth), *_walk(calls, path, depth + 1)]
    return result
