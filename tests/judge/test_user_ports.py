"""User ports (tests/ports): the correct ones conform except for declared failures, the buggy ones do not."""

import importlib.util
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from expectations import suite
from kinds import conformance

from rosettaformer.judge import deviations, runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.status import FAILURES

pytestmark = pytest.mark.product

HOUSE = Path(__file__).resolve().parents[2]
LAYERS = {"encoder_layer": (16, 0), "decoder_layer": (18, 0)}
# port -> (requirements, number of comparisons that pass and that fail as declared, by component)
CONFORMING = {
    "numpy_function": ("numpy", {"layer_norm": (16, 0)}),
    "handwritten_torch_correct": ("torch", {"transformer": (20, 0)}),
    "torch_nn_transformer": ("torch", LAYERS | {"transformer": (22, 10)}),
    "keras_multi_head_attention": ("tensorflow", {"multi_head_attention": (11, 14)}),
    "keras_hub_decoders": ("keras_hub", {"transformer": (7, 3)}),
}


@pytest.mark.parametrize("port", ["numpy_function", *(conformance(port) for port in CONFORMING if port != "numpy_function")])
def test_a_correct_port_conforms_but_for_the_deviations_that_it_declares(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOUSE)
    needs, expected = CONFORMING[port]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    cases = [case for case in suite() if case.component in expected]
    results = runner.run(cases, [f"tests/ports/{port}.py"], DTYPES)
    if (declared := HOUSE / f"tests/ports/{port}.toml").exists():
        results = deviations.apply(results, deviations.read(declared, cases))
    assert not [result for result in results if result.status in (*FAILURES, "stale", "missing")]
    counts = Counter((result.component, result.status) for result in results)
    for component, (least, failing) in expected.items():
        assert counts[component, "pass"] >= least and counts[component, "deviation"] == failing, counts


def test_a_c_program_conforms(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path / "layer_norm"
    subprocess.run(["cc", "-O2", "-o", program, HOUSE / "tests/ports/layer_norm.c", "-lm"], check=True)
    cases = [case for case in suite() if case.component in ("layer_norm", "softmax")]
    results = runner.run(cases, [f"command:{program}"], DTYPES)
    counts = Counter((result.component, result.dtype, result.status) for result in results)
    judged = {("layer_norm", dtype, status) for dtype in ("float64", "float32") for status in ("pass", "empty")}
    assert {key for key in counts if key[2] != "not covered"} == judged
    assert min(counts["layer_norm", dtype, "pass"] for dtype in ("float64", "float32")) >= 8
