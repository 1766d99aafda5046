"""Names of sides: code, checkpoints, components of ports, ONNX files and reports."""

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
    "--component, or a JSON report"
)
BACKEND = "torch"  # default of a checkpoint
_WORD = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")  # a module, such as torchvision.models


@dataclasses.dataclass(frozen=True)
class Side:
    """A parsed side. kind: built, checkpoint, loaded, component, `artefact` or report.

    path: a file, folder or dotted module. name: the class or function, the backend of a checkpoint,
    or the library that loads a folder.
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
    """Parses the name of a side. Raises ValueError if it names nothing."""
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py"):
        if not _WORD.fullmatch(name):
            raise ValueError(f"{text}: a class or function must follow the colon, such as {file}:Model; got {name!r}")
        return Side(text, "built", _file(file), name, settings)
    if colon and _DOTTED.fullmatch(file) and _WORD.fullmatch(name) and file not in LIBRARIES:
        return Side(text, "built", file, name, settings)
    if component and (text.endswith(".py") or text in PORTS):
        return Side(text, "component", text if text in PORTS else _file(text), "", settings, component)
    if text.endswith(".py"):
        raise ValueError(f"{text}: add a class or function, such as {text}:Model, or name a port's component with --component")
    if text.endswith(".json") and Path(text).is_file():
        return Side(text, "report", text)
    library, colon, folder = text.partition(":")
    if colon and library in LIBRARIES:
        if not Path(folder).is_dir():
            raise ValueError(f"{text}: the folder {folder} does not exist")
        return Side(text, "loaded", folder, library, settings)
    if kind := kind_of(Path(text)):
        if kind != "onnx":
            raise ValueError(f"{text} is {KINDS[kind].title}, which hides its layers; use an ONNX model")
        if settings:
            raise ValueError(f"{text} is an ONNX file; --set {', '.join(settings)} has no effect")
        return Side(text, "artefact", text)
    where, at, backend = text.rpartition("@")
    if not at:
        where, backend = text, BACKEND
    if not Path(where).exists():
        raise ValueError(f"{where} does not exist; a side must be {FORMS}")
    known(f"backend of {where}", [backend], BACKENDS)
    if settings:
        raise ValueError(f"{text} has its own config; --set {', '.join(settings)} has no effect")
    return Side(text, "checkpoint", where, backend)


def paired(named: Sequence[Side]) -> list[Side]:
    """Returns both sides; compared with KerasHub, transformers loads its model without a head."""
    backbone = any(side.name == "keras-hub" and side.kind == "loaded" for side in named)
    return [dataclasses.replace(side, component="backbone") if backbone and side.kind == "loaded" else side for side in named]


def setting(texts: Sequence[str]) -> dict[str, Any]:
    """Parses NAME=VALUE arguments; values are numbers, true, false, none, or text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _WORD.fullmatch(name):
            raise ValueError(f"--set must be NAME=VALUE, such as width=64; got {text!r:.100}")
        if name in found:
            raise ValueError(f"--set {name} is given twice")
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
        raise ValueError(f"{path} does not exist")
    return path
