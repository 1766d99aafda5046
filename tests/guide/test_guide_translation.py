"""Pages "from X to Y": every snippet is executed, the columns agree, and the class follows from the measurements."""

import ast
import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import suite

pytest.importorskip("jinja2")
pytest.importorskip("pygments")

from reference_numpy import preset, rotary
from rosettaformer.guide.components.decisions import governing
from rosettaformer.guide.translation import DIRECTIONS, classes, direction, example, measurement, snippet_process, snippets
from rosettaformer.guide.translation.measurement import Measured
from rosettaformer.guide.translation.snippets import IMPORTS, fitted
from rosettaformer.guide.translation.table import FRAMEWORKS, PARTS, SECTIONS, Cell, Row, rows
from rosettaformer.judge import runner
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.expectation.components import COMPONENTS
from rosettaformer.judge.proposals import propose

HOUSE = Path(__file__).resolve().parents[2]
ROWS = {row.id: row for row in rows()}
pytestmark = pytest.mark.xdist_group("guide")  # measured once


@pytest.mark.conformance
def test_every_snippet_has_a_value_the_columns_agree_and_the_examples_train_alike() -> None:
    """A failing snippet is named by its error."""
    measured = measurement.measure()
    for row in rows():
        for framework, cell in row.cells.items():
            asked = {part for part in PARTS if getattr(cell, part)}
            found = measured.values[row.id].get(framework, {})
            assert asked == set(found), f"{row.id}.{framework}"
            assert all(value is not None for value in found.values()), f"{row.id}.{framework}"
    assert classes.check(rows(), measured.values) == []
    reference = measured.examples["numpy"]
    assert len(reference["losses"]) == example.STEPS
    assert reference["losses"][-1] < reference["losses"][0] / 2
    for framework, found in measured.examples.items():
        for name in ("before", "losses", "after"):
            assert snippets.alike(found[name], reference[name], 1e-5), f"{framework}: {name}"
        for name in {"restored", "exported"} & set(found):
            assert snippets.alike(found[name], found["after"], 1e-6), f"{framework}: {name}"
    for one, other in DIRECTIONS:
        counts = Counter(classes.relation(row, one, other, measured.values) for row in rows())
        assert counts["meaning"] >= 10, (one, other)
        assert counts["default"] >= 10, (one, other)
        assert counts["same"] + counts["name"] >= 30, (one, other)


def test_the_process_of_a_framework_answers_for_the_rows_that_are_asked() -> None:
    assert measurement.ask("numpy", ["clip"])["values"]["clip"]["code"]["value"] == [-1.0, 0.5, 1.0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_part_of_the_example_is_shown(framework: str) -> None:
    parts = example.parts(framework)
    assert set(parts) == set(example.PARTS) - ({"export"} if framework == "numpy" else set())
    text = example.file(framework).read_text(encoding="utf-8")
    assert all(part.text in text for part in parts.values())


# measured once separately, and the purpose of the guide
EXPECTED: dict[str, dict[str, Any]] = {
    "layer-norm": {"pytorch": 1e-5, "keras": 1e-3, "flax": 1e-6},
    "adam": {"pytorch": 1e-8, "keras": 1e-7, "flax": 1e-8},
    "gelu": {"pytorch": "exact (erf)", "keras": "exact (erf)", "flax": "tanh"},
    "rms-norm": {"pytorch": 1.2e-7, "keras": 1e-6, "flax": 1e-6},
    "attention-window": {"numpy": [3, 4, 5], "keras": [3, 4, 5], "flax": [2, 3, 4, 5]},
    "module-mask": {"pytorch": "True = is hidden", "keras": "True = may attend"},
    "dropout-compiled": {"pytorch": "others", "keras": "others", "flax": "the same"},
    "repeated-ids": {"pytorch": [-1.0, -1.0], "keras": [-2.0, -1.0], "flax": [-1.0, -1.0]},
    "schedule-decay": {"pytorch": [0.5, 0.0, 0.5], "keras": [0.5, 0.0, 0.0], "flax": [0.5, 0.0, 0.0]},
    "loss-scaling": {"pytorch": [65536.0, 2000], "keras": [32768.0, 2000]},
    "integers": {"pytorch": ["int64"] * 3, "keras": ["int32"] * 3, "flax": ["int32"] * 3},
}


@pytest.mark.conformance
@pytest.mark.parametrize("framework", ["keras", "flax"])
def test_the_whole_layer_that_is_written_is_the_encoder_layer(framework: str, tmp_path: Path) -> None:
    code = ROWS["whole-layer"].cells[framework].code.partition("\nlayer = ")[0]
    (tmp_path / "whole_layer.py").write_text("\n".join([*IMPORTS[framework], code, ""]))
    proposal = propose(f"{tmp_path}/whole_layer.py:EncoderLayer", "port.py")
    assert (proposal.component, proposal.left) == ("encoder_layer", ())
    (tmp_path / "port.py").write_text(proposal.text)
    cases = [case for case in suite() if case.component == "encoder_layer"]
    results = runner.run(cases, [str(tmp_path / "port.py")], ["float32"])
    statuses = {result.case.rpartition("/")[2]: result.status for result in results if result.status != "not covered"}
    assert statuses.pop("left_padding") == "differs"  # a query that may attend to nothing averages the values
    assert len(statuses) >= 7
    assert set(statuses.values()) == {"pass"}, statuses


def test_what_is_absent_has_code_or_a_link_and_fresh_parameters_are_fitted() -> None:
    """Except for what a Transformer does not need."""
    for row in rows():
        for framework, cell in row.cells.items():
            if not cell.names and not cell.note.startswith("The reference has no"):
                assert cell.code or (framework == "numpy" and row.links) or "Nothing is compiled" in cell.note, f"{row.id}.{framework}"
    rng = np.random.default_rng(0)
    limit = (6 / 500) ** 0.5
    assert fitted(rng.uniform(-limit, limit, (300, 200))) == "uniform, deviation √(2/(fan_in + fan_out)), Glorot"
    assert fitted(rng.standard_normal((300, 200)) * 300**-0.5) == "normal, deviation 1/√fan_in, LeCun"
    assert fitted(rng.standard_normal((300, 200)) * 0.31).startswith("normal, deviation 0.3")


@pytest.mark.parametrize("identity", EXPECTED)
def test_a_default_is_read_from_behaviour(measured: Measured, identity: str) -> None:
    found = measured.values[identity]
    for framework, value in EXPECTED[identity].items():
        assert snippets.alike(found[framework]["measure"], value, 0.0), framework


def test_every_note_about_a_framework_has_claims_and_a_refuted_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes in NumPy's column are about the reference, which has its own tests."""
    for row in rows():
        for framework, cell in row.cells.items():
            assert framework == "numpy" or cell.claims or not cell.note, f"{row.id}.{framework}"
    claims = ("x == 1", "x == 2", "refused(lambda: x, ValueError)", "x.missing", "2")
    cell = Cell(code="x", claims="\n".join(f"assert {claim}" for claim in claims))
    row = Row("row", "arrays", "row", given="x = 1", cells={"numpy": cell})
    monkeypatch.setattr(snippet_process, "rows", lambda: (row,))
    found = snippet_process.Server("numpy").values([])["row"]
    assert found["code"]["value"] == 1
    refuted = re.findall(r"True: (.*?); got", found["claims"]["error"])
    assert refuted == ["x == 2", "refused(lambda: x, ValueError)", "x.missing", "2"]
    row = dataclasses.replace(row, cells={"numpy": Cell(claims="assert x == 1")})
    monkeypatch.setattr(snippet_process, "rows", lambda: (row,))
    assert snippet_process.Server("numpy").values([])["row"]["claims"]["value"] == 1


def test_what_the_notes_on_keras_hub_say_holds() -> None:
    """The guide does not require KerasHub, so no claim of a row can import it."""
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    rng, position = np.random.default_rng(0), np.arange(5)[None]
    query = rng.standard_normal((1, 5, 1, 8))
    config = preset("tiny", positions="rotary", key_size=8)
    found = keras_hub.layers.RotaryEmbedding()(query.astype(np.float32))
    np.testing.assert_allclose(found, rotary.rotary_embedding(query, position, config), rtol=1e-4, atol=1e-6)
    by_head = np.swapaxes(query, 1, 2).astype(np.float32)
    np.testing.assert_allclose(keras_hub.layers.RotaryEmbedding(sequence_axis=2)(by_head), np.swapaxes(found, 1, 2), rtol=1e-6)
    np.testing.assert_allclose(keras_hub.layers.RotaryEmbedding()(by_head), by_head)  # one head, so only position 0
    half = keras_hub.layers.RotaryEmbedding(dtype="float16")(query.astype(np.float16))
    once = rotary.rotary_embedding(query.astype(np.float16), position, config)
    assert np.abs(np.asarray(half, np.float64) - once).max() > 0  # cosine and sine are rounded first
    assert "llama3" not in (keras_hub.layers.RotaryEmbedding.__doc__ or "")
    sines = np.asarray(keras_hub.layers.SinePositionEncoding()(np.zeros((1, 5, 8), np.float32)))[0]
    np.testing.assert_allclose(sines[:, :2], np.stack([np.sin(position[0]), np.cos(position[0])], -1), rtol=1e-4, atol=1e-6)
    layer = keras_hub.layers.TransformerEncoder(8, 2)
    layer.build((1, 3, 4))
    told = layer.get_config()
    assert (told["activation"], told["dropout"], told["normalize_first"], told["layer_norm_epsilon"]) == ("relu", 0, False, 1e-5)
    layer = keras_hub.layers.TransformerEncoder(8, 2, dropout=0.5)
    layer.build((1, 3, 4))
    dropped = {own.name.rstrip("_0123456789") for own in layer._flatten_layers() if type(own).__name__ == "Dropout"}
    assert dropped == {"self_attention_dropout", "feedforward_dropout", "dropout"}  # "dropout" is that of attention weights


def test_what_the_pages_say_of_keras_hubs_bert_holds() -> None:
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    sizes = {"vocabulary_size": 7, "num_layers": 1, "num_heads": 1, "hidden_dim": 2, "intermediate_dim": 2}
    backbone = keras_hub.models.BertBackbone(**sizes)
    layer = backbone.transformer_layers[0].get_config()
    assert (layer["activation"]["config"], layer["layer_norm_epsilon"]) == ("keras_hub>gelu_approximate", 1e-12)
    assert backbone.get_layer("embeddings_layer_norm").epsilon == 1e-12
    head = keras_hub.models.BertMaskedLM(backbone).get_layer("mlm_head").get_config()
    assert (head["intermediate_activation"], head["layer_norm_epsilon"]) == ("gelu", 1e-5)


def test_classes_follow_from_names_and_measurements(measured: Measured) -> None:
    wanted = {
        ("softmax", "pytorch", "flax"): "same",
        ("top-k", "numpy", "pytorch"): "name",
        ("layer-norm", "pytorch", "keras"): "default",
        ("module-mask", "pytorch", "flax"): "meaning",
        ("whole-layer", "pytorch", "flax"): "absent",
    }
    assert {key: classes.relation(ROWS[key[0]], *key[1:], measured.values) for key in wanted} == wanted


def test_what_disagrees_or_is_refuted_is_refused(measured: Measured) -> None:
    assert classes.check(rows(), measured.values) == []
    values = {**measured.values, "clip": {**measured.values["clip"], "keras": {"code": [-1.0, 0.5, 2.0]}}}
    assert [problem for problem in classes.check([ROWS["clip"]], values) if "the codes of keras and flax must agree" in problem]
    wrong = {
        "attention-mask": {"kind": "meaning"},  # the functions agree
        "layer-norm": {"groups": "pytorch flax | keras"},
        "module-mask": {"kind": ""},
        "gelu": {"groups": "pytorch | keras flax"},
    }
    for identity, fields in wrong.items():
        row = dataclasses.replace(ROWS[identity], **fields)  # type: ignore[arg-type]
        assert classes.check([row], measured.values), identity


def test_kinds_that_are_measured_once_are_refused_and_snippets_run_apart() -> None:
    row = Row("r", "arrays", "r", measured="m", kind="default", cells={name: Cell() for name in FRAMEWORKS})
    assert "two frameworks" in classes.check([row], {"r": {"flax": {"measure": 1}}})[0]
    names = snippets.namespace("numpy")
    assert snippets.plain(snippets.execute("y = x + 1\ny", names | snippets.given("x = np.arange(2)"))) == [1, 2]
    assert "y" not in names
    assert snippets.execute("z = 1", dict(names)) is None
    with pytest.raises(ValueError, match="plain data"):
        snippets.plain(object())


def test_a_failing_snippet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    column = {"values": {"clip": {"code": {"error": "NameError: name 'x' is not defined", "seconds": 0.0}}}}
    monkeypatch.setattr(measurement, "ask", lambda framework, only: column if framework == "keras" else {"values": {}})
    with pytest.raises(ValueError, match=r"clip\.keras\.code: NameError"):
        measurement.measure(["clip"])


def test_links_lead_to_decisions_identities_are_anchors_and_code_is_short() -> None:
    decisions = re.findall(r"^## ([A-Z]+)$", (HOUSE / "docs" / "decisions.md").read_text(encoding="utf-8"), re.MULTILINE)
    known = {*decisions, *COMPONENTS, *all_defects()}
    assert decisions
    assert [(row.id, link) for row in rows() for link in row.links if link not in known] == []
    words = "defaults example layouts topics own filtered content search found theme know want"
    for row in rows():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", row.id) and row.id not in {*SECTIONS, *words.split()}, row.id
        for framework, cell in row.cells.items():
            assert cell.names or cell.code or cell.note, f"{row.id}.{framework} must say what to write instead"
            for part in (row.given, cell.code, cell.measure, cell.claims):
                ast.parse(part)
                assert not [line for line in part.splitlines() if len(line) > 160], f"{row.id}.{framework}"
            if cell.code:
                last = ast.parse(cell.code).body[-1]
                assert any(isinstance(node, ast.Name) for node in ast.walk(last)), f"{row.id}.{framework}"
    decided = direction._decided()
    assert {link for row in rows() for link in row.links if link.isalpha() and link.isupper()} <= decided.keys()
    assert all(id in governing(component) for id, component in decided.items())


def test_every_topic_is_shown_in_every_direction_also_where_both_lack_it(guide: Path, measured: Measured) -> None:
    lacking = {row.id for row in rows() if not (row.cells["pytorch"].names or row.cells["flax"].names)}
    assert {"rotary", "rotary-pairs", "rotary-base"} <= lacking
    assert {classes.relation(ROWS[id], "pytorch", "flax", measured.values) for id in lacking} == {"absent"}
    for one, other in DIRECTIONS:
        for section in SECTIONS:
            page = (guide / direction.path(one, other, section)).read_text(encoding="utf-8")
            shown = re.findall(r'<h2 id="([a-z-]+)">', page)
            assert shown == [row.id for row in rows() if row.section == section], (one, other, section)
            for row in (ROWS[identity] for identity in lacking & {*shown}):
                article = page.partition(f'<h2 id="{row.id}">')[2].partition("</article>")[0]
                shown_codes = article.count('<p class="value">')
                assert shown_codes == sum(bool(row.cells[name].code) for name in (one, other)), (one, other, row.id)


def test_a_name_finds_its_row_in_every_direction(index: dict[str, set[tuple[str, str]]]) -> None:
    wanted = {"nn.LayerNorm": ("layers", "#layer-norm"), "keras.layers.LayerNormalization": ("layers", "#layer-norm"),
              "nnx.LayerNorm": ("layers", "#layer-norm"), "F.scaled_dot_product_attention": ("attention", "#attention-axes")}  # fmt: skip
    for one, other in DIRECTIONS:
        for name, (section, fragment) in wanted.items():
            names = index[direction.path(one, other, section)]
            framework = {"nn": "pytorch", "F": "pytorch", "keras": "keras", "nnx": "flax"}[name.partition(".")[0]]
            assert ((name, fragment) in names) == (framework in (one, other)), (one, other, name)
        every = {name for page, found in index.items() if page.startswith(f"translate/{one}-to-{other}") for name, _ in found}
        for word in ("RoPE", "SwiGLU", "KV cache", "RMSNorm", "GQA", "EinsumDense", "nnx.scan", "safetensors", "mask_zero"):
            assert any(word in name for name in every), (one, other, word)
