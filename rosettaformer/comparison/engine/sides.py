"""What LEFT and RIGHT name: a class or function of a file or a module, a checkpoint in a backend, a folder that a library loads, a port's
component, an ONNX file, or an earlier report.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_numpy.suggestions import known

from ...common.backends import BACKENDS, PORTS
from ...files.artefacts.kinds import KINDS, kind_of

LIBRARIES = ("transformers", "keras-hub")
FORMS = (
    "FILE.py:NAME, MODULE:NAME, CHECKPOINT@BACKEND, transformers:DIR, keras-hub:DIR, an ONNX file, a port (FILE.py, torch, tf or jax) with "
    "--component, or the JSON of an earlier comparison"
)
BACKEND = "torch"  # of a checkpoint that names none
_WORD = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")  # the path of a module, such as torchvision.models


@dataclasses.dataclass(frozen=True)
class Side:
    """One side, as it was named. kind: built, checkpoint, loaded, component, artefact or report.

    path: of a file or a folder, or a module's dotted path. name: the class or function, the backend of a checkpoint, or the library that
    loads a folder.
    """

    text: str
    kind: str
    path: str
    name: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    component: str = ""

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"settings": dict(self.settings)}


def parse(text: str, settings: Mapping[str, Any], component: str = "") -> Side:
    """Returns the side that a text names. Raises ValueError if there is none."""
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py"):
        if not _WORD.fullmatch(name):
            raise ValueError(f"{text}: a class or a function must be named after the colon, as in {file}:Model; got {name!r}")
        return Side(text, "built", _file(file), name, settings)
    if colon and _DOTTED.fullmatch(file) and _WORD.fullmatch(name) and file not in LIBRARIES:
        return Side(text, "built", file, name, settings)
    if component and (text.endswith(".py") or text in PORTS):
        return Side(text, "component", text if text in PORTS else _file(text), "", settings, component)
    if text.endswith(".py"):
        raise ValueError(f"{text}: name its class or function, as in {text}:Model, or a port's component with --component")
    if text.endswith(".json") and Path(text).is_file():
        return Side(text, "report", text)
    library, colon, folder = text.partition(":")
    if colon and library in LIBRARIES:
        if not Path(folder).is_dir():
            raise ValueError(f"{text}: there is no folder {folder}")
        return Side(text, "loaded", folder, library, settings)
    if kind := kind_of(Path(text)):
        if kind != "onnx":
            raise ValueError(f"{text} is {KINDS[kind].title}, whose layers do not show; compare takes ONNX models")
        if settings:
            raise ValueError(f"{text}: a file takes no --set, got {', '.join(settings)}")
        return Side(text, "artefact", text)
    where, at, backend = text.rpartition("@")
    if not at:
        where, backend = text, BACKEND
    if not Path(where).exists():
        raise ValueError(f"{text}: a side must be {FORMS}; there is no file or folder {where}")
    known(f"backend of {where}", [backend], BACKENDS)
    if settings:
        raise ValueError(f"{text}: a checkpoint has its own config; it takes no --set, got {', '.join(settings)}")
    return Side(text, "checkpoint", where, backend)


def paired(named: Sequence[Side]) -> list[Side]:
    """Returns both sides; beside a backbone of KerasHub transformers loads its model without a head."""
    backbone = any(side.name == "keras-hub" and side.kind == "loaded" for side in named)
    return [dataclasses.replace(side, component="backbone") if backbone and side.kind == "loaded" else side for side in named]


def setting(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments that NAME=VALUE texts declare: numbers, true, false, none, or text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _WORD.fullmatch(name):
            raise ValueError(f"a setting must be NAME=VALUE, such as width=64; got {text!r:.100}")
        if name in found:
            raise ValueError(f"{name} is set twice")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _file(path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    return path
