"""Records the reference's calls: every component call of one run of the reference, by canonical path."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

from ..case import Case
from ..stored import Stored, changed, flattened, in_c_order
from . import calls, components
from .paths import SCOPES, Paths, joined, watched


@dataclass(frozen=True)
class TracedCall:
    """One call of a component within a run of the reference.

    path: the canonical path, such as `encoder.layers.0.self_attention`; empty for the component of the case itself. parent: the path of the
    calling component. inputs: by the reference's argument names, without those that come from the config or have their default. parameters:
    by canonical name, relative to the component. output: of a pair the first.
    """

    path: str
    component: str
    parent: str | None
    inputs: Mapping[str, Any]
    parameters: Mapping[str, np.ndarray]
    config: TransformerConfig
    output: np.ndarray
    origin: Case

    @property
    def name(self) -> str:
        """The path, or the component if the path is empty."""
        return self.path or self.component

    def case(self, dtype: str = "float64") -> Case:
        """Returns the same call as a case of its component, in that dtype, on the device and in the mode of the whole run."""
        name = f"{self.origin.name}@{self.path}" if self.path else self.origin.name
        shared = tuple(kernel for kernel in self.parameters if joined(self.path, kernel) in self.origin.shared)
        case = Case(name, self.component, self.config, self.inputs, self.parameters, shared=shared)
        return case.at(dtype, self.origin.device, self.origin.mode)


def arrays(inputs: Mapping[str, Any]) -> list[np.ndarray]:
    """Returns the inputs that a teacher-forced component is given: the floating ones in order, or the integer ones if there are none."""
    numbers = [value for value in inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind != "b"]
    floating = [value for value in numbers if value.dtype.kind not in "iu"]
    return floating or numbers


def record(case: Case, instead: Callable[[TracedCall], np.ndarray | None] = lambda call: None) -> dict[str, TracedCall]:
    """Returns the calls of the reference's run on the case, in the case's dtype, by path in the order in which the components finish.

    instead: returns what a component gives in place of its output, before anything reads it; None keeps the output.
    """
    recorder = _Recorder(case, instead)
    with watched(recorder.run, rotated=recorder.paths.rotated):
        outputs = components.answer(case)
    if case.inputs.get("skip_padding"):  # which the whole answer applies to what the model gives
        recorder.calls[""] = replace(recorder.calls[""], output=outputs["output"])
    return recorder.calls


class _Recorder:
    def __init__(self, case: Case, instead: Callable[[TracedCall], np.ndarray | None]) -> None:
        self.calls: dict[str, TracedCall] = {}
        self._case, self._instead, self.paths = case, instead, Paths()

    def run(self, component: str, function: Callable, *args: Any, **options: Any) -> Any:
        """Calls the function of a component, and records the call; a scope only says which embedding is meant."""
        parent = self.paths.parent
        path, result = self.paths.run(component, function, args, options)
        if component in SCOPES or (not path and path in self.calls):
            return result
        given = inspect.signature(function).bind(*args, **options).arguments
        call = self._call(path, component, parent, given, result)
        if (other := self._instead(call)) is not None:
            call = replace(call, output=other)
            result = (other, *result[1:]) if isinstance(result, tuple) else other
        self.calls[path] = call
        return result

    def _call(self, path: str, component: str, parent: str | None, given: Mapping[str, Any], result: Any) -> TracedCall:
        config = self._case.config
        flat = flattened(given.get("parameters", {}))
        if component == "logits" and isinstance(self._case.parameters, Stored):
            flat = self._stored_head(self._case.parameters, flat)
        if component == "embedding" and flat["table"].shape[0] != config.source_vocabulary:
            config = config.replace(source_vocabulary=flat["table"].shape[0])
        if component in ("layer_norm", "rms_norm"):  # of any width, that of queries and keys among them
            flat = changed(flat, lambda name, value: value.reshape(-1))
            config = config.replace(model_width=flat["scale"].size)
        if component == "dropout":  # of any site: the case's rate is that of a dropout on its own
            config = config.replace(dropout_rate=given["rate"])
        return TracedCall(
            path=path,
            component=component,
            parent=parent,
            inputs={name: _own(value) for name, value in parameters.flatten(self._inputs(path, component, given)).items()},
            parameters=changed(flat, in_c_order),
            config=config,
            output=_own(result[0] if isinstance(result, tuple) else result),
            origin=self._case,
        )

    def _inputs(self, path: str, component: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that have a value and that a case does not take from its config."""
        whole = not path and component == self._case.component  # the case's own call
        flat = parameters.nest(self._case.inputs) if whole else calls.as_of_case(component, given, self._place(path, given))
        no_inputs = {"parameters", "config", "return_weights", *components.config_arguments(component, self._case.config, self._case.dtype)}
        found = {name: value for name, value in flat.items() if name not in no_inputs}
        if not any(name.startswith("keep") and value is not None for name, value in found.items()):
            found.pop("dropout_rate", None)
        declared = components.signature_of(component).parameters
        others = {name: value for name, value in found.items() if value is not declared[name].default}
        return {name: value for name, value in others.items() if not isinstance(value, Mapping) or value}

    def _place(self, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the layer of an attention or of a layer of a stack, and the positions of its tokens, by which it rotates."""
        if "attending" in given and (rotation := given["attending"].rotation) is not None:
            return self.paths.rotations[id(rotation)]
        if not path:
            return {"layer": 0}
        index = re.search(r"\blayers\.(\d+)", path)
        return {"layer": None if "cross_attention" in path else int(index[1]) if index else 0}

    def _stored_head(self, stored: Stored, flat: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns the head's parameters as they are stored: what the reference is given holds the
        tied kernel, the largest array.
        """
        tied = parameters.ties(self._case.config).get("logits.kernel", "")
        names = {name: tied if tied and name == "kernel" else f"logits.{name}" for name in flat}
        if not all(name in stored for name in names.values()):
            return flat
        return stored.called(names).then(lambda name, array: array.T if tied and name == "kernel" else array)


def _own(value: Any) -> Any:
    """Returns an array in C order, anything else unchanged: the reference passes views, such as the tied logits table, transposed."""
    return np.asarray(value, order="C") if isinstance(value, np.ndarray) else value
