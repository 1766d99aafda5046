"""`check model.onnx --checkpoint`: a file with weights of its own is judged like a port."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from invoke import invoke
from onnx_files import edited, scaled, written

from reference_numpy import parameters, preset
from rosettaformer import checkpoints
from rosettaformer.artefacts import manifest
from rosettaformer.artefacts.kinds import KINDS
from rosettaformer.artefacts.signature import Entry, Tensor
from rosettaformer.checkpoints.hugging_face import new
from rosettaformer.checkpoints.hugging_face.families import FAMILIES

SMALL = {"model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4, "feed_forward_width": 12}
VOCABULARY = {"source_vocabulary": 19, "target_vocabulary": 19}
GPT2 = preset("gpt2_small").replace(**SMALL, **VOCABULARY, decoder_layers=2, max_positions=64)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written(tmp_path_factory.mktemp("gpt2"), GPT2, parameters.initialise(GPT2, 0, np.float32))


def run(*words: object) -> tuple[int, str]:
    found = invoke(*map(str, words))
    return found.code, found.out + found.err


def rows_of(folder: Path, *words: object) -> tuple[int, dict[str, dict]]:
    code, _ = run(*words, "--json", folder / "found.json")
    return code, {row["case"]: row for row in json.loads((folder / "found.json").read_text())["results"]}


def test_a_right_file_conforms_and_says_what_becomes_of_ids_out_of_range(gpt2, tmp_path: Path) -> None:
    checkpoint, file = gpt2
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint)
    assert code == 0
    passed = {name.partition("/")[2] for name, row in rows.items() if row["status"] == "pass"}
    assert passed >= {
        "short",
        "one_token",
        "batch",
        "long",
        "left_padding",
        "right_padding",
        "five_rows",
        "empty_row",
        "target_id_vocabulary",
    }
    assert rows["transformer/target_id_minus_one"]["status"] in ("pass", "told")
    assert rows["decode_in_steps/steps"]["message"] == "the file has no function that takes a cache"


def test_a_wrong_initialiser_differs(gpt2) -> None:
    checkpoint, file = gpt2
    wrong = edited(file, "wrong.onnx", lambda graph: scaled(graph, -1, 1.01))
    code, said = run("check", wrong, "--checkpoint", checkpoint, "-k", "short")
    assert code == 1
    assert "next: rosettaformer diagnose" in said and f"--checkpoint {checkpoint}" in said


def test_an_artefact_needs_a_checkpoint_and_no_port_beside_it(gpt2) -> None:
    checkpoint, file = gpt2
    code, said = run("check", file)
    assert (code, "is an ONNX model, with weights of its own: --checkpoint says which they are" in said) == (2, True)
    code, said = run("check", file, "torch", "--checkpoint", checkpoint)
    assert (code, "torch is no artefact" in said) == (2, True)
    code, said = run("check", file, "--checkpoint", checkpoint, "--dtype", "float64")
    assert (code, "takes no --dtype" in said) == (2, True)
    code, said = run("check", "torch", "--expect", "int8")
    assert (code, "--expect is of artefacts" in said) == (2, True)


@pytest.mark.second
def test_a_damaged_file_is_one_sentence(gpt2) -> None:
    checkpoint, file = gpt2
    torn = file.with_name("torn.onnx")
    torn.write_bytes(file.read_bytes()[:2000])
    code, said = run("check", torn, "--checkpoint", checkpoint)
    assert (code, "must be an ONNX model, and is damaged" in said, "Traceback" in said) == (2, True, False)
    code, said = run("check", file.with_name("none.onnx"), "--checkpoint", checkpoint)
    assert (code, "there is no file" in said) == (2, True)
    archive = file.with_name("torn.pt2")
    archive.write_bytes(b"PK\x03\x04" + b"\0" * 60 + b"PK\x05\x06" + b"\xff" * 18)
    code, said = run("check", archive, "--checkpoint", checkpoint)
    assert (code, "Traceback" in said, "must be a zip archive of torch.export, and is damaged" in said) == (2, False, True)


@pytest.mark.second
def test_what_only_looks_like_an_artefact_or_its_manifest_is_none(gpt2) -> None:
    checkpoint, file = gpt2
    code, said = run("check", "--command", f"false {file}", "-k", "softmax", "--dtype", "float32")
    assert (code, "--checkpoint" in said) == (1, False), said
    file.with_name("model.onnx.json").write_text('{"voice": "another program writes such files"}')
    assert run("check", file, "--checkpoint", checkpoint, "-k", "short")[0] == 0
    file.with_name("model.onnx.json").unlink()


@pytest.mark.second
def test_a_lower_precision_is_told(gpt2) -> None:
    checkpoint, file = gpt2
    from onnxruntime.quantization import QuantType, quantize_dynamic

    lower = file.with_name("int8.onnx")
    quantize_dynamic(file, lower, weight_type=QuantType.QInt8)
    assert run("check", lower, "--checkpoint", checkpoint, "-k", "batch")[0] == 1
    code, rows = rows_of(file.parent, "check", lower, "--checkpoint", checkpoint, "-k", "batch", "--expect", "int8")
    assert (code, "times float32's tolerance, as int8 is" in rows["transformer/batch"]["message"]) == (0, True)
    assert rows["transformer/batch"]["beyond"] > 1
    assert "at most" in (said := run("check", lower, "--checkpoint", checkpoint, "--expect", "int8")[1]) and "as int8 is" in said
    wrong = edited(file, "wrong_int8.onnx", lambda graph: scaled(graph, -1, 3.0))
    code, said = run("check", wrong, "--checkpoint", checkpoint, "-k", "batch", "--expect", "int8")
    assert (code, "more than int8 explains" in said) == (1, True)


@pytest.mark.second
def test_a_table_says_what_inputs_are(gpt2) -> None:
    checkpoint, file = gpt2
    misleading = {"target": "attention_mask", "target_mask_bt": "input_ids"}

    def renamed(graph) -> None:
        for node in graph.node:
            node.input[:] = [misleading.get(name, name) for name in node.input]
        for value in graph.input:
            value.name = misleading.get(value.name, value.name)

    asked = ("check", edited(file, "renamed.onnx", renamed), "--checkpoint", checkpoint, "-k", "short")
    assert run(*asked)[0] == 1
    assert run(*asked, "--input", "attention_mask=target", "--input", "input_ids=target_mask")[0] == 0
    code, said = run(*asked, "--input", "b=target")
    assert (code, "it has no b" in said) == (2, True)
    code, said = run(*asked, "--input", "input_ids=targt")
    assert (code, "nearest: target" in said) == (2, True)


@pytest.mark.second
def test_both_stacks_and_fixed_lengths(tmp_path: Path) -> None:
    config = preset("paper_base").replace(**SMALL, **VOCABULARY, encoder_layers=1, decoder_layers=1, padding_id=0)
    checkpoint, file = written(tmp_path, config, parameters.initialise(config, 0, np.float32))
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint)
    assert code == 0
    assert sum(row["status"] == "pass" for row in rows.values()) >= 14
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    checkpoint, file = written(fixed, config, parameters.initialise(config, 0, np.float32), fixed=True)
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint, "--allow-incomplete")
    assert code == 0
    assert rows["transformer/fixed"]["status"] == rows["transformer/fixed_padding"]["status"] == "pass"
    assert rows["transformer/long"]["status"] == "not shown"
    assert run("check", file, "--checkpoint", checkpoint)[0] == 1


def test_an_entry_that_the_graph_cannot_contain_is_a_finding(gpt2, tmp_path: Path) -> None:
    checkpoint, file = gpt2
    other = tmp_path / "other.safetensors"
    checkpoints.save(other, GPT2.replace(epsilon=3e-4), checkpoints.load(checkpoint).parameters)
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", other, "-k", "one_token")
    assert code == 1
    assert rows["config.json/epsilon"]["status"] == "differs"
    assert "0.0003" in rows["config.json/epsilon"]["message"]
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint, "-k", "one_token")
    assert (code, [name for name in rows if name.startswith("config.json")]) == (0, [])


@pytest.mark.second
@pytest.mark.parametrize("kind", ["onnx", "pt2", "aoti", "savedmodel", "litert", "stablehlo"])
def test_what_export_writes_conforms_whole_and_in_steps(kind: str, gpt2, tmp_path: Path) -> None:
    checkpoint, _ = gpt2
    file = tmp_path / f"model{KINDS[kind].suffix}"
    code, said = run("export", checkpoint, "--to", kind, "--out", file)
    assert code == 0, said
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint, "--allow-code")
    assert (code, {row["status"] for row in rows.values()}) == (0, {"pass"})
    assert any(name.startswith("decode_in_steps") for name in rows)
    if kind == "aoti":
        code, said = run("check", file, "--checkpoint", checkpoint)
        assert (code, "--allow-code opens it" in said) == (2, True)


EVERY = [
    pytest.param(family, kind, marks=pytest.mark.second if kind == "onnx" else pytest.mark.exhaustive)
    for family in FAMILIES
    for kind in KINDS
]


@pytest.mark.parametrize(("family", "kind"), EVERY)
def test_every_family_is_exported_to_every_format(family: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"model{KINDS[kind].suffix}"
    new.write(family, tmp_path / "folder", seed=1)
    code, said = run("export", tmp_path / "folder", "--to", kind, "--out", file)
    assert code == 0, said
    code, said = run("check", file, "--checkpoint", tmp_path / "folder", "--allow-code", "-k", "not long and not medium")
    assert code == 0, said


@pytest.mark.second
def test_a_manifest_of_another_function_is_refused(gpt2, tmp_path: Path) -> None:
    checkpoint, _ = gpt2
    file = tmp_path / "model.onnx"
    assert run("export", checkpoint, "--to", "onnx", "--out", file)[0] == 0
    beside = file.with_name("model.onnx.json")
    said = json.loads(beside.read_text())
    for change in ({"signature": "backward"}, {"inputs": {"x": {"dtype": "int64", "shape": []}}}):
        said["entries"]["forward"] |= change
        beside.write_text(json.dumps(said))
        code, told = run("check", file, "--checkpoint", checkpoint)
        assert (code, "must have the function" in told) == (2, True)


DAMAGES = {
    "an entry without a file": lambda said: said["entries"]["forward"].pop("file"),
    "an entry without a signature": lambda said: said["entries"]["forward"].pop("signature"),
    "a file without a digest": lambda said: said["entries"]["forward"].update(file="other.onnx"),
    "no digest of its own file": lambda said: said.update(files={}, entries={}),
    "a folder": lambda said: said["files"].update({"..": ""}),
    "ids that say nothing": lambda said: said.update(ids=7),
    "ids of an input that say nothing": lambda said: said.update(ids={"target": ["nan"]}),
    "a dtype that is none": lambda said: said["entries"]["forward"]["inputs"].update(x={"dtype": 7, "shape": []}),
    "sizes that are none": lambda said: said["entries"]["forward"]["inputs"].update(x={"dtype": "int64", "shape": [None]}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_one_sentence(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"model")
    entry = Entry("forward", (Tensor("x", "int64", ("rows", 3)),), (Tensor("y", "float32", ()),))
    digests, entries = {file.name: manifest.digest(file)}, {"forward": manifest.described(entry, file.name)}
    manifest.write(file, manifest.Manifest("onnx", "float32", "refused", GPT2.to_dict(), {"torch": "2"}, digests, entries))
    assert manifest.read(file) is not None
    said = json.loads(manifest.beside(file).read_text())
    DAMAGES[damage](said)
    manifest.beside(file).write_text(json.dumps(said))
    with pytest.raises(ValueError, match="must be a manifest of rosettaformer export; ") as found:
        manifest.read(file)
    assert "\n" not in str(found.value)
