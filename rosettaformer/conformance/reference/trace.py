"""The reference's calls: every component call of one run of the reference, by canonical path.

The functions of `reference_numpy` call their siblings through modules, so that all of them can be watched from outside. A component with
parameters is known by the identity of its subtree of the nested parameters, one without by the call that it stands in.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import TransformerConfig, parameters

from ..case import Case
from . import components

__all__ = ["TracedCall", "arrays", "record"]

_SCOPES = {"encode": ("source_embedding", "encoder"), "decode": ("target_embedding", "decoder")}
_SUBLAYERS = ("multi_head_attention", "feed_forward")


@dataclass(frozen=True)
class TracedCall:
    """One call of a component within a run of the reference.

    path: the canonical path, such as `encoder.layers.0.self_attention`; empty for the component of the case itself. parent: the path of
    the component whose call this one stands in. inputs: by the reference's argument names, without what comes from the config and without
    arguments that have their default. parameters: by canonical name, relative to the component. output: of a pair the first.
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
        """The path, or the component where the path is empty."""
        return self.path or self.component

    def case(self, dtype: str = "float64") -> Case:
        """The same call as a case of its component, in that dtype, on the device and in the mode of the whole run."""
        name = f"{self.origin.name}@{self.path}" if self.path else self.origin.name
        case = Case(name, self.component, self.config, self.inputs, self.parameters)
        return case.at(dtype, self.origin.device, self.origin.mode)


def arrays(inputs: Mapping[str, Any]) -> list[np.ndarray]:
    """The inputs that a component is forced with: the floating ones in order, or the integer ones where there are none."""
    numbers = [value for value in inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind != "b"]
    floating = [value for value in numbers if value.dtype.kind not in "iu"]
    return floating or numbers


@dataclass(frozen=True)
class _Frame:
    path: str
    component: str


def record(case: Case, changed: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None) -> dict[str, TracedCall]:
    """The calls of the reference's run on the case, in the case's dtype, by path in the order in which the components finish.

    changed: functions by path; what the component gives is changed by its function before anything takes it.
    """
    recorder = _Recorder(case, changed or {})
    with contextlib.ExitStack() as stack:
        for component, (module_name, _) in components.FORWARD.items():
            recorder.watch(stack, module_name, component, recorder.component)
        for name in _SCOPES:
            recorder.watch(stack, "transformer", name, recorder.scope)
        components.answer(case)
    return recorder.calls


class _Recorder:
    def __init__(self, case: Case, changed: Mapping[str, Callable[[np.ndarray], np.ndarray]]) -> None:
        self.calls: dict[str, TracedCall] = {}
        self._case, self._changed = case, changed
        self._frames: list[_Frame] = []  # the calls that have not finished, the scopes among them
        self._subtrees: dict[int, str] = {}  # the identity of a subtree of the parameters -> its path
        self._taken: set[str] = set()

    def watch(self, stack: contextlib.ExitStack, module_name: str, name: str, around: Callable) -> None:
        """Replaces a function of the reference until the stack is closed."""
        module = components.module_of(module_name)
        function = getattr(module, name)
        signature = inspect.signature(function)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            return around(name, function, signature.bind(*args, **kwargs))

        stack.enter_context(mock.patch.object(module, name, watched))

    def scope(self, name: str, function: Callable, bound: inspect.BoundArguments) -> Any:
        """A call that is no component, but says which embedding is meant."""
        return self._within(_Frame(_SCOPES[name][1], name), function, bound)

    def component(self, component: str, function: Callable, bound: inspect.BoundArguments) -> Any:
        """A call that is recorded."""
        if not self._frames:
            self._index(bound.arguments.get("parameters", {}), "")
        path = self._path(component, bound.arguments.get("parameters"))
        parent = next((frame.path for frame in reversed(self._frames) if frame.component not in _SCOPES), None)
        result = self._within(_Frame(path, component), function, bound)
        if path in self._changed:
            result = (self._changed[path](result[0]), *result[1:]) if isinstance(result, tuple) else self._changed[path](result)
        self.calls[path] = self._call(path, component, parent, bound, result)
        return result

    def _within(self, frame: _Frame, function: Callable, bound: inspect.BoundArguments) -> Any:
        self._frames.append(frame)
        result = function(*bound.args, **bound.kwargs)
        self._frames.pop()
        return result

    def _index(self, tree: Mapping[str, Any], path: str) -> None:
        self._subtrees[id(tree)] = path
        for name, value in tree.items():
            if isinstance(value, Mapping):
                self._index(value, _join(path, name))

    def _path(self, component: str, tree: Mapping[str, Any] | None) -> str:
        if not self._frames:
            return ""
        wanted = self._wanted_path(component, tree)
        path, count = wanted, 2
        while path in self._taken:
            path, count = f"{wanted}_{count}", count + 1
        self._taken.add(path)
        return path

    def _wanted_path(self, component: str, tree: Mapping[str, Any] | None) -> str:
        frame = self._frames[-1]
        if component == "embedding" and frame.component in _SCOPES:  # a shared table is one subtree for both
            return _SCOPES[frame.component][0]
        if component == "logits":  # its parameters are a copy, with the tied kernel in it
            return _join("" if frame.component in _SCOPES else frame.path, component)
        if component == "dropout":
            return self._site(frame)
        if tree is not None and (path := self._subtrees.get(id(tree))):  # what has all parameters is not the whole, where it is within it
            return path
        return _join(frame.path, component)

    def _site(self, frame: _Frame) -> str:
        """The canonical name of the dropout that the reference applies in this call."""
        if frame.component == "scaled_dot_product_attention":
            return _join(frame.path.rpartition(".")[0], "weights_dropout")
        if frame.component in _SCOPES:
            return _join(frame.path, "embedding_dropout")
        if frame.component == "classifier":
            return f"{frame.path or frame.component}_dropout"
        if frame.component == "feed_forward":
            return _join(frame.path, "hidden_dropout")
        sublayer = next(path for path, call in reversed(self.calls.items()) if call.component in _SUBLAYERS)
        return f"{sublayer}_dropout"

    def _call(self, path: str, component: str, parent: str | None, bound: inspect.BoundArguments, result: Any) -> TracedCall:
        config = self._case.config
        settings = components.settings(component, config, self._case.dtype)
        flat = parameters.flatten(bound.arguments.get("parameters", {}))
        if component == "embedding" and flat["table"].shape[0] != config.source_vocabulary:
            config = config.replace(source_vocabulary=flat["table"].shape[0])
        if component == "dropout":  # of any site, whose rate the case then has as that of a dropout by itself
            config = config.replace(dropout_rate=bound.arguments["rate"])
        return TracedCall(
            path=path,
            component=component,
            parent=parent,
            inputs={name: _own(value) for name, value in parameters.flatten(_inputs(bound, settings)).items()},
            parameters={name: _own(value) for name, value in flat.items()},
            config=config,
            output=_own(result[0] if isinstance(result, tuple) else result),
            origin=self._case,
        )


def _inputs(bound: inspect.BoundArguments, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something and that a case does not take from its config."""
    no_inputs = {"parameters", "config", "return_weights", *settings}
    given = {name: value for name, value in bound.arguments.items() if name not in no_inputs}
    if not any(name.startswith("keep") and value is not None for name, value in given.items()):
        given.pop("dropout_rate", None)
    declared = bound.signature.parameters
    others = {name: value for name, value in given.items() if value is not declared[name].default}
    return {name: value for name, value in others.items() if not isinstance(value, Mapping) or value}


def _own(value: Any) -> Any:
    """A copy that is laid out in its own order: the reference hands on views, such as the table of tied logits, transposed."""
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
