"""Records every component call in a run of the reference, by canonical path."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

from ..case import Case
from ..stored import Stored, changed, flattened, in_c_order
from . import calls, components
from .patching import signature
from .paths import SCOPES, Paths, joined, watched


@dataclass(frozen=True)
class TracedCall:
    """One component call in a run of the reference.

    path: the canonical path, such as `encoder.layers.0.self_attention`; empty for the case's own
    component. parent: the path of the calling component. inputs: by the reference's argument names,
    without config arguments and defaults. parameters: by canonical name, relative to the component.
    output: the output, or the first of a pair.
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
        """Returns the call as a case in that dtype, on the run's device and in its mode."""
        name = f"{self.origin.name}@{self.path}" if self.path else self.origin.name
        shared = tuple(kernel for kernel in self.parameters if joined(self.path, kernel) in self.origin.shared)
        case = Case(name, self.component, self.config, self.inputs, self.parameters, shared=shared)
        return case.at(dtype, self.origin.device, self.origin.mode)


def arrays(inputs: Mapping[str, Any]) -> list[np.ndarray]:
    """Returns the inputs of a teacher-forced component: the floating-point or integer arrays."""
    numbers = [value for value in inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind != "b"]
    floating = [value for value in numbers if value.dtype.kind not in "iu"]
    return floating or numbers


def record(case: Case, instead: Callable[[TracedCall], np.ndarray | None] = lambda call: None) -> dict[str, TracedCall]:
    """Returns the calls of the reference's run on the case, in its dtype, by path in the order in
    which they finish.

    instead: returns a replacement for a component's output before anything reads it; None keeps the
    output.
    """
    recorder = _Recorder(case, instead)
    with watched(recorder.run, rotated=recorder.paths.rotated):
        outputs = components.answer(case)
    if case.inputs.get("skip_padding"):  # applied to the model's output outside of its call
        recorder.calls[""] = replace(recorder.calls[""], output=outputs["output"])
    return recorder.calls


class _Recorder:
    def __init__(self, case: Case, instead: Callable[[TracedCall], np.ndarray | None]) -> None:
        self.calls: dict[str, TracedCall] = {}
        self._case, self._instead, self.paths = case, instead, Paths()

    def run(self, component: str, function: Callable, *args: Any, **options: Any) -> Any:
        """Calls a component's function and records the call; scopes only name the embedding."""
        parent = self.paths.parent
        path, result = self.paths.run(component, function, args, options)
        if component in SCOPES or (not path and path in self.calls):
            return result
        given = signature(function).bind(*args, **options).arguments
        if component in ("layer_norm", "rms_norm") and given["x_btd"].ndim == 4:  # heads with their own scales, as no case has
            return result
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
        if component in ("layer_norm", "rms_norm"):  # of any width, such as the norms of queries and keys
            flat = changed(flat, lambda name, value: value.reshape(-1))
            config = config.replace(model_width=flat["scale"].size)
        if component == "dropout":  # at any site: a dropout case takes its rate from the config
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
        """Returns the arguments that have a value and do not come from the config."""
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
        """Returns the layer index of an attention or layer, and its positions for rotation."""
        if "attending" in given and (rotation := given["attending"].rotation) is not None:
            return self.paths.rotations[id(rotation)]
        if not path:
            return {"layer": 0}
        index = re.search(r"\blayers\.(\d+)", path)
        return {"layer": None if "cross_attention" in path else int(index[1]) if index else 0}

    def _stored_head(self, stored: Stored, flat: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns the head's stored parameters instead of a copy with the tied kernel."""
        tied = parameters.ties(self._case.config).get("logits.kernel", "")
        names = {name: tied if tied and name == "kernel" else f"logits.{name}" for name in flat}
        if not all(name in stored for name in names.values()):
            return flat
        return stored.called(names).then(lambda name, array: array.T if tied and name == "kernel" else array)


def _own(value: Any) -> Any:
    """Returns an array in C order, anything else unchanged: the reference passes views."""
    return np.asarray(value, order="C") if isinstance(value, np.ndarray) else value
