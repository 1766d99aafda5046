"""A config under which cases are vacuous: they pass without evidence, and the report says so."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from expectations import suite
from kinds import conformance, every

from rosettaformer.judge import runner
from rosettaformer.judge.expectation.expectation_store import Store
from rosettaformer.judge.ports.session import Session
from rosettaformer.judge.suite.asked import Suite, fitted
from rosettaformer.judge.suite.hidden import Hidden
from rosettaformer.judge.summary import Summary

OFFSET = """
import numpy as np
from rosettaformer.ports import CLASSIC

config = CLASSIC | {config}

def layer_norm(case):
    return np.broadcast_to(case.parameters["offset"], case.inputs["x_btd"].shape).copy()
"""
OWN = suite()
NORMS = [case for case in OWN if case.component == "layer_norm"]
SIZES = {"model_width": 16, "heads": 4, "key_value_heads": 4, "key_size": 4, "value_size": 4, "feed_forward_width": 32}


def port(folder: Path, config: dict[str, object]) -> str:
    file = folder / "offset.py"
    file.write_text(OFFSET.replace("{config}", repr(config)))
    return str(file)


def reasons(config: dict[str, object], *components: str) -> dict[str, str]:
    own = [case for case in OWN if case.component in components]
    cases = fitted(own, config)
    hidden = Hidden(cases, own)
    return {case.id: reason for case in cases if not case.excluded and (reason := hidden.reason(case))}


@pytest.mark.product
@pytest.mark.parametrize("config", every(2, [{"epsilon": 1e30}, {"model_width": 1}]))
def test_a_norm_that_is_its_offset_whatever_it_is_given_does_not_conform(tmp_path: Path, config: dict[str, object]) -> None:
    results = runner.run(NORMS, [port(tmp_path, config)], ["float32"])
    assert not {result.status for result in results} & {"pass", "differs"}
    shown = [result for result in results if result.status == "not shown"]
    ((name, value),) = config.items()
    assert len(shown) >= 6
    assert all(f"{name}={value!r}" in result.message for result in shown)
    assert not Summary(results).conforms
    assert Summary(results).verdict == "nothing was compared"


@pytest.mark.product
def test_what_fails_fails_although_the_config_hides_things(tmp_path: Path) -> None:
    name = port(tmp_path, {"epsilon": 1e30})
    Path(name).write_text(Path(name).read_text().replace(".copy()", " + 1"))
    statuses = {result.status for result in runner.run(NORMS[:3], [name], ["float64"])}
    assert "differs" in statuses
    assert "not shown" not in statuses


@pytest.mark.conformance
def test_one_case_is_judged_alike(tmp_path: Path) -> None:
    with contextlib.closing(Session(port(tmp_path, {"epsilon": 1e30}), Suite(), threads=1)) as session:
        assert runner.run_alone(session, session.question("layer_norm/plain", "float32"), 60, Store()).status == "not shown"


@pytest.mark.parametrize("config", every(2, [{"epsilon": 1e30}, {"model_width": 1}]))
def test_whatever_contains_the_norm_shows_nothing_of_it(config: dict[str, object]) -> None:
    found = reasons(config, "encoder_layer", "greedy_search")
    assert {case_id.partition("/")[0] for case_id in found} == {"encoder_layer", "greedy_search"}
    assert any(case_id.startswith("encoder_layer/pre") for case_id in found)


ORDINARY: list[dict[str, object]] = [
    SIZES,
    SIZES | {"epsilon": 1e-12},
    {"epsilon": 1e-3},
    {"heads": 1, "key_value_heads": 1},
    {"encoder_layers": 1, "decoder_layers": 1},
    {"norm_placement": "pre"},
    {"padding_id": None},
    {"decoder_layers": 0},
    {"activation": "gelu_erf", "feed_forward_width": 4},
    {"attention_bias": False, "output_bias": False, "share_embeddings": True, "source_vocabulary": 17},
]


PARTS = ("layer_norm", "multi_head_attention", "feed_forward", "encoder_layer")


@pytest.mark.parametrize("components", [PARTS, conformance([*PARTS, "decoder_layer", "transformer"])], ids=["parts", "all"])
@pytest.mark.parametrize("config", every(10, ORDINARY))
def test_what_models_have_hides_nothing(config: dict[str, object], components: Sequence[str]) -> None:
    assert reasons(config, *components) == {}


def test_the_suite_itself_hides_nothing() -> None:
    assert not any(map(Hidden(OWN, OWN).reason, OWN))
