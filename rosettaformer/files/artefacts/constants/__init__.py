"""Reads the constants of an exported model from its bytes; nothing in the file runs."""

import importlib
from pathlib import Path

from ....common.extras import installed
from ..kinds import KINDS, kind_of
from ..opening import Absent
from .reading import Constants

# format -> packages, of which one suffices, and the module that reads it
_READERS = {
    "onnx": (("onnx",), "onnx_graph"),
    "pt2": (("numpy",), "torch_program"),
    "savedmodel": (("tensorflow",), "saved_model"),
    "litert": (("ai_edge_litert", "tensorflow"), "litert_model"),
    "stablehlo": (("jaxlib",), "stablehlo_module"),
}


def constants(path: Path) -> Constants:
    """Returns the numbers, small tables, weight shapes and operations of an exported model.

    If nothing can be read, the result's `reason` says why. Raises ValueError if the file is not an
    exported model, and `Absent` if the package that reads it is not installed.
    """
    if not (kind := kind_of(path)):
        raise ValueError(f"{path} is not an exported model; its bytes match none of the supported formats")
    if kind == "aoti":
        return Constants(reason="a compiled library shows no constants")
    packages, module = _READERS[kind]
    if not any(map(installed, packages)):
        raise Absent(KINDS[kind].missing)
    found = Constants()
    try:
        importlib.import_module(f"{__package__}.{module}").read(path, found)
        found.fold()
    except Exception as error:  # parsers raise many types on graphs that the runtime accepts
        return Constants(reason=f"its graph cannot be read: {type(error).__name__}: {str(error)[:300]}")
    return found
