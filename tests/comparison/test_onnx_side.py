"""`rosettaformer compare` with an ONNX file on one side: its layers are the scopes of its nodes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused
from onnx_exports import exported
from published_pairs import MODELS, report_of, told

from rosettaformer.files import checkpoints

pytestmark = pytest.mark.usefixtures("sides_in_process")
FAMILIES = ("llama", "gpt2", "bert")
MODULE = f"{MODELS / 'dense_pair.py'}:Net"


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for package in ("torch", "onnx", "onnxruntime"):
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("transformers", "onnxscript"):
        pytest.importorskip(package)
    return tmp_path_factory.mktemp("exports")


def compare(left: object, right: object, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    found = invoke("compare", left, right, "-q", "--json", tmp_path / "report.json", *options)
    assert found.code in (0, 1), found
    return found.code, report_of(tmp_path)


def net(tmp_path: Path, change: float = 0.0, names: str = "scopes", operator: str = "Tanh") -> Path:
    """The two dense layers of MODULE as a file. names: how the nodes encode their scopes."""
    import onnx
    from onnx import helper, numpy_helper

    sizes = {"inner.weight": (4, 4), "inner.bias": (4,), "outer.weight": (3, 4), "outer.bias": (3,)}
    values = {name: np.cos(np.arange(np.prod(size)) * 1.7 + index).reshape(size) for index, (name, size) in enumerate(sizes.items())}
    values["outer.weight"][0, 1] += change
    nodes = []
    for layer, given, made in (("inner", "x", "a"), ("outer", "h", "y")):
        nodes += [
            helper.make_node("MatMul", [given, f"{layer}.weight"], [f"{made}0"], name=f"/{layer}/MatMul" * (names == "paths")),
            helper.make_node("Add", [f"{made}0", f"{layer}.bias"], [made], name=f"/{layer}/Add" * (names == "paths")),
        ]
        for node in nodes[-2:] if names == "scopes" else ():
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{layer}', 'linear']")
    nodes.insert(2, helper.make_node(operator, ["a"], ["h"]))
    if names == "none":  # an exporter that transposes a kernel loses its name
        for layer, node in (("inner", nodes[0]), ("outer", nodes[3])):
            node.input[1] = f"val_{layer}"
            values[node.input[1]] = values.pop(f"{layer}.weight")
    held = [numpy_helper.from_array(np.ascontiguousarray(array.T, np.float32), name) for name, array in values.items()]
    ends = [helper.make_tensor_value_info(name, 1, ["b", size]) for name, size in (("x", 4), ("y", 3))]
    model = helper.make_model(
        helper.make_graph(nodes, "net", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("names", ["scopes", *(pytest.param(names, marks=pytest.mark.conformance) for names in ("paths", "none"))])
def test_layers_are_the_scopes_of_nodes(names: str, tmp_path: Path) -> None:
    """The exporter may use any names; a difference is located by its layer."""
    file = net(tmp_path, names=names)
    code, report = compare(file, MODULE, tmp_path, "--input", "x: b=5 i=4 float32")
    assert (code, report["verdict"], report["weights"]) == (0, "equal", "own")
    assert [(row["left"], row["right"]) for row in report["layers"]] == [("inner", "inner"), ("outer", "outer")]
    assert all(len(row["forced"]) == 2 for row in report["layers"])
    assert any("no gradients" in note for note in report["notes"])
    net(tmp_path, 0.5, names)
    code, report = compare(MODULE, file, tmp_path, "--input", "x: b=5 i=4 float32")
    where, said = told(report)
    assert (code, where) == (1, ("outer",)) and "values of outer.weight" in said


@pytest.mark.conformance
def test_what_a_file_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    file = net(tmp_path)
    options = ("--input", "x: b=5 i=4 float32")
    assert "must be own" in refused("compare", file, MODULE, "--weights", "left", *options)
    file.write_bytes(file.read_bytes()[:100])
    assert "net.onnx" in refused("compare", file, MODULE, *options)
    (tmp_path / "net.tflite").write_bytes(b"\0\0\0\0TFL3")
    assert "layers" in refused("compare", tmp_path / "net.tflite", MODULE, *options)


@pytest.mark.conformance
def test_an_operator_without_float64_is_told(tmp_path: Path) -> None:
    file = net(tmp_path, operator="Erf")
    code, report = compare(file, file, tmp_path, "--input", "x: b=5 i=4 float32")
    assert code == 0 and any("Erf" in note and "float32" in note for note in report["notes"])
    assert not any("no float64" in note for note in report["notes"])


@pytest.mark.conformance
def test_an_optimised_graph_that_differs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rosettaformer.comparison.models.onnx_model import OnnxModel

    file = net(tmp_path)
    inputs = {"x": np.ones((2, 4), np.float32)}
    model = OnnxModel(file)
    model.build(inputs)
    assert not any("ONNX Runtime" in note for note in model.notes)
    run = model._artefact.run
    monkeypatch.setattr(model._artefact, "run", lambda entry, given: {name: 1.01 * array for name, array in run(entry, given).items()})
    model.build(inputs)
    assert any("ONNX Runtime" in note for note in model.notes)


@pytest.mark.conformance
@pytest.mark.parametrize("beside", ["transformers:{}", "{}@torch", "{}@jax"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_equal_to_its_model(family: str, beside: str, folder: Path, tmp_path: Path) -> None:
    """Most layers are matched, and each has the same output for the same input."""
    path, file = exported(family, folder)
    code, report = compare(file, beside.format(path), tmp_path)
    assert code == 0 and report["first"] is None, report["sentences"]
    leaves = [row for row in report["layers"] if row["leaf"]]
    if family == "llama":  # the first layer also computes the positions that later ones share
        first = next(row for row in report["layers"] if row["left"] == "model.layers.0")
        assert first["free"]["verdict"] in ("equal", "rounding"), first
    assert all(row["verdict"] in ("equal", "rounding") for row in report["outputs"] + [row for row in leaves if row["forced"]])
    assert len(leaves) > 2 * len(report["unmatched"][0])
    numbers = next(note for note in report["notes"] if note.startswith("matched by value"))
    assert int(numbers.split()[5]) - int(numbers.split()[3]) <= 1, numbers  # the rotary frequencies are a constant


# planted difference -> the layer, or the first words of the layers around it, compared with the transformers model
PLACES = {
    "llama": {
        "epsilon": ("model.layers.1.input_layernorm",),
        "scale": ("model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj"),
        "activation": ("model.layers.1.mlp.act_fn",),
        "values": ("model.layers.1.mlp.up_proj",),
        "factor": ("model.layers.2.self_attn.v_proj",),
    },
    "gpt2": {
        "epsilon": ("transformer.h.1.ln_1",),
        "scale": ("transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj"),
        "activation": ("transformer.h.1.mlp.act",),
        "transposed": ("transformer.h.1.attn.c_proj",),
    },
    "bert": {"activation": ("bert.encoder.layer.1.intermediate.intermediate_act_fn",)},
}


@pytest.mark.conformance
@pytest.mark.parametrize(("family", "what"), [(family, what) for family, places in PLACES.items() for what in places])
def test_a_difference_in_a_graph_is_found_where_it_is(family: str, what: str, folder: Path, tmp_path: Path) -> None:
    from onnx_faults import planted

    path, file = exported(family, folder)
    places = PLACES[family][what]
    layer = places[0] if len(places) == 1 else places[0].rpartition(".")[0]
    other = planted(what, layer, file, tmp_path / "planted.onnx")
    code, report = compare(other, f"transformers:{path}", tmp_path)
    where, said = told(report)
    assert (code, where) == (1, places), said
    if what in ("values", "factor"):
        assert "values of " in said
    if what == "epsilon":
        assert "epsilon 0.03 on the left" in said
    rows = [row for row in report["layers"] if row["left"].rpartition(".")[2] in ("attn", "self_attn", "attention", "mlp")]
    assert rows and {row["free"]["verdict"] for row in rows} <= {"rounding", "equal", "differs"}
    assert all(row["shape"][-1] == rows[0]["shape"][-1] and math.isfinite(row["free"]["units"]) for row in rows)


@pytest.mark.conformance
@pytest.mark.parametrize("dynamic", [True, False])
def test_our_own_decoder_is_equal_as_a_file(dynamic: bool, folder: Path, tmp_path: Path) -> None:
    """Its tokens are the target, which others call input_ids; a file of fixed sizes runs at those sizes."""
    from onnx_files import LENGTH, ROWS, written

    path, _ = exported("llama", folder)
    read = checkpoints.load(path)
    values = {name: array.astype(np.float32) for name, array in read.parameters.items()}
    _, own = written(tmp_path, read.config, values, fixed=not dynamic)
    for left, right in ((f"{path}@torch", own), (own, f"transformers:{path}")):
        code, report = compare(left, right, tmp_path)
        assert code == 0 and report["first"] is None, report["sentences"]
        assert report["inputs"]["target"]["shape"] == ([2, 7] if dynamic else [ROWS, LENGTH])
    masked, tokens = tmp_path / "masked.npz", np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) + 3
    np.savez(masked, input_ids=tokens, attention_mask=np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 2]]))
    code, report = compare(own, f"transformers:{path}", tmp_path, "--input", str(masked))
    assert code == 0 and report["first"] is None, report["sentences"]
    assert not any("takes no" in note for note in report["notes"])
