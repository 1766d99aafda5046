"""Encoder-decoders of transformers as ports: they conform, and bugs of published ports are seen and named."""

import json
from pathlib import Path

import pytest
from invoke import invoke
from whole_models import in_this_process, judged, quick

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.product

PORT = Path(__file__).parents[1] / "ports" / "seq2seq_bugs.py"
PROMPTS = ("one_token", "short", "right_padding")
PADDED = {"right_padding"}
# the port's bug -> the family, the prompts that show it, and the known bug
PLANTED = {
    "cross-attention sees padding": ("bart", PADDED, "ATT16"),
    "no reserved rows": ("bart", {*PROMPTS}, "PE14"),
    "post-norm": ("mbart", {*PROMPTS}, "NRM8"),
}


@pytest.mark.parametrize(("bug", "family"), [("", "bart"), *((bug, family) for bug, (family, *_) in PLANTED.items())])
def test_a_port_conforms_and_a_bug_is_seen_where_it_is(monkeypatch: pytest.MonkeyPatch, bug: str, family: str) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setenv("SEQ2SEQ_BUG", bug)
    cases = [case for case in quick(family) if case.component == "transformer" and case.name in PROMPTS]
    statuses = {case.name: str(judged(PORT, [case])[case.id].status) for case in cases}
    wrong = PLANTED[bug][1] if bug else set()
    assert statuses == {name: "differs" if name in wrong else "pass" for name in PROMPTS}


@pytest.mark.conformance
@pytest.mark.parametrize("bug", PLANTED)
def test_diagnosis_names_the_bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bug: str) -> None:
    monkeypatch.setenv("SEQ2SEQ_BUG", bug)
    family, _, id_ = PLANTED[bug]
    invoke("diagnose", PORT, "--like", family, "--dtype", "float32", "--json", tmp_path / "a.json")
    (finding,) = json.loads((tmp_path / "a.json").read_text())["findings"]
    assert finding["verdict"] in ("explained", "indistinguishable") and [id_] in finding["explanations"], finding
