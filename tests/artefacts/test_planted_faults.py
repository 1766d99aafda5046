"""Faults that are planted in exports of transformers' models: `check` catches each, and what docs/artefacts.md says of each is said."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx
from invoke import invoke
from onnx import helper, numpy_helper
from onnx_faults import FAULTS, exported, faulty

from reference_numpy import parameters, preset
from rosettaformer.artefacts.constants import constants
from rosettaformer.artefacts.declared import findings, weights

PAGE = Path(__file__).parents[2] / "docs/artefacts.md"
ROW = re.compile(r"^\| `(\w+)` \|[^|]+\| `([\w.]+)` \| (\w*) \| (?:`([^`]+)`)? \|$", re.MULTILINE)
SAID = {name: (base, command, words) for name, base, command, words in ROW.findall(PAGE.read_text())}
SQUARE = preset("gpt2_small").replace(
    model_width=8, heads=2, key_value_heads=2, key_size=4, value_size=4, feed_forward_width=12, target_vocabulary=19, decoder_layers=3,
    max_positions=16,
)  # fmt: skip
KERNELS = [f"decoder.layers.{layer}.{part}.kernel" for layer in range(3) for part in ("self_attention.output", "feed_forward.hidden")]


def graph(held: dict[str, np.ndarray], path: Path, narrow: bool = False) -> Path:
    """A graph that multiplies by these matrices, or adds what is none, one after the other. narrow: in the end it converts to float16."""
    nodes = [helper.make_node("MatMul" if array.ndim == 2 else "Add", ["x", name], [f"y{name}"]) for name, array in held.items()]
    nodes += [helper.make_node("Cast", ["x"], ["z"], name="last", to=onnx.TensorProto.FLOAT16)] * narrow
    end = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["b", 8])
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name) for name, array in held.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", [end], [], tensors)), path)
    return path


def test_weights_that_are_not_the_checkpoints_are_told(tmp_path: Path) -> None:
    own = parameters.initialise(SQUARE, 0, np.float32)
    for number, (name, array) in enumerate(own.items()):
        own[name] = array + np.arange(array.size, dtype=np.float32).reshape(array.shape) / (7 + number)
    own = {name: array for name, array in own.items() if name in KERNELS or name.endswith("hidden.bias")}
    right = {f"w{number}": own[name].reshape(-1, own[name].shape[-1]) for number, name in enumerate(KERNELS)}
    right |= {f"b{number}": own[f"decoder.layers.{number}.feed_forward.hidden.bias"] for number in range(3)}

    def said(narrow: bool = False, **changes: np.ndarray) -> list[str]:
        found = constants(graph(right | changes, tmp_path / "net.onnx", narrow))
        return [*(finding.sentence for finding in weights.findings(SQUARE, own, found))] + [
            finding.sentence for finding in findings(SQUARE, found) if finding.field == "precision"
        ]

    assert said() == []
    assert said(w2=right["w2"].T) == ["w2 multiplies by the transposed decoder.layers.1.self_attention.output.kernel"]
    exchanged = said(w1=right["w3"], w3=right["w1"])
    assert exchanged == ["in the order of the graph decoder.layers.N.feed_forward.hidden.kernel is that of the layers 1, 0, 2"]
    absent = "the graph holds no decoder.layers.1.feed_forward.hidden.bias, as it holds those of other layers; b1 "
    assert said(b1=0 * right["b1"]) == [absent + "is zero"]
    assert said(b1=2 * right["b1"]) == [absent + "holds other numbers"]
    assert said(b0=2 * right["b0"], b1=2 * right["b1"], b2=2 * right["b2"]) == []  # an exporter may have folded them all
    assert said(narrow=True) == ["the graph's weights are float32, and it converts to float16 in last"]


def test_the_page_has_every_fault() -> None:
    assert {name: base for name, (base, *_) in SAID.items()} == {name: base for name, (base, _) in FAULTS.items()}
    named = [name for name, (_, _, words) in SAID.items() if words]
    assert len(FAULTS) >= 15 and len(named) >= 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("transformers", "onnxscript"):
        pytest.importorskip(package)
    return tmp_path_factory.mktemp("faults")


def checked(path: Path, file: Path) -> tuple[int, dict[str, dict]]:
    found = invoke("check", file, "--checkpoint", path, "--json", file.with_suffix(".json"))
    return found.code, {row["case"]: row for row in json.loads(file.with_suffix(".json").read_text())["results"]}


@pytest.mark.conformance
@pytest.mark.parametrize("base", sorted({base for base, _ in FAULTS.values()} - {"gpt2.fixed", "gpt2.float64"}))
def test_an_export_without_a_fault_conforms(base: str, folder: Path) -> None:
    code, rows = checked(*exported(base, folder))
    assert code == 0, [row["message"] for row in rows.values()]


@pytest.mark.conformance
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_and_named(name: str, folder: Path) -> None:
    path, file = faulty(name, folder)
    code, rows = checked(path, file)
    assert code == 1
    wrong = {case for case, row in rows.items() if row["status"] in ("differs", "error", "not shown")}
    assert any(case.partition("/")[2] in ("short", "batch", "left_padding", "long", "two_segments") for case in wrong), wrong
    _, command, words = SAID[name]
    if command == "check":
        assert words in " ".join(row["message"] for row in rows.values())
    elif command == "diagnose":
        found = invoke("diagnose", file, "--checkpoint", path, "--limit", "600", "--no-pairs")
        assert found.code == 1 and words in found.out, found.out
