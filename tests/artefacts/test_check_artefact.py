"""`check model.onnx --checkpoint`: a file with weights of its own is judged like a port."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from invoke import invoke
from onnx_files import edited, scaled, written
from tiers import second_of

from reference_numpy import parameters, preset
from rosettaformer import checkpoints
from rosettaformer.artefacts import calls, manifest
from rosettaformer.artefacts.calls import Calls
from rosettaformer.artefacts.calls import NotShown as NotShownByCalls
from rosettaformer.artefacts.kinds import KINDS
from rosettaformer.artefacts.settings import VARIABLE, Settings, told
from rosettaformer.artefacts.signature import Entry, Tensor
from rosettaformer.checkpoints.hugging_face import new
from rosettaformer.checkpoints.hugging_face.families import FAMILIES
from rosettaformer.conformance import outside
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases.artefact import artefact_cases, fixed_cases
from rosettaformer.conformance.ports.adapters.artefact import Adapter
from rosettaformer.conformance.ports.port import NotShown
from rosettaformer.conformance.reference.expectation_store import Store
from rosettaformer.conformance.status import Kind, Status

SMALL = {"model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4, "feed_forward_width": 12}
VOCABULARY = {"source_vocabulary": 19, "target_vocabulary": 19}
GPT2 = preset("gpt2_small").replace(**SMALL, **VOCABULARY, decoder_layers=2, max_positions=64)
BERT = preset("bert_base").replace(**SMALL, **VOCABULARY, encoder_layers=1, max_positions=64)
PAPER = preset("paper_base").replace(**SMALL, **VOCABULARY, encoder_layers=1, decoder_layers=1, padding_id=0)


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
    quantize_dynamic(file, lower, weight_type=QuantType.QUInt8)  # sums of QInt8 saturate on older processors
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


@pytest.mark.parametrize("kind", second_of(KINDS, ("onnx",)))
@pytest.mark.parametrize("family", second_of(FAMILIES, ("bert", "llama", "gemma2")))
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


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("name", "config"), [("gpt2_small", GPT2), ("bert_base", BERT), ("paper_base", PAPER)])
def test_padding_at_the_sizes_of_a_file_is_padding(name: str, config, rows: int, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "model.safetensors", config, parameters.initialise(config, 0, np.float32))
    made = artefact_cases(tmp_path, checkpoints.load(tmp_path / "model.safetensors"))
    found = {case.name: case for case in fixed_cases(made, {"rows": rows, "source": 8, "target": 6}) if case.name.startswith("fixed_")}
    sides = [side for side in ("source", "target") if found["fixed_batch"].inputs.get(side) is not None]
    for side in sides:
        length, mask = {"source": 8, "target": 6}[side], {"source": "source_mask_bs", "target": "target_mask_bt"}[side]
        assert {case.inputs[side].shape for case in found.values() if case.component != "decode_in_steps"} == {(rows, length)}
        assert not found["fixed_right_padding"].inputs[mask][-1, -1] and found["fixed_right_padding"].inputs[mask][-1, 0]
        assert not found["fixed_left_padding"].inputs[mask][-1, 0] and found["fixed_left_padding"].inputs[mask][-1, -1]
        assert (found[f"fixed_{side}_id_minus_one"].inputs[side] == -1).sum() == 1
    assert found["fixed_empty_row"].inputs["source_mask_bs" if "source" in sides else "target_mask_bt"].any(1).sum() == max(1, rows - 1)
    if name == "bert_base":
        assert found["fixed_two_segments"].inputs["segment_bs"].any()
        assert found["fixed_segment_id_vocabulary"].inputs["segment_bs"].max() == config.segments


class Answers(Adapter):
    """An artefact that answers by a function of its ids."""

    def __init__(self, answer) -> None:
        self.config, self._settings, self._own = GPT2, Settings({}), answer

    def _answer(self, case):
        return self._own(case.inputs["target"])


def answered(answer):
    ids = np.array([[1, 2, -1]])
    return Answers(answer).run(Case("id", "transformer", GPT2, {"target": ids}, outside="target"))


def test_an_id_is_refused_only_if_others_are_not() -> None:
    def refusing(ids):
        if (ids < 0).any():
            raise IndexError("-1")
        return np.zeros((1, 3, 19))

    def failing(ids):
        raise IndexError("rows must be 2")

    with pytest.raises(IndexError, match="-1"):
        answered(refusing)
    with pytest.raises(NotShown, match="fails, too"):
        answered(failing)
    with pytest.raises(NotShown, match="no finite answer, either"):
        answered(lambda ids: np.full((1, 3, 19), np.nan))
    assert np.isnan(answered(lambda ids: np.where(ids[..., None] < 0, np.nan, np.zeros((1, 3, 19))))).any()


def test_an_id_that_is_read_is_told_unless_a_manifest_promises_otherwise() -> None:
    ids = np.array([[1, 2, -1]])
    case = Case("id", "transformer", GPT2, {"source": None, "target": ids}, parameters.initialise(GPT2, 0), outside="target")
    readings, wider = outside.expected(case, Store()), outside.expected(case, Store(), "int8")
    row = {"case": "transformer/id", "component": "transformer", "port": "x", "dtype": "float64", "device": "cpu", "mode": ""}
    for what, reading in readings.items():
        told = outside.judge(row, case, Kind.OUTPUTS, {"output": reading.reference}, readings)
        assert (told.status, told.message) == (Status.TOLD, f"target id -1 is not refused: it is read as {what}")
        rounded = {"output": reading.reference.copy()}
        rounded["output"][0, 0, 0] += 0.5 * wider[what].bound
        assert outside.judge(row, case, Kind.OUTPUTS, rounded, wider).message.endswith(f"it is read as {what}")
        assert outside.judge(row, case, Kind.OUTPUTS, rounded, readings).message.endswith("has an answer like that of no other")
        promised = outside.judge(row, case, Kind.OUTPUTS, {"output": reading.reference}, readings, "refused")
        assert (promised.status, promised.message.endswith("its manifest says: refused")) == (Status.DIFFERS, True)


def test_processes_are_told_settings_of_any_size() -> None:
    settings = Settings(GPT2.to_dict(), {"id2label": {str(number): "x" * 40 for number in range(10_000)}})
    with told(settings):
        found = subprocess.run([sys.executable, "-c", HEARD], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "10000"
    assert VARIABLE not in os.environ


HEARD = "from rosettaformer.artefacts.settings import heard; print(len(heard().declared['id2label']))"


class Functions:
    """A bundle of functions that are not run."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self.names = tuple(self._entries)

    def entry(self, name: str) -> Entry:
        return self._entries[name]


IDS, LOGITS = Tensor("input_ids", "int64", (1, 1)), Tensor("logits", "float32", (1, 1, 19))


def test_which_function_is_the_whole_model_must_be_said_if_none_is_called_so() -> None:
    two = Functions(*(Entry(name, (IDS,), (LOGITS,)) for name in ("prefill_128", "decode")))
    with pytest.raises(ValueError, match="calls none forward; it has the functions prefill_128, decode: --function says which"):
        Calls(two, GPT2, {}, {})
    with pytest.raises(ValueError, match="has no decod; it has"):
        Calls(two, GPT2, {}, {}, "decod")
    assert Calls(two, GPT2, {}, {}, "decode").entry.name == "decode"


def test_a_cache_has_the_room_that_each_of_its_tensors_has() -> None:
    def caches(kind: str, *sizes: int | str) -> list[Tensor]:
        return [
            Tensor(f"{kind}.{layer}.{part}", "float32", ("b", 2, size, 4)) for layer, size in enumerate(sizes) for part in ("key", "value")
        ]

    ids = Tensor("input_ids", "int64", ("b", "t"))
    static = Calls(
        Functions(Entry("forward", (ids, *caches("past_key_values", 64, 16)), (LOGITS, *caches("present", 64, 16)))), GPT2, {}, {}
    )
    assert static.room == 64 and static.fixed == {"room": 64}
    assert {name: array.shape for name, array in static._empty("forward", 3).items()} == {
        f"{part}.{layer}": (3, 2, size, 4) for layer, size in enumerate((64, 16)) for part in ("key", "value")
    }
    with pytest.raises(NotShownByCalls, match="room for 64 tokens, not for 65"):
        static.forward(target=np.ones((1, 65), int))
    for other in ("p+t", 65):  # it grows; it is of one length alone
        growing = Calls(Functions(Entry("forward", (ids, *caches("past", 64)), (LOGITS, *caches("present", other)))), GPT2, {}, {})
        assert growing.room is None
    scalar = calls._fitting(Tensor("logits_to_keep", "int64", ()), np.zeros((), np.int64))
    assert (scalar.shape, scalar.flags.c_contiguous) == ((), True)


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
