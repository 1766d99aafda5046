"""The cases for an exported model: at its sizes, of its functions and caches, with ids out of range, and from its manifest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_models import MODELS
from messages import mentions
from test_graph_evidence import Functions

from reference_numpy import parameters
from rosettaformer.files import checkpoints
from rosettaformer.files.artefacts import calls, manifest
from rosettaformer.files.artefacts.calls import Calls
from rosettaformer.files.artefacts.calls import NotShown as NotShownByCalls
from rosettaformer.files.artefacts.settings import VARIABLE, Settings, told
from rosettaformer.files.artefacts.signature import Entry, Tensor
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge import outside
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.expectation_store import Store
from rosettaformer.judge.ports.adapters.artefact import Adapter
from rosettaformer.judge.ports.port import NotShown
from rosettaformer.judge.status import Kind, Status
from rosettaformer.judge.suite.artefact import artefact_cases, fixed_cases

GPT2 = MODELS["gpt2"]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", ["gpt2", "bert", "paper"])
def test_padding_at_the_sizes_of_a_file_is_padding(name: str, rows: int, tmp_path: Path) -> None:
    config = MODELS[name]
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
    if name == "paper":
        for case, column in (("right_padding_columns", -1), ("left_padding_columns", 0)):
            assert not any(found[f"fixed_{case}"].inputs[mask][:, column].any() for mask in ("source_mask_bs", "target_mask_bt"))
            assert not found[f"fixed_{case}"].inputs["source_mask_bs"][0].all()
    assert found["fixed_empty_row"].inputs["source_mask_bs" if "source" in sides else "target_mask_bt"].any(1).sum() == max(1, rows - 1)
    if name == "bert":
        assert found["fixed_two_segments"].inputs["segment_bs"].any()
        assert found["fixed_segment_id_vocabulary"].inputs["segment_bs"].max() == config.segments


def test_the_mean_of_a_text_leaves_out_padding() -> None:
    config, ids = MODELS["bert"], np.array([[3, 4, 5, 6], [3, 4, 0, 0]])
    inputs = {"source": ids, "source_mask_bs": ids > 0}
    hidden, mean, unit = (
        components.answer(Case("x", component, config, inputs, parameters.initialise(config, 0)))["output"]
        for component in ("token_encoder", "mean", "unit_mean")
    )
    wanted = np.stack([hidden[0].mean(0), hidden[1, :2].mean(0)])
    np.testing.assert_allclose(mean, wanted, rtol=1e-12)
    np.testing.assert_allclose(unit, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), rtol=1e-12)


class Answers(Adapter):
    """An exported model that computes a function of its ids."""

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
    with pytest.raises(NotShown, match="fails"):
        answered(failing)
    with pytest.raises(NotShown, match="finite"):
        answered(lambda ids: np.full((1, 3, 19), np.nan))
    assert np.isnan(answered(lambda ids: np.where(ids[..., None] < 0, np.nan, np.zeros((1, 3, 19))))).any()


def test_an_id_that_is_read_is_told_unless_a_manifest_promises_otherwise() -> None:
    ids = np.array([[1, 2, -1]])
    case = Case("id", "transformer", GPT2, {"source": None, "target": ids}, parameters.initialise(GPT2, 0), outside="target")
    readings, wider = outside.expected(case, Store()), outside.expected(case, Store(), "int8")
    row = {"case": "transformer/id", "component": "transformer", "port": "x", "dtype": "float64", "device": "cpu", "mode": ""}
    for what, reading in readings.items():
        told = outside.judge(row, case, Kind.OUTPUTS, {"output": reading.reference}, readings)
        assert told.status == Status.TOLD and mentions(told.message, f"target id -1 … {what}")
        rounded = {"output": reading.reference.copy()}
        rounded["output"][0, 0, 0] += 0.5 * wider[what].bound
        assert outside.judge(row, case, Kind.OUTPUTS, rounded, wider).message.endswith(f"it is read as {what}")
        assert outside.judge(row, case, Kind.OUTPUTS, rounded, readings).message.startswith("target id -1")
        promised = outside.judge(row, case, Kind.OUTPUTS, {"output": reading.reference}, readings, "refused")
        assert (promised.status, mentions(promised.message, "manifest … refused")) == (Status.DIFFERS, True)


def test_processes_are_told_settings_of_any_size() -> None:
    settings = Settings(GPT2.to_dict(), {"id2label": {str(number): "x" * 40 for number in range(10_000)}})
    with told(settings):
        found = subprocess.run([sys.executable, "-c", HEARD], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "10000"
    assert VARIABLE not in os.environ


HEARD = "from rosettaformer.files.artefacts.settings import heard; print(len(heard().declared['id2label']))"


IDS, LOGITS = Tensor("input_ids", "int64", (1, 1)), Tensor("logits", "float32", (1, 1, 19))


def test_which_function_is_the_whole_model_must_be_said_if_none_is_called_so() -> None:
    two = Functions(*(Entry(name, (IDS,), (LOGITS,)) for name in ("prefill_128", "decode")))
    with pytest.raises(ValueError, match=r"prefill_128.*--function"):
        Calls(two, GPT2, {})
    with pytest.raises(ValueError, match="no function decod,"):
        Calls(two, GPT2, {}, "decod")
    assert Calls(two, GPT2, {}, "decode").entry.name == "decode"


def test_a_cache_has_the_room_that_each_of_its_tensors_has() -> None:
    def caches(kind: str, *sizes: int | str) -> list[Tensor]:
        return [
            Tensor(f"{kind}.{layer}.{part}", "float32", ("b", 2, size, 4)) for layer, size in enumerate(sizes) for part in ("key", "value")
        ]

    ids = Tensor("input_ids", "int64", ("b", "t"))
    static = Calls(Functions(Entry("forward", (ids, *caches("past_key_values", 64, 16)), (LOGITS, *caches("present", 64, 16)))), GPT2, {})
    assert static.room == 64 and static.fixed == {"room": 64}
    assert {name: array.shape for name, array in static._empty("forward", 3).items()} == {
        f"{part}.{layer}": (3, 2, size, 4) for layer, size in enumerate((64, 16)) for part in ("key", "value")
    }
    with pytest.raises(NotShownByCalls, match=r"64 tokens.*65"):
        static.forward(target=np.ones((1, 65), int))
    for other in ("p+t", 65):  # it grows; it has only one length
        growing = Calls(Functions(Entry("forward", (ids, *caches("past", 64)), (LOGITS, *caches("present", other)))), GPT2, {})
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
    with pytest.raises(ValueError, match="manifest") as found:
        manifest.read(file)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_id_that_is_special_is_in_the_text_and_padding_is_shown_by_the_mask_alone(family: str, tmp_path: Path) -> None:
    """Except for RoBERTa, which treats the padding id as padding."""
    new.write(family, tmp_path / "model")
    checkpoint = checkpoints.load(tmp_path / "model")
    said = checkpoint.foreign["config.json"]
    made = fixed_cases(artefact_cases(tmp_path, checkpoint), {"rows": 3, "source": 30})
    padded = {case.id: case for case in made if not case.outside and case.real_bt is not None and not case.real_bt.all()}
    names = {name.partition("/")[2] for name in padded}
    assert names >= {"right_padding", "fixed_left_padding", "empty_row"}
    assert (family == "bert") == ({"two_segments", "fixed_two_segments"} <= names)
    for case in padded.values():
        ids, real = case.inputs["source"], case.real_bt
        assert {said.get("eos_token_id", said["pad_token_id"]), said["vocab_size"] - 1} & {*ids[real]}, case.id
        if family == "bert":
            assert said["pad_token_id"] in ids[real] and len({*ids[~real]}) > 1, case.id
        else:
            assert said["pad_token_id"] not in ids[real] and {*ids[~real]} == {said["pad_token_id"]}, case.id
