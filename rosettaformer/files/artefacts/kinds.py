"""Detects the format of an exported model from its bytes, else its suffix; runs nothing in it."""

import re
import zipfile
from pathlib import Path
from typing import NamedTuple

from ...common.extras import install

HEAD = 64  # bytes read to detect a format


class Kind(NamedTuple):
    """A format. runtime: its module in `runtimes`. needs: the packages that extra installs."""

    title: str
    suffix: str
    runtime: str
    needs: tuple[str, ...]
    extra: str

    @property
    def missing(self) -> str:
        """The error message if the runtime is not installed."""
        return f"{self.title} needs {' and '.join(self.needs)}: {install(self.extra)}"


KINDS = {
    "onnx": Kind("an ONNX model", ".onnx", "onnx", ("onnx", "onnxruntime"), "onnx"),
    "pt2": Kind("a torch.export program", ".pt2", "torch_export", ("torch",), "torch"),
    "aoti": Kind("an AOTInductor package", ".pt2", "inductor", ("torch",), "torch"),
    "savedmodel": Kind("a SavedModel", "", "saved_model", ("tensorflow",), "tf-cpu"),
    "litert": Kind("a LiteRT model", ".tflite", "litert", ("ai_edge_litert",), "litert"),
    "stablehlo": Kind("a StableHLO export", ".stablehlo", "stablehlo", ("jax",), "jax"),
}
# suffix -> format, if the bytes do not identify it
SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".tflite": "litert", ".stablehlo": "stablehlo", ".jax_export": "stablehlo"}
# first bytes -> format
_HEADS = (
    (rb".{4}TFL3", "litert"),
    (rb".{4}ORTM", "onnx"),
    (rb".{8}StableHLO_v|.{4,12}jax_export", "stablehlo"),
    (rb"\x08[\1-\x20](\x12[\1-\x40]|\x1a|\x3a|\x42)", "onnx"),
)
_COMPILED = re.compile(r".*aotinductor/.*|.*\.(so|dylib|dll)")


def kind_of(path: Path) -> str:
    """Returns the name of the format; empty if the file is not an exported model."""
    if path.is_dir():
        return "savedmodel" if any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")) else ""
    if path.suffix == ".py" or not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(HEAD)
    by_head = next((kind for pattern, kind in _HEADS if re.match(pattern, head, re.DOTALL)), "")
    return by_head or _of_archive(path) or SUFFIXES.get(path.suffix, "")


def _of_archive(path: Path) -> str:
    """Returns the format of a zip archive, judging by its members; empty if it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return ""
    if any(_COMPILED.fullmatch(name) for name in names):
        return "aoti"
    return "pt2" if any(name.endswith("archive_format") for name in names) else ""
