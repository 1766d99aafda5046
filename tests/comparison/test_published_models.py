"""`rosettaformer compare` on models as libraries publish them, without a table: transformers with KerasHub and with Flax."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from invoke import invoke, refused
from kinds import every
from messages import mentions
from published_pairs import FLAX, MODELS, OTHERWISE, PAIRS, PLANTED, UNTRAINED, WITHOUT_FLAX, compare, family_of, report_of, told

from rosettaformer.comparison.matching import rename_table
from rosettaformer.files.checkpoints.hugging_face import new

FORWARD = ("--only", "none")
BESIDE_FLAX = tuple(family for family in PAIRS if family not in WITHOUT_FLAX)


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for package in ("torch", "transformers", "keras_hub"):
        pytest.importorskip(package)


def is_compared(report: dict[str, Any], family: str) -> bool:
    """Whether the gradients of all commonly trained parameters, and both steps that run in float64, were compared."""
    gradients = [row["left"] for row in report["gradients"] if not row["left"].startswith("input ")]
    trained = [row["left"] for row in report["variables"] if row["left"] and row["right"] and row["trainable"]]
    return gradients == trained and all(bool(step["rows"]) != (family in UNTRAINED) for step in report["steps"].values())


@pytest.mark.conformance
@pytest.mark.parametrize("family", PAIRS)
def test_equal_models_of_two_libraries_are_equal(family: str, tmp_path: Path) -> None:
    """The shipped table equals the written one: it holds for every number of layers."""
    found = compare(PAIRS[family], "keras", family, tmp_path, "--write-rename", tmp_path / "table.toml")
    assert found.code == 0, found
    report = report_of(tmp_path)
    assert report["verdict"] == "rounding" and report["first"] is None  # KerasHub's norms are float32 in a float64 model
    assert is_compared(report, family)
    assert (tmp_path / "table.toml").read_text() == (rename_table.TABLES / f"{family}.toml").read_text()
    found = compare(PAIRS[family], "keras", family, tmp_path, *FORWARD, "--rename", f"keras-hub:{family}", *seeded(family, 11))
    assert found.code == 0, found
    how = {row["how"] for row in report_of(tmp_path)["layers_matched"] if row["left"]}
    assert how <= {"renamed", "name", "contents", "place", *[one for one in how if one.startswith("rows")]}


def seeded(family: str, seed: int) -> tuple[str, ...]:
    """Returns the option for random sizes; the two families that compare a planted model have none."""
    return () if PAIRS[family].startswith("planted") else ("--set", f"seed={seed}")


@pytest.mark.conformance
@pytest.mark.parametrize("family", OTHERWISE)
def test_what_a_library_fixes_is_named(family: str, tmp_path: Path) -> None:
    assert compare(f"torch.py:{family}", "keras", family, tmp_path, *FORWARD).code == 1
    assert OTHERWISE[family].is_named(report_of(tmp_path)), told(report_of(tmp_path))


@pytest.mark.conformance
@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_between_two_libraries_is_found_where_it_is_and_named(name: str, tmp_path: Path) -> None:
    found = compare(f"planted.py:{name}", "keras", family_of(name), tmp_path, *FORWARD)
    assert found.code == 1, found
    assert PLANTED[name].is_named(report_of(tmp_path)), told(report_of(tmp_path))


@pytest.mark.conformance
@pytest.mark.parametrize("seed", [4, 10])
@pytest.mark.parametrize("family", ["llama", "gemma", "bert", "gpt2"])
def test_models_of_random_sizes_are_equal(family: str, seed: int, tmp_path: Path) -> None:
    """Models with square attention projections. `tools/published.py` compares more."""
    found = compare(PAIRS[family], "keras", family, tmp_path, *FORWARD, *seeded(family, seed))
    assert found.code == 0, found


@pytest.mark.conformance
@pytest.mark.skipif(not FLAX.is_dir(), reason="the Flax models of transformers 4 are not installed; the Makefile says how")
@pytest.mark.parametrize("family", BESIDE_FLAX)
def test_flax_models_are_equal(family: str, tmp_path: Path) -> None:
    found = compare(PAIRS[family], "flax", family, tmp_path, *FORWARD)
    assert found.code == 0, found
    assert report_of(tmp_path)["first"] is None


@pytest.mark.conformance
@pytest.mark.skipif(not FLAX.is_dir(), reason="the Flax models of transformers 4 are not installed; the Makefile says how")
@pytest.mark.parametrize("name", ["llama_rotary", "gpt2_scale", "bart_activation"])
def test_a_difference_from_a_flax_model_is_named(name: str, tmp_path: Path) -> None:
    assert compare(f"planted.py:{name}", "flax", family_of(name), tmp_path, *FORWARD).code == 1
    assert PLANTED[name].is_named(report_of(tmp_path)), told(report_of(tmp_path))


ODD = re.findall(r"^(?:class |def )?([A-Za-z]\w*)(?: =|[(:])", (MODELS / "odd.py").read_text(), re.M)
COMPARED = ("Plain", "Endless", "Half", "Lazy", "Many", "Hooked", "Deleted")
ENDS = ("exits", "interrupts")
ROWS = ("--input", "x: b=3 d=5 float32")


@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize("name", every(5, [name for name in ODD if name not in (*COMPARED, *ENDS)]))
def test_what_cannot_be_compared_is_one_message_and_begins_a_table_where_names_are_missing(name: str, tmp_path: Path) -> None:
    sides, table = [MODELS / "odd.py:Plain", MODELS / f"odd.py:{name}"], tmp_path / "table.toml"
    for pair in (sides, sides[::-1]):
        said = refused("compare", *pair, *ROWS, "-q", "--write-rename", table)
        assert table.exists() == ("cannot be matched" in said)
        table.unlink(missing_ok=True)


@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize("name", every(5, COMPARED))
def test_odd_models_that_can_be_compared_are(name: str) -> None:
    found = invoke("compare", MODELS / f"odd.py:{name}", MODELS / f"odd.py:{name}", *ROWS, "-q")
    assert found.code == 0, found


@pytest.mark.conformance
@pytest.mark.usefixtures("sides_in_process")
@pytest.mark.parametrize(
    ("model", "said"),
    [("counted_nnx.py:Counted", "has no float64: index arguments to dynamic_update_slice"), ("unnamed_keras.py:model", "")],
)
def test_counters_in_int32_and_variables_without_names(model: str, said: str) -> None:
    found = invoke("compare", MODELS / model, MODELS / model, *ROWS, "-q")
    assert found.code == 0 and mentions(found.out, said), found


@pytest.mark.conformance
@pytest.mark.usefixtures("sides_in_process")
def test_constants_are_a_sides_own_and_settings_of_what_holds_a_place_are_said(tmp_path: Path) -> None:
    """The rotary frequencies are a non-persistent buffer."""
    for name, where, said in (
        ("mistral_base", "rotary_emb", "config.rope_parameters.rope_theta 10000 on the left, 1000 on the right"),
        ("llama_scale", "layers.0.self_attn.v_proj", "layers.0.self_attn: scaling 0.408248 on the left, 0.166667 on the right"),
    ):
        sides = [MODELS / f"published_torch.py:{name.partition('_')[0]}", MODELS / f"published_planted.py:{name}"]
        found = invoke("compare", *sides, "--input", "input_ids: b=2 t=7 int64 <60", *FORWARD, "-q", "--json", tmp_path / "report.json")
        assert found.code == 1 and told(report_of(tmp_path))[0][0] == where
        assert mentions(found.out, said)


@pytest.mark.usefixtures("sides_in_process")
def test_a_side_may_be_in_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "parts.py").write_text("import torch\n\n\ndef layer(width=5):\n    return torch.nn.Linear(5, width)\n")
    options = ("--input", "input: b=3 d=5 float32", *FORWARD, "-q")
    found = invoke("compare", "mine.parts:layer", "mine.parts:layer", *options, "--set", "width=7", folder=tmp_path)
    assert found.code == 0, found
    for side, said in (("mine.part:layer", "mine.part"), ("mine.parts:lair", "has no lair (nearest: layer)")):
        found = invoke("compare", side, side, *options, folder=tmp_path)
        assert found.code == 2 and mentions(found.err, said), found


@pytest.mark.conformance
@pytest.mark.parametrize("name", ENDS)
def test_a_side_that_ends_its_process_is_one_message(name: str) -> None:
    refused("compare", MODELS / f"odd.py:{name}", MODELS / "odd.py:Plain", *ROWS, "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a Llama with its head, without entries that KerasHub ignores."""
    path = tmp_path_factory.mktemp("llama") / "llama"
    new.write("llama", path, settings={
        "num_hidden_layers": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    })  # fmt: skip
    return path


@pytest.mark.conformance
@pytest.mark.parametrize(("other", "count"), [("keras-hub:{}", 20), ("{}@jax", 21), ("{}@torch", 21)])
def test_folders_are_matched_by_their_numbers(other: str, count: int, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("keras_hub" if other.startswith("keras") else "flax")
    found = invoke(
        "compare", f"transformers:{folder}", other.format(folder), "-q", "--only", "gradients", "--json", tmp_path / "report.json"
    )
    assert found.code == 0, found
    report = json.loads((tmp_path / "report.json").read_text())
    assert f"{count} of {count}" in "".join(report["notes"])
    assert report["first"] is None and len(report["gradients"]) == count


@pytest.mark.conformance
@pytest.mark.parametrize("library", ["transformers", "keras-hub"])
def test_a_folder_that_a_library_cannot_load_is_one_message(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library.replace("-", "_"))
    for path, said in ((tmp_path, "cannot"), (tmp_path / "none", "none")):
        found = invoke("compare", f"{library}:{path}", f"{library}:{path}", "-q")
        assert found.code == 2 and mentions(found.err, said) and "Traceback" not in found.err


@pytest.mark.conformance
@pytest.mark.parametrize(("left", "right", "code"), [("Own", "Stock", 0), ("Stock", "Own", 0), ("Scaled", "Stock", 1)])
def test_four_dense_layers_are_one_attention(left: str, right: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sides = [MODELS / f"attention_torch.py:{name}" for name in (left, right)]
    found = invoke("compare", *sides, "--input", "x: b=2 t=5 d=12 float32", "-q", "--json", tmp_path / "report.json")
    assert found.code == code, found
    report = json.loads((tmp_path / "report.json").read_text())
    assert len([row for row in report["gradients"] if not row["left"].startswith("input ")]) == 10
    assert code == 0 or report["first"]["after"] == ["norm", "norm"]
