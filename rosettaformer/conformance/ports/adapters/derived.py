"""Derives inputs that a case does not have from the ones it has, for modules that are told the same in another way."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import mask, preset

from ...case import Case, numpy_dtype
from ...reference import components
from ..port import NotCovered

ZEROS = "zeros_btd"  # what a module is given that adds the positions to it
_TOKENS = {"source_mask_bs": "source", "target_mask_bt": "target"}  # masks that follow from the ids if a case has none


def inputs_of(component: str) -> list[str]:
    """The names of the reference's inputs of a component, in their order."""
    given = {"parameters", "config", *components.config_arguments(component, preset("tiny"), "float64")}
    return [name for name in components.signature_of(component).parameters if name not in given]


def stands_for(component: str) -> dict[str, str]:
    """The derived inputs of a component, each with the input that it stands for.

    `zeros_btd` stands for the positions, to which a module adds its own; `length_b` for a mask (`self_length_b` for `self_mask_bhts`): how
    many keys of each row are real, if these stand before the padding.
    """
    lengths = {f"{name.rpartition('_')[0].removesuffix('mask')}length_b": name for name in inputs_of(component) if _is_key_mask(name)}
    return lengths | ({ZEROS: "position_bt"} if component == "positional_encoding" else {})


def derived(case: Case) -> tuple[dict[str, np.ndarray | None], dict[str, str]]:
    """The derived inputs of a case by name, and for the others why they cannot say what the case has."""
    found: dict[str, np.ndarray | None] = {}
    refused: dict[str, str] = {}
    for name, of in stands_for(case.component).items():
        make: Callable[[Case, str], np.ndarray | None] = _zeros if name == ZEROS else _lengths
        try:
            found[name] = make(case, of)
        except NotCovered as error:
            refused[name] = str(error)
    return found, refused


def _is_key_mask(name: str) -> bool:
    return name.rpartition("_")[0].endswith("mask") and name.rpartition("_")[2] in ("bhts", "bs", "bt")


def _zeros(case: Case, of: str) -> np.ndarray:
    position = np.asarray(case.inputs[of])
    if position.ndim != 2 or not np.array_equal(position, np.broadcast_to(np.arange(position.shape[1]), position.shape)):
        raise NotCovered("the module adds positions 0, 1, 2, ... to what it is given, and the case has others")
    return np.zeros((*position.shape, case.config.model_width), numpy_dtype(case.dtype))


def _lengths(case: Case, of: str) -> np.ndarray | None:
    """Returns the number of real keys of each row; None if the mask hides nothing."""
    real_bs = _keys(case.inputs, of, case.config.padding_id)
    if real_bs is None:
        return None
    length_b = real_bs.sum(-1)
    if not np.array_equal(real_bs, np.arange(real_bs.shape[1]) < length_b[:, None]):
        raise NotCovered(f"the module is told how many keys of a row are real, and {of} hides others than the last ones")
    return length_b


def _keys(inputs: Mapping[str, Any], of: str, padding_id: int | None) -> np.ndarray | None:
    """Returns which keys of each row are real; None if none is hidden."""
    value = inputs.get(of)
    if value is None:
        tokens = inputs.get(_TOKENS.get(of, ""))
        return None if tokens is None or padding_id is None or tokens.ndim != 2 else mask.token_mask(tokens, padding_id)
    if of.endswith("_bhts"):
        if value.shape[1:3] != (1, 1):
            raise NotCovered(f"the module is told how many keys of a row are real, and {of} differs by query or head")
        value = value[:, 0, 0]
    return np.asarray(value)
