"""Golden vectors: the frozen files match the suite, and every kind of damage to a folder is found.

`rosettaformer vectors export tests/data/vectors --core` and `python tools/fingerprints.py` write the frozen files.
Cases of random dropout have no file, which would only repeat their random inputs; their digest is a fingerprint.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id, suite
from fingerprints import Frozen, changes, fingerprint, read
from invoke import invoke, refused
from messages import each_mentions, mentions
from safetensors.numpy import load_file, save_file

from rosettaformer.judge.case import DTYPES, SUITE_RELEASE
from rosettaformer.judge.expectation import components, statistics
from rosettaformer.judge.suite import all_cases
from rosettaformer.judge.suite.case_files import answer_path
from rosettaformer.judge.vectors import golden, regenerate

pytestmark = pytest.mark.product

DATA = Path(__file__).parents[1] / "data"
FROZEN = DATA / "vectors"
CASES = suite()
NORMS = [f"layer_norm/{name}" for name in ("plain", "large_mean", "square", "one_position", "batch_0")]
MANY = [case for case in CASES if case.id in ("combine_masks/both", "multi_head_attention/per_head_weights", *NORMS)]


ADVICE = (
    "The data of a case never change under its id, and no id disappears, since others compare with them. Give a changed case another id "
    "(name@2) with `release` of the next SUITE_RELEASE, and keep the old one as it was."
)


def test_no_case_has_changed_or_disappeared() -> None:
    frozen, cases = read(), all_cases(grad=True)
    assert not (changed := changes(frozen, cases)), f"{', '.join(changed)}: {ADVICE}"
    assert not (new := {case.id for case in cases} - {*frozen.digests}), (
        f"{', '.join(new)}: new cases are frozen by `python tools/fingerprints.py`"
    )


def test_a_changed_case_has_another_fingerprint_and_every_case_its_release() -> None:
    case = next(case for case in CASES if case.id == "layer_norm/plain")
    scaled = dataclasses.replace(case, parameters=dict(case.parameters) | {"scale": case.parameters["scale"] * 2})
    other = dataclasses.replace(case, config=case.config.replace(epsilon=0.5))
    plain = dataclasses.replace(case, inputs=dict(case.inputs) | {"causal": True})
    fields = [*case.config.to_dict()]
    frozen = Frozen([fields], {case.id: fingerprint(case, fields)})
    for changed in (scaled, other, plain, dataclasses.replace(case, release=2)):
        assert changes(frozen, [changed]) == [case.id]
    assert changes(frozen, []) == [case.id]
    assert changes(frozen, [case]) == []
    earlier = [name for name in fields if name != "epsilon"]
    # a field added to the config later does not count
    for known, differs in ((earlier, []), (fields, [case.id])):
        frozen = Frozen([earlier, ["epsilon"]], {case.id: fingerprint(case, known)})
        assert changes(frozen, [other]) == differs
    assert {case.release for case in CASES} <= set(range(1, SUITE_RELEASE + 1))


def test_the_frozen_vectors_are_what_the_suite_makes_bit_for_bit() -> None:
    assert FROZEN.is_dir()
    assert sum(path.stat().st_size for path in FROZEN.iterdir()) < 2e6
    same_kind = json.loads((FROZEN / "manifest.json").read_text())["made_with"] == regenerate.made_with()
    findings = [finding for finding in golden.verify(FROZEN) if same_kind or not finding.rounding]
    assert findings == []


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vectors") / "exported"
    golden.export(directory, MANY)
    return directory


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vectors") / "two"
    golden.export(directory, [case for case in MANY if case.name in ("both", "plain")])
    return directory


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "copy"))


@pytest.fixture
def made(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds the suite's cases of `two` only once."""
    monkeypatch.setattr(golden, "generate", lambda folder, ids, written: shutil.copytree(two, folder))


def test_an_export_holds_every_case_and_is_the_same_again(exported: Path, tmp_path: Path) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    assert [row["id"] for row in manifest["cases"]] == [case.id for case in CASES if case in MANY]
    assert manifest["suite"] == SUITE_RELEASE
    assert {path.name for path in exported.iterdir()} == {"manifest.json", *(row["file"] for row in manifest["cases"])}
    golden.export(tmp_path / "again", MANY)
    for path in exported.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    assert golden.verify(exported) == []


def _edit(directory: Path, case_id: str, change: Any, tensors: Any = None) -> None:
    """Changes a row of the manifest and the tensors of its file, and updates every SHA-256."""
    manifest = json.loads((directory / "manifest.json").read_text())
    row = next(row for row in manifest["cases"] if row["id"] == case_id)
    if tensors:
        arrays = load_file(directory / row["file"])
        tensors(arrays)
        save_file(arrays, directory / row["file"])
        row["sha256"] = regenerate.digest((directory / row["file"]).read_bytes())
    change(row)
    _write(directory, manifest)


def _write(directory: Path, manifest: dict[str, Any]) -> None:
    (directory / "manifest.json").write_text(json.dumps(regenerate.sealed(manifest)))


def _scale_noise(row: dict[str, Any], factor: float) -> None:
    row["expected"]["float32"]["output"]["noise"] *= factor


def _shift(name: str, size: float) -> Any:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name].flat[0] += size

    return change


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("change", "tensors", "message", "rounding"),
    [
        (None, _shift("inputs.x_btd", 1e-3), "layer_norm/plain", False),
        (lambda row: row["config"].update(epsilon=1e-3), None, "layer_norm/plain", False),
        (lambda row: row["expected"].pop("float16"), None, "layer_norm/plain", False),
        (None, _shift("expected.float32.output", 1e-15), "result of layer_norm/plain in float32", True),
        (None, _shift("expected.float32.output", 1e-9), "layer_norm/plain in float32: output … 1e-09", False),
        (None, _shift("expected.float16.output", np.nan), "in float16: output", False),
        (lambda row: _scale_noise(row, 1.5), None, "layer_norm/plain in float32: output", True),
        (lambda row: _scale_noise(row, 100), None, "layer_norm/plain in float32: output", False),
        (lambda row: row["expected"]["float32"]["output"].update(bound=1.0), None, "its bounds", False),
        (lambda row: row.update(id="layer_norm/made_up"), None, "layer_norm/made_up", False),
    ],
)
def test_whatever_differs_is_said_of_its_case(copy: Path, change: Any, tensors: Any, message: str, rounding: bool) -> None:
    _edit(copy, "layer_norm/plain", change or (lambda row: None), tensors)
    (finding,) = golden.verify(copy)
    assert mentions(finding.message, message)
    assert finding.rounding == rounding


def _messages(directory: Path) -> list[str]:
    return [finding.message for finding in golden.verify(directory)]


CHANGES: list[Any] = [
    lambda manifest: manifest["cases"].pop(),
    lambda manifest: manifest["made_with"].update(numpy="0"),
    lambda manifest: manifest.update(sha256="0" * 64),
    lambda manifest: manifest.pop("sha256"),
]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_the_manifest_says_is_bound_by_its_digest(copy: Path, change: Any) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert "sha256" in _messages(copy)[0]


@pytest.mark.conformance
def test_flipped_bits_missing_and_other_files_and_double_rows_are_listed(copy: Path, exported: Path, tmp_path: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    first = manifest["cases"][0]
    _write(copy, manifest | {"cases": [*manifest["cases"], first]})
    assert all(
        mentions(said, f"manifest.json … {field} {first[field]}") for said, field in zip(_messages(copy), ("id", "file"), strict=True)
    )
    _write(copy, manifest)
    (copy / "notes.txt").write_text("")
    (copy / "more").mkdir()
    assert [message.split()[0] for message in _messages(copy)] == ["more", "notes.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    _write(empty, manifest | {"cases": []})
    assert [message.endswith("no cases") for message in _messages(empty)] == [True, True]
    copy = Path(shutil.copytree(exported, tmp_path / "many"))
    names = sorted(path.name for path in copy.iterdir() if path.suffix == ".safetensors")
    for name in names[:2]:
        content = bytearray((copy / name).read_bytes())
        content[-1] ^= 1
        (copy / name).write_bytes(content)
    (copy / names[2]).unlink()
    messages = [finding.message for finding in golden.verify(copy)]
    assert each_mentions(messages, [*(f"{name} … SHA-256" for name in names[:2]), f"{names[2]} … missing"])


def test_another_processor_differs_in_the_last_bits_only(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regenerate, "environment", lambda: dict(os.environ))
    assert [finding for finding in golden.verify(exported) if not finding.rounding] == []


@pytest.mark.conformance
def test_the_command_exports_verifies_and_exits(copy: Path, tmp_path: Path) -> None:
    found = invoke("vectors", "export", tmp_path / "some", "--component", "softmax", "--core")
    assert found.code == 0 and mentions(found.out, "2 cases")
    found = invoke("vectors", "verify", tmp_path / "some")
    assert (found.code, found.out) == (0, "identical\n")
    _edit(copy, "layer_norm/plain", lambda row: _scale_noise(row, 1.5))
    found = invoke("vectors", "verify", copy)
    assert found.code == 1
    assert "--rounding" in found.out + found.err
    found = invoke("vectors", "verify", copy, "--rounding")
    assert found.code == 0 and mentions(found.out, "0 differences, 1")


@pytest.mark.conformance
def test_bad_folders_are_one_message_and_exit_2(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for arguments, message in (
        (("export", tmp_path / "mine"), "holds no vectors"),
        (("export", tmp_path / "no" / "such"), "does not exist"),
        (("export", tmp_path / "new", "--component", "softmacks"), "component"),
        (("verify", tmp_path / "mine"), "manifest.json"),
        (("verify", tmp_path / "nowhere"), "holds no vectors"),
    ):
        assert mentions(refused("vectors", *arguments), message)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (copy / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in refused("vectors", "export", copy, "--component", "softmax")
    (copy / "thesis.txt").unlink()
    assert invoke("vectors", "export", copy, "--component", "softmax", "--core").code == 0
    assert sorted(path.name for path in copy.iterdir()) == [
        "manifest.json", "softmax.empty_rows.safetensors", "softmax.large_masked.safetensors"
    ]  # fmt: skip
    for broken in ("{", "[]", '{"suite": 1, "cases": [{}]}', '{"suite": 1, "cases": 5}', "\udc80"):
        (copy / "manifest.json").write_text(broken, errors="surrogateescape")
        refused("vectors", "verify", copy)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_vectors_of_a_newer_suite_are_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"suite": SUITE_RELEASE + 1}))
    with pytest.raises(ValueError, match=f"suite release {SUITE_RELEASE + 1}"):
        golden.verify(copy)


@pytest.mark.conformance
def test_vectors_hold_gradients_updates_and_what_decoding_gives(tmp_path: Path) -> None:
    ids = ("layer_norm_vjp/plain", "cross_entropy/smoothed", "adam/decay", "decode_in_steps/prompt_first", "truncate/all", "draw/some",
           "beam_search/two_tokens")  # fmt: skip
    golden.export(tmp_path / "vectors", [all_by_id()[id_] for id_ in ids])
    assert golden.verify(tmp_path / "vectors") == []
    rows = {row["id"]: row for row in json.loads((tmp_path / "vectors" / "manifest.json").read_text())["cases"]}
    assert set(rows["layer_norm_vjp/plain"]["expected"]["float32"]) == {"x_btd", "parameters.scale", "parameters.offset"}
    assert rows["adam/decay"]["inputs"]["step"] == 3
    assert rows["decode_in_steps/prompt_first"]["inputs"]["splits"] == [3, 1, 1]
    assert rows["beam_search/two_tokens"]["inputs"]["strategy.beam_size"] == 4
    assert rows["beam_search/two_tokens"]["expected"]["float32"]["token_bwn"]["dtype"] == "int64"


def test_answers_of_many_outputs_and_random_ones_are_judged_from_files(tmp_path: Path) -> None:
    cases = [all_by_id()[id_] for id_ in ("layer_norm_vjp/plain", "adam/decay", "random_dropout/vectors")]
    for case in (case.at("float32") for case in cases):
        outputs = components.answer(case)
        if case.component == "random_dropout":
            outputs = {"output": statistics.random_dropout(case.inputs["x"], 9, 0.3)}
        path = tmp_path / answer_path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: np.ascontiguousarray(value) for name, value in outputs.items()}, path)
    assert {result.status for result in golden.judge_results(tmp_path, cases, ["float32"])} == {"pass"}


@pytest.mark.conformance
def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder"):
        golden.judge_results(tmp_path / "nowhere", MANY, DTYPES)
    (tmp_path / "float32").mkdir()
    (tmp_path / "float32" / "layernorm.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"(?s)<dtype>/.*float32/layernorm.safetensors"):
        golden.judge_results(tmp_path, MANY, DTYPES)
