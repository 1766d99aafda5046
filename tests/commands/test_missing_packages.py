"""A missing package is reported before any work: exit 3, immediately, with the install command, and no file is written."""

import json
import pickle
import re
import sys
import zipfile
from pathlib import Path

import pytest
from invoke import invoke
from kinds import every

from rosettaformer.cli import COMMANDS
from rosettaformer.common import extras

TORCH, TF, JAX = ("torch",), ("tensorflow", "keras"), ("jax", "flax")
TRAIN = "train --task reverse --out out --backend numpy"
MODEL = "{} folder --backend numpy"
# command -> the packages hidden from it, and the extra it names
HIDDEN = {
    "check torch --json out": (TORCH, "torch"),
    "check torch tf": (TF, "tf-cpu"),
    "check jax --component softmax": (JAX, "jax"),
    "check": ((*TORCH, *TF, *JAX), "torch,tf-cpu,jax"),
    "check torch --html out": (("jinja2",), "report"),
    "check model.onnx --checkpoint folder --json out": (("onnxruntime",), "onnx"),
    "check model.pt2 --checkpoint folder": (TORCH, "torch"),
    "check model.tflite --checkpoint folder": (("ai_edge_litert",), "litert"),
    "check model.stablehlo --checkpoint folder": (("jax",), "jax"),
    "compare folder@torch folder@jax --json out": (JAX, "jax"),
    "compare folder@numpy model.onnx": (("onnx",), "onnx"),
    "compare torch tf --component softmax": (TF, "tf-cpu"),
    "compare transformers:folder folder": (("transformers",), ""),
    "oracle gpt2": (("transformers",), "inference"),
    "compare keras-hub:folder folder": (("keras_hub",), ""),
    "diagnose torch --json out": (TORCH, "torch"),
    "diagnose model.onnx --checkpoint folder": (("onnx",), "onnx"),
    "guide --out out": (("jinja2",), "guide"),
    "guide --out out --evidence folder": (JAX, "guide"),
    "convert folder out.pt": (TORCH, "torch"),
    "export folder --to onnx --out out.onnx": (("onnxscript",), "onnx"),
    "export folder --to savedmodel --out out": (TF, "tf-cpu"),
    "inspect model.pt": (TORCH, "torch"),
    "new-checkpoint llama --tokenizer --out out": (("tokenizers",), "inference"),
    TRAIN: (("filelock",), "train"),
    "train --task reverse --out out": (TORCH, "torch"),
    "train --task number-words --out out --backend numpy": (("num2words",), "train"),
    **{MODEL.format(name): (("transformers",), "inference") for name in ("generate", "classify", "fill-mask", "embed")},
    "generate folder --prompt a": (TORCH, "torch"),
    "generate folder --artefact model.onnx --prompt a": (("onnxruntime",), "onnx"),
    "generate folder --prompt a --backend numpy --chat": (("jinja2",), "inference"),
    "attention folder --text a --out out": (("jinja2",), "report"),
    "report --checkpoint folder --out out": (("jinja2", "matplotlib"), "report"),
    "report --checkpoint folder --out out --text a": (("transformers",), "inference"),
    "compare-training --backend jax --json out": (JAX, "jax"),
    "compare-training --backend numpy --picture out.png": (("matplotlib",), "report"),
}
# commands that only need the base package, or the packages of their port
BASE = {"doctor", "list", "explain", "new-port", "vectors", "plan"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Creates a folder with the files that the commands name; they are unreadable, so that the error shows which came first."""
    for name in ("folder", "run"):
        (tmp_path / name).mkdir()
    for name in ("model.onnx", "model.pt2", "model.tflite", "model.stablehlo"):
        (tmp_path / name).write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}, 2))
    return tmp_path


@pytest.mark.parametrize("line", every(4, HIDDEN))
def test_a_missing_package_is_found_before_any_work(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, extra = HIDDEN[line]
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    before = sorted(path.name for path in place.iterdir())
    invoke(line.split()[0], "--help")  # imports the command
    found = invoke(*line.split(), folder=place)
    assert (found.code, found.out) == (3, ""), found
    assert sorted(path.name for path in place.iterdir()) == before
    (named,) = re.findall(r"pip install (.*)", found.err)
    assert f"[{extra}]" in named if extra else "rosettaformer" not in named
    assert all(package in found.err for package in packages if package.replace("_", "-") not in named)


def test_every_command_is_in_the_table() -> None:
    assert {line.split()[0] for line in HIDDEN} == COMMANDS.keys() - BASE


class _Distribution:
    """An installation whose record has its origin; a checkout's egg-info has none."""

    def __init__(self, said: object) -> None:
        self._said = said

    def read_text(self, name: str) -> str | None:
        return None if self._said is None else json.dumps(self._said)


def _said(url: object, **more: object) -> list[_Distribution]:
    return [_Distribution(None), _Distribution({"url": str(url), **more})]


@pytest.mark.parametrize("folder", [".", "elsewhere"])
@pytest.mark.parametrize("kind", ["none", "index", "wheel", "copy", "editable"])
def test_the_command_is_that_of_how_the_package_was_installed(
    kind: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the checkout if the command runs in another folder."""
    checkout = tmp_path / "the checkout"
    (checkout / "elsewhere").mkdir(parents=True)
    found = {
        "none": [],
        "index": [_Distribution(None)],
        "wheel": _said("file:///folder/rosettaformer-0.1.0-py3-none-any.whl", archive_info={}),
        "copy": _said("file:///folder/checkout", dir_info={}),
        "editable": _said(checkout.as_uri(), dir_info={"editable": True}),
    }
    monkeypatch.setattr(extras, "distributions", lambda name: found[kind])
    monkeypatch.chdir(checkout / folder)
    extras._checkout.cache_clear()
    try:
        place = "rosettaformer" if kind != "editable" else "." if folder == "." else checkout
        assert extras.install("torch") == f"pip install {'-e ' * (kind == 'editable')}'{place}[torch]'"
    finally:
        extras._checkout.cache_clear()
