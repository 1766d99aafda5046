"""`check model.onnx --checkpoint`: a file with its own weights is judged like a port."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from messages import mentions

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
import onnx
from export_models import MODELS
from invoke import invoke
from onnx import helper, numpy_helper
from onnx_files import edited, scaled, written

from reference_numpy import parameters
from rosettaformer.files import checkpoints
from rosettaformer.files.artefacts import manifest
from rosettaformer.files.artefacts.kinds import KINDS
from rosettaformer.files.artefacts.opening import open_artefact
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.files.checkpoints.hugging_face.families import FAMILIES

FLOAT = onnx.TensorProto.FLOAT
GPT2, PAPER = MODELS["gpt2"].replace(max_positions=64), MODELS["paper"].replace(padding_id=0)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written(tmp_path_factory.mktemp("gpt2"), GPT2, parameters.initialise(GPT2, 0, np.float32))


def run(*words: object) -> tuple[int, str]:
    found = invoke(*map(str, words))
    return found.code, found.out + found.err


def refused(*words: object) -> str:
    code, said = run(*words)
    assert code == 2 and "Traceback" not in said, said
    return said


def rows_of(folder: Path, *words: object) -> tuple[int, dict[str, dict]]:
    code, _ = run(*words, "--json", folder / "found.json")
    return code, {row["case"]: row for row in json.loads((folder / "found.json").read_text())["results"]}


def test_a_right_file_conforms_and_says_what_becomes_of_ids_out_of_range(gpt2, tmp_path: Path) -> None:
    checkpoint, file = gpt2
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint)
    assert code == 0
    passed = {name.partition("/")[2] for name, row in rows.items() if row["status"] == "pass"}
    names = "short one_token batch long left_padding right_padding five_rows empty_row target_id_vocabulary"
    assert passed >= {*names.split()}
    assert rows["transformer/target_id_minus_one"]["status"] in ("pass", "told")
    assert "cache" in rows["decode_in_steps/steps"]["message"]


def test_a_wrong_initialiser_differs(gpt2) -> None:
    checkpoint, file = gpt2
    wrong = edited(file, "wrong.onnx", lambda graph: scaled(graph, -1, 1.01))
    code, said = run("check", wrong, "--checkpoint", checkpoint, "-k", "short")
    assert code == 1
    assert "next: rosettaformer diagnose" in said and f"--checkpoint {checkpoint}" in said


def test_an_artefact_needs_a_checkpoint_and_no_port_beside_it(gpt2) -> None:
    checkpoint, file = gpt2
    for words, message in (
        ((file,), "--checkpoint"),
        ((file, "torch", "--checkpoint", checkpoint), "torch"),
        ((file, "--checkpoint", checkpoint, "--dtype", "float64"), "--dtype"),
        (("torch", "--expect", "int8"), "--expect"),
    ):
        assert message in refused("check", *words)


def dropping(graph) -> None:
    """Drops values of the logits at random; ONNX Runtime's optimizer removes this."""
    last = next(node for node in graph.node if graph.output[0].name in node.output)
    last.output[0] = "kept"
    held = {"rate": np.float32(0.5), "training": np.array(True)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in held.items())
    graph.node.append(helper.make_node("Dropout", ["kept", *held], [graph.output[0].name], name="live"))


def giving_more(graph) -> None:
    """Adds an output: the logits multiplied by 2."""
    graph.node.append(helper.make_node("Add", [graph.output[0].name] * 2, ["twice"]))
    graph.output.append(helper.make_tensor_value_info("twice", onnx.TensorProto.FLOAT, ["b", "t"]))


def test_a_file_in_training_mode_and_an_output_that_nothing_judges_do_not_pass(gpt2, tmp_path: Path) -> None:
    checkpoint, file = gpt2
    both = edited(edited(file, "training.onnx", dropping), "both.onnx", giving_more)
    code, rows = rows_of(tmp_path, "check", both, "--checkpoint", checkpoint, "-k", "one_token")
    assert code == 1
    assert {name: row["status"] for name, row in rows.items() if "/" in name and name.startswith(("graph", "outputs"))} == {
        "graph/randomness": "differs",
        "outputs/forward": "not shown",
    }
    assert "live" in rows["graph/randomness"]["message"] and "twice" in rows["outputs/forward"]["message"]


@pytest.mark.conformance
def test_an_output_that_nothing_judges_is_accepted_by_name(gpt2, tmp_path: Path) -> None:
    checkpoint, file = gpt2
    more = edited(file, "more.onnx", giving_more)
    asked = ("check", more, "--checkpoint", checkpoint, "-k", "one_token")
    assert run(*asked)[0] == 1
    code, said = run("diagnose", *asked[1:])
    assert (code, "not compared outputs/forward" in said) == (1, True)
    assert run(*asked, "--tensor", "twice=ignored")[0] == 0
    assert run("diagnose", *asked[1:], "--tensor", "twice=ignored")[0] == 0
    assert run(*asked, "--tensor", "tw*=ignored")[0] == 0
    assert run(*asked, "--allow-incomplete")[0] == 0
    code, said = run("diagnose", edited(file, "training.onnx", dropping), "--checkpoint", checkpoint)
    assert (code, "graph/randomness" in said) == (1, True)


@pytest.mark.conformance
@pytest.mark.parametrize(("counted", "code"), [("real", 0), ("all", 1)])
def test_the_mean_of_a_text_is_judged(counted: str, code: int, tmp_path: Path) -> None:
    config = MODELS["bert"].replace(classes=0, pooler=False, masked_language_head=False)
    checkpoint, file = written(tmp_path, config, parameters.initialise(config, 0, np.float32))

    def pooling(graph) -> None:
        (hidden,), mask = graph.output, next(one.name for one in graph.input if "mask" in one.name)
        held = {"axis": np.array([2]), "tokens": np.array([1]), "none": np.float32(0), "one": np.float32(1)}
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
        for operation, inputs, output, options in (
            ("Cast", [mask], "weights", {"to": FLOAT}),
            ("Mul", ["weights", "none"], "zeros", {}),
            ("Add", ["zeros", "one"], "ones", {}),
            ("Unsqueeze", [{"real": "weights", "all": "ones"}[counted], "axis"], "column", {}),
            ("Mul", [hidden.name, "column"], "kept", {}),
            ("ReduceSum", ["kept", "tokens"], "summed", {"keepdims": 0}),
            ("ReduceSum", ["column", "tokens"], "exact", {"keepdims": 0}),
            ("Max", ["exact", "one"], "count", {}),
            ("Div", ["summed", "count"], "sentence_embedding", {}),
        ):
            graph.node.append(helper.make_node(operation, inputs, [output], **options))
        sides = ["b", config.model_width]
        graph.output.append(helper.make_tensor_value_info("sentence_embedding", FLOAT, sides))

    asked = ("check", edited(file, "pooling.onnx", pooling), "--checkpoint", checkpoint, "-k", "batch or right_padding or empty_row")
    for table in ((), ("--tensor", "sentence_embedding=mean")):  # its meaning is found by its numbers
        found, rows = rows_of(tmp_path, *asked, *table)
        assert (found, rows["mean/right_padding"]["status"]) == (code, "differs" if code else "pass")
        assert rows["mean/batch"]["status"] == rows["token_encoder/right_padding"]["status"] == "pass"
        assert rows.get("outputs/sentence_embedding", {}).get("status") == (None if table else "told")
    assert rows_of(tmp_path, *asked, "--tensor", "sentence_embedding=first")[0] == 1
    assert run("diagnose", *asked[1:])[0] == code


@pytest.mark.conformance
def test_a_damaged_file_is_one_sentence(gpt2) -> None:
    checkpoint, file = gpt2
    torn = file.with_name("torn.onnx")
    torn.write_bytes(file.read_bytes()[:2000])
    assert mentions(refused("check", torn, "--checkpoint", checkpoint), "ONNX … damaged")
    assert "none.onnx" in refused("check", file.with_name("none.onnx"), "--checkpoint", checkpoint)


@pytest.mark.conformance
def test_what_only_looks_like_an_artefact_or_its_manifest_is_none(gpt2) -> None:
    checkpoint, file = gpt2
    code, said = run("check", "--command", f"false {file}", "-k", "softmax", "--dtype", "float32")
    assert (code, "--checkpoint" in said) == (1, False), said
    file.with_name("model.onnx.json").write_text('{"voice": "another program writes such files"}')
    assert run("check", file, "--checkpoint", checkpoint, "-k", "short")[0] == 0
    file.with_name("model.onnx.json").unlink()


@pytest.mark.conformance
def test_a_lower_precision_is_told(gpt2) -> None:
    checkpoint, file = gpt2
    from onnxruntime.quantization import QuantType, quantize_dynamic

    lower = file.with_name("int8.onnx")
    quantize_dynamic(file, lower, weight_type=QuantType.QUInt8)  # sums of QInt8 saturate on older processors
    assert run("check", lower, "--checkpoint", checkpoint, "-k", "batch")[0] == 1
    code, rows = rows_of(file.parent, "check", lower, "--checkpoint", checkpoint, "-k", "batch", "--expect", "int8")
    assert (code, "int8" in rows["transformer/batch"]["message"]) == (0, True)
    assert rows["transformer/batch"]["beyond"] > 1
    assert "int8" in run("check", lower, "--checkpoint", checkpoint, "--expect", "int8")[1]


@pytest.mark.conformance
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
    assert run(*asked, "--tensor", "attention_mask=target", "--tensor", "input_ids=target_mask")[0] == 0
    assert "lacks: b" in refused(*asked, "--tensor", "b=target")
    assert "nearest: target" in refused(*asked, "--tensor", "input_ids=targt")


@pytest.mark.conformance
def test_both_stacks_and_fixed_lengths(tmp_path: Path) -> None:
    checkpoint, file = written(tmp_path, PAPER, parameters.initialise(PAPER, 0, np.float32))
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint)
    assert code == 0
    assert sum(row["status"] == "pass" for row in rows.values()) >= 14
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    checkpoint, file = written(fixed, PAPER, parameters.initialise(PAPER, 0, np.float32), fixed=True)
    code, rows = rows_of(tmp_path, "check", file, "--checkpoint", checkpoint, "--allow-incomplete")
    assert code == 0
    fixed = ("batch", "right_padding", "left_padding", "empty_row", "source_id_vocabulary")
    assert {rows[f"transformer/fixed_{name}"]["status"] for name in fixed} <= {"pass", "told"}
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


@pytest.mark.conformance
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exported_to_every_format(family: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"model{KINDS[kind].suffix}"
    new.write(family, tmp_path / "folder", seed=1)
    code, said = run("export", tmp_path / "folder", "--to", kind, "--out", file)
    assert code == 0, said
    asked = ("check", file, "--checkpoint", tmp_path / "folder")
    code, rows = rows_of(tmp_path, *asked, "--allow-code", "-k", "not long and not medium")
    assert code == 0, [row["message"] for row in rows.values()]
    assert family != "gpt2" or any(name.startswith("decode_in_steps") for name in rows)
    if kind == "aoti":
        assert "--allow-code" in refused(*asked)


@pytest.mark.conformance
def test_a_manifest_of_another_function_is_refused(gpt2, tmp_path: Path) -> None:
    checkpoint, _ = gpt2
    file = tmp_path / "model.onnx"
    assert run("export", checkpoint, "--to", "onnx", "--out", file)[0] == 0
    beside = file.with_name("model.onnx.json")
    said = json.loads(beside.read_text())
    for change in ({"signature": "backward"}, {"inputs": {"x": {"dtype": "int64", "shape": []}}}):
        said["entries"]["forward"] |= change
        beside.write_text(json.dumps(said))
        assert beside.name in refused("check", file, "--checkpoint", checkpoint)


@pytest.mark.conformance
def test_the_function_that_is_the_whole_model_is_chosen_by_name(gpt2, tmp_path: Path) -> None:
    checkpoint, original = gpt2
    file = Path(shutil.copy(original, tmp_path / "model.onnx"))
    described = manifest.described(open_artefact(file).entries["forward"], file.name)
    entries = {"prefill": described, "decode": described | {"signature": "backward"}}
    said = manifest.Manifest("onnx", "float32", "", GPT2.to_dict(), {}, {file.name: manifest.digest(file)}, entries)
    manifest.write(file, said)
    asked = ("check", file, "--checkpoint", checkpoint, "-k", "short")
    assert mentions(refused(*asked), "prefill, decode … --function")
    assert run(*asked, "--function", "prefill")[0] == 0
    assert "function backward" in refused(*asked, "--function", "decode")
