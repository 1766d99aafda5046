"""Opens a checkpoint in a backend, and a component of a port."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...common.backends import BACKENDS, imported, transformer
from ...common.modules import arguments
from ...files import checkpoints
from ...judge.case import Case
from ...judge.expectation.components import DROPOUT_RATES, forward_of, signature_of, whole_model
from ...judge.ports.adapters.call_mapping import FOR, RETURN, CallMapping
from ...judge.ports.names import Names
from ...judge.ports.port import NotCovered, Port
from ...judge.suite import all_cases
from .base import Model, Translation, wrapped
from .canonical import Component, named
from .reference_model import ReferenceModel, inputs_of

OF_TEXTS = ("transformer", "pool", "classify", "masked_language_logits", "states")  # components that take a source or a target


def of_checkpoint(path: Path, backend: str) -> Model:
    """Returns the model of a checkpoint or run in a backend, with float32 weights."""
    checkpoint = checkpoints.load(path)
    # Random dropout cannot be compared.
    config = checkpoint.config.replace(**dict.fromkeys(DROPOUT_RATES, 0.0))
    values = {name: array.astype(np.float32) for name, array in checkpoint.parameters.items()}
    call = whole_model(config)
    if backend == "numpy":
        return ReferenceModel(config, values, call)
    imported(backend, BACKENDS[backend])
    method = {"transformer": "", "encode": "encode"}.get(call, call)

    def make() -> Any:
        kind = importlib.import_module("keras").config.floatx() if backend == "tf" else "float32"
        return transformer(backend, config, {name: array.astype(kind) for name, array in values.items()})

    model = wrapped(make(), make, str(path), method)
    table = Names(imported(backend, f"{BACKENDS[backend]}.weights").TABLE).table("transformer", config)
    model.canonical, model.convention, model.defaults = named(table, config, "transformer"), "", inputs_of(config)
    _take_texts(model, BACKENDS[backend], config)
    return model


def _take_texts(model: Model, package: str, config: Any) -> None:
    """Makes a built-in model take mask and segments together with their source or target."""
    if package not in BACKENDS.values():
        return
    text = importlib.import_module(f"{package}.values").Text
    source = {"source": True, "source_mask_bs": False, "segment_bs": False} if config.encoder_layers else {}
    model.known = source | ({"target": True, "target_mask_bt": False} if config.decoder_layers else {})
    model.translation = lambda inputs: _texts(text, model.known or {}, inputs)


def _texts(text: Any, known: Mapping[str, bool], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns source and target of a built-in model, each with its mask and segments."""
    given = arguments.masked(arguments.placed(known, arguments.of_decoder(known, inputs)))
    rest = {"source": ("source_mask_bs", "segment_bs"), "target": ("target_mask_bt",)}
    return {side: text(given[side], *map(given.get, own)) for side, own in rest.items() if side in given}


def of_component(port: Port, component: str, fixed: Mapping[str, Any], canonical: bool) -> Model:
    """Returns a component of a port, with the config and inputs of a case that has these config
    fields.

    The port's `call` converts inputs with the reference's names. canonical: whether variables and
    layers get canonical names.
    """
    file = port.name
    if port.adapter is None:
        raise ValueError(f"{file} is a port of functions; compare needs a port with `framework`, which has layers and weights")
    if component not in port.components:
        has = ", ".join(name for name in port.components if not forward_of(name))
        raise ValueError(f"{file} does not define {component}; it defines {has}")
    case = _chosen_case(component, fixed)
    config, build = case.config.replace(**dict.fromkeys(DROPOUT_RATES, 0.0)), port.module.components[component]

    def make() -> Any:
        return build(config, _dtype(port.module.framework))

    model = wrapped(make(), make, f"{file}: {component}")
    called = port.adapter.calls.around(None, case, list)
    if isinstance(called, CallMapping) and (words := [word for word in (FOR, RETURN) if word in called.row]):
        raise ValueError(f"{file}: compare cannot use {' and '.join(words)} in the `call` of {component}")
    model.translation = _translation(called)
    if component in OF_TEXTS and not isinstance(called, CallMapping):
        _take_texts(model, getattr(port.module, "__name__", "").partition(".")[0], config)
    model.defaults = case.inputs
    return Component(model, port.adapter.names, case, config) if canonical else model


def _chosen_case(component: str, fixed: Mapping[str, Any]) -> Case:
    """Returns the first case with these config fields and only array inputs.

    Prefers a mask that leaves every query a key. Raises ValueError if there is no such case.
    """
    cases = [case for case in all_cases(fixed) if case.component == component]
    arrays = (case for case in cases if all(isinstance(value, np.ndarray) for value in case.inputs.values()))
    found = [case for case in arrays if not case.excluded and not any(name.startswith("keep") for name in case.inputs)]
    if not found:
        raise ValueError(f"no case of {component} has only arrays" + next((f": {case.excluded}" for case in cases if case.excluded), ""))
    masks = [[value for name, value in case.inputs.items() if name.endswith("mask_bhts")] for case in found]
    masked = [case for case, own in zip(found, masks, strict=True) if own and all(mask.any(-1).all() and not mask.all() for mask in own)]
    return (masked or found)[0]


def _translation(called: Any) -> Translation:
    """Returns a function from the reference's inputs to the port's arguments."""

    def translation(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(called, CallMapping) or not inputs.keys() <= signature_of(called.component).parameters.keys():
            return inputs
        try:
            return called.arguments(inputs)
        except NotCovered as error:
            raise ValueError(str(error)) from None

    return translation


def _dtype(framework: str) -> Any:
    """Returns the dtype to build a component in: float32, except that Keras builds once per dtype."""
    if framework == "torch":
        return importlib.import_module("torch").float32
    if framework == "jax":
        return np.dtype("float32")
    return importlib.import_module("tensorflow").as_dtype(importlib.import_module("keras").config.floatx())
