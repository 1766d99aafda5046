"""A port that fails `check` has a finding: diagnosis covers every case and dtype that check does."""

from pathlib import Path

import pytest
from expectations import store, suite
from in_process import InProcess
from kinds import conformance

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.deviations import Deviation
from rosettaformer.judge.diagnosis import diagnose
from rosettaformer.judge.diagnosis.findings import Verdict
from rosettaformer.judge.ports import session
from rosettaformer.judge.status import Status
from rosettaformer.judge.suite import all_cases
from rosettaformer.judge.suite.expression import choose
from rosettaformer.judge.summary import Summary

IMPORTS = """
import numpy as np
from reference_numpy import normalization, optimizer, parameters, softmax as s
from rosettaformer.ports import NotCovered
"""
NORM = """
def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon, case.config.norm_one_plus_scale)
    return y{}
"""
# the failure -> the port, its cases, and the verdict of the finding; None if it conforms
PORTS: dict[str, tuple[str, str, set[str] | None]] = {
    "squares that underflow in float32 alone": ("""
def clip_global_norm(case):
    flat = parameters.flatten(case.inputs["gradients"])
    norm = np.sqrt(sum((g * g).sum(dtype=g.dtype) for g in flat.values()))
    limit = case.inputs["limit"]
    scale = limit / norm if norm > limit else norm.dtype.type(1)
    small = any((g != 0).any() and (g * g).max() < np.finfo(g.dtype).tiny for g in flat.values())
    return {name: np.full_like(g, np.nan) if small else (g * scale).astype(g.dtype) for name, g in flat.items()}
""", "clip_global_norm", {"described", "unexplained", "partly"}),
    "one case beyond the core in half precision": (
        NORM.format(' + y.dtype.type(0.5) * (case.name == "large_mean" and case.dtype == "float16")'), "layer_norm and not vjp",
        {"described", "unexplained", "explained", "partly"},
    ),
    "one case beyond the core": ("""
def softmax(case):
    y = s.softmax(case.inputs["logits"], case.inputs.get("mask"))
    return y * y.dtype.type(1 + (case.name == ONE))
""", "softmax and not vjp", {"described", "unexplained", "explained", "partly"}),
    "a gradient": (NORM.format("") + """
def layer_norm_vjp(case):
    given = case.inputs | {"parameters": parameters.nest(case.parameters), "epsilon": case.config.epsilon}
    given["one_plus_scale"] = case.config.norm_one_plus_scale
    return parameters.flatten(normalization.layer_norm_vjp(**given | {"cotangent": 2 * case.inputs["cotangent"]}))
""", "layer_norm", {"explained", "described", "indistinguishable", "unexplained"}),
    "nothing is compared": ("""
def softmax(case):
    raise NotCovered("the mask is of another kind")
""", "softmax and not vjp", {"not compared"}),
    "no case of its dtypes": ("""
dtypes = ("float64",)
def softmax(case):
    return s.softmax(case.inputs["logits"], case.inputs.get("mask"))
""", "softmax and bfloat16", {"not compared"}),
    "its config hides what is asked": (
        'config = {"epsilon": 1e30}' + NORM.format(""), "layer_norm and not (vjp or no_offset)", {"not compared"},
    ),
    "nothing": (NORM.format(""), "layer_norm and not vjp", None),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ports in this process."""
    monkeypatch.setattr(session, "open_worker", InProcess)


FIRST = ("squares that underflow in float32 alone", "nothing is compared")


@pytest.mark.parametrize("name", [name if name in FIRST else conformance(name) for name in PORTS])
def test_a_port_conforms_where_it_has_no_finding_and_nowhere_else(name: str, tmp_path: Path) -> None:
    text, expression, verdicts = PORTS[name]
    extra = next(case.name for case in suite() if case.component == "softmax" and not case.core and not case.catches)
    port = tmp_path / "a_port.py"
    port.write_text(IMPORTS + text.replace("ONE", repr(extra)))
    cases = choose(all_cases(grad=True), expression)
    checked = Summary(runner.run(cases, [str(port)], DTYPES, store=store()))
    found = diagnose(str(port), pairs=False, expression=expression).findings
    assert checked.conforms == (verdicts is None) == (not found)
    assert {finding.verdict for finding in found} <= (verdicts or set())


@pytest.mark.conformance
def test_an_entry_of_which_nothing_fails_is_a_finding_and_no_other(tmp_path: Path) -> None:
    port = tmp_path / "a_port.py"
    port.write_text(IMPORTS + NORM.format(' + y.dtype.type(case.name == "plain")'))
    expression = "layer_norm and float64 and not vjp"

    def found(*names: str) -> list[Verdict]:
        pairs = frozenset((f"layer_norm/{name}", "float64") for name in names)
        entry = Deviation("layer_norm/*", str(port), "a reason", "a link", Status.DIFFERS, pairs)
        given = {"declared": pairs | {("layer_norm/plain", "float64")}, "entries": [entry]}
        return [one.verdict for one in diagnose(str(port), expression=expression, **given).findings]

    assert found("square") == [Verdict.PASSES]
    assert found("square", "plain") == []
