"""What is constant in an artefact, read from its bytes: nothing of it is run."""

import importlib
from pathlib import Path

from ....common.extras import installed
from ..kinds import KINDS, kind_of
from ..opening import Absent
from .reading import Constants

# format -> the packages that read it, any one of them, and the module here; a compiled library has none
_READERS = {
    "onnx": (("onnx",), "onnx_graph"),
    "pt2": (("numpy",), "torch_program"),
    "savedmodel": (("tensorflow",), "saved_model"),
    "litert": (("ai_edge_litert", "tensorflow"), "litert_model"),
    "stablehlo": (("jaxlib",), "stablehlo_module"),
}


def constants(path: Path) -> Constants:
    """Returns the constants of an artefact: numbers, small tables, the shapes of weights, and the operations that its graph names.

    `reason` of the result says why nothing is known of a file: its format shows no constants, or its graph cannot be read. Raises
    ValueError if the file is no artefact, and `Absent` without the package that reads it.
    """
    if not (kind := kind_of(path)):
        raise ValueError(f"{path} must be an artefact; its bytes are none")
    if kind == "aoti":
        return Constants(reason="a compiled library shows no constants")
    packages, module = _READERS[kind]
    if not any(map(installed, packages)):
        raise Absent(KINDS[kind].missing)
    found = Constants()
    try:
        importlib.import_module(f"{__package__}.{module}").read(path, found)
        found.fold()
    except Exception as error:  # whatever a parser raises on what the runtime reads
        return Constants(reason=f"its graph cannot be read: {type(error).__name__}: {str(error)[:300]}")
    return found
