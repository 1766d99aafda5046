"""Diagnosis names what was put in, says when it cannot, and never names what is not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rosettaformer.conformance.case import DTYPES
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.diagnosis import diagnose

TESTS = Path(__file__).parent


def _port(tmp_path: Path, text: str) -> str:
    file = tmp_path / "a_port.py"
    file.write_text("import numpy as np\nfrom reference_numpy import attention, layers, normalization, parameters, softmax as s\n" + text)
    return str(file)


# --- a port's findings


def test_a_wrong_formula_is_named_with_its_fix() -> None:
    findings = diagnose(str(TESTS / "ports" / "numpy_wrong_norm.py")).findings
    assert [(finding.component, finding.verdict, finding.explanations) for finding in findings] == [
        ("layer_norm", "explained", (("NRM1",),))
    ]
    assert "layer_norm: your output equals the truth with NRM1 (unbiased deviation, epsilon outside the root)" in findings[0].text
    assert "torch: " in findings[0].text


def test_a_correct_port_gets_no_finding() -> None:
    assert diagnose(str(TESTS / "ports" / "numpy_function.py")).findings == []


def test_a_composite_follows_from_what_was_found_in_its_part(tmp_path: Path) -> None:
    port = _port(
        tmp_path,
        """
def softmax(case):
    return wrong(case.inputs["logits"], case.inputs["mask"])
true = s.softmax
def wrong(logits, mask=None):
    return true(logits, None if mask is None else ~mask)
def scaled_dot_product_attention(case):
    s.softmax = wrong
    try:
        return attention.scaled_dot_product_attention(**case.inputs)
    finally:
        s.softmax = true
""",
    )
    found = diagnose(port, pairs=False).findings
    assert [finding.component for finding in found] == ["softmax", "scaled_dot_product_attention"]
    assert found[1].verdict == "follows"


def test_what_nothing_explains_is_unexplained_with_the_nearest(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    return (1.01 * normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)).astype(case.inputs["x_btd"].dtype)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert finding.verdict == "unexplained"
    assert finding.explanations == ()
    assert "unexplained: none of" in finding.text


def test_another_dtype_is_unexplained_and_said(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    return normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon).astype(np.float16)
"""
    (finding,) = diagnose(_port(tmp_path, text), pairs=False).findings
    assert finding.verdict == "unexplained"
    assert "first seen: layer_norm/small_variance: must be float64; got float16" in finding.text


def test_a_defect_on_one_path_is_said_to_be_partly_there(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    epsilon = 1e-3 if case.inputs["x_btd"].shape[0] == 1 else case.config.epsilon
    return normalization.layer_norm(case.parameters, case.inputs["x_btd"], epsilon)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert finding.verdict == "partly"
    assert finding.explanations == (("NRM2",),)
    assert "on layer_norm/one_position it equals the truth with NRM2" in finding.text


def test_a_port_that_fails_on_every_case_gets_no_name(tmp_path: Path) -> None:
    text = """
def transformer(case):
    raise TypeError("forward() takes 2 arguments")
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert (finding.verdict, finding.explanations) == ("error", ())
    assert "fails on every case: TypeError: forward() takes 2 arguments" in finding.text


def test_what_an_error_says_is_shown(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    if case.config.model_width == 4:
        raise TypeError("four is too few")
    return case.inputs["x_btd"]
"""
    crash, rest = diagnose(_port(tmp_path, text), pairs=False).findings
    assert (crash.verdict, rest.verdict) == ("error", "unexplained")
    assert "cases: TypeError: four is too few (a_port.py:6); only where target length is 7 and model_width is 4" in crash.text


def test_two_mistakes_in_one_function_are_named_together(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    x, p = case.inputs["x_btd"], case.parameters
    y = (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-3)
    return (y * p["scale"] + p["offset"]).astype(x.dtype)
"""
    (finding,) = diagnose(_port(tmp_path, "dtypes = ('float64',)\n" + text)).findings
    assert finding.verdict == "explained"
    assert set(finding.explanations[0]) == {"NRM1", "NRM2"}


@pytest.mark.parametrize(("scale", "verdict"), [("False", "follows"), ("not config.scale_embedding", "partly")])
def test_what_the_parts_come_to_is_said_of_the_whole(tmp_path: Path, scale: str, verdict: str) -> None:
    file = tmp_path / "two.py"
    file.write_text(f"""
from impl_torch import port
from impl_torch.port import framework, weights

def build(config, dtype):
    return port.components["transformer"](config.replace(epsilon=1e-3, scale_embedding={scale}), dtype)

components = {{"transformer": build}}
""")
    findings = diagnose(str(file), pairs=False, gradients=False).findings
    assert [finding.explanations for finding in findings[:2]] == [(("EMB1",),), (("NRM2",),)]
    assert (findings[2].component, findings[2].verdict) == ("transformer", verdict)
    assert set(findings[2].explanations[0]) == {"EMB1", "NRM2"}


def test_low_precision_is_said_as_that_and_not_as_equality(tmp_path: Path) -> None:
    text = """
dtypes = ("float64", "float32")
def multi_head_attention(case):
    inputs = dict(case.inputs)
    if case.dtype == "float32":
        inputs["query_btd"] = inputs["query_btd"] * np.float32(1 + 1e-5)
    return attention.multi_head_attention(parameters.nest(case.parameters), **inputs, dropout_rate=case.config.attention_dropout_rate)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert (finding.dtype, finding.verdict, finding.explanations) == ("float32", "imprecise", (("PRC1",),))
    assert "every error is within what PRC1" in finding.text


def test_declared_deviations_are_left_out() -> None:
    declared = {(case.id, dtype) for case in all_cases() for dtype in DTYPES}
    assert diagnose(str(TESTS / "wrong_port.py"), declared=declared).findings == []
    assert diagnose(str(TESTS / "wrong_port.py"), declared={("softmax/plain", "float64")}).findings != []


def test_stock_keras_attention_is_taken_apart() -> None:
    (finding,) = diagnose(str(TESTS / "ports" / "keras_multi_head_attention.py"), ["multi_head_attention"], gradients=False).findings
    assert finding.verdict == "partly"
    assert {"scale=float32", "CAU3", "ATT13"} in [set(ids) for ids in finding.explanations]
    assert "on multi_head_attention/left_padding it equals the truth with" in finding.text


def test_a_part_that_nothing_explains_is_named_by_its_place(tmp_path: Path) -> None:
    file = tmp_path / "larger.py"
    file.write_text("""
from impl_torch import port
from impl_torch.port import framework, weights

def build(config, dtype):
    model = port.components["encoder"](config, dtype)
    network = model.layers[1].feed_forward
    network.register_forward_hook(lambda module, args, output: 1.01 * output)
    return model

components = {"encoder": build}
config = {"encoder_layers": 2}
""")
    findings = diagnose(str(file), pairs=False, gradients=False).findings
    assert [finding.verdict for finding in findings] == ["unexplained", "unexplained"]
    assert findings[0].paths == ("layers.1.feed_forward",)


def test_randomness_in_evaluation_is_found(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    return y * (np.random.default_rng().random(y.shape) > 0.1)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert finding.verdict == "unstable"
    assert "two evaluations of the same input differ" in finding.text
    assert "no defect of the catalogue makes exactly these cases random" in finding.text


def test_dropout_in_evaluation_is_named(tmp_path: Path) -> None:
    text = """
from rosettaformer.conformance.defects import all_defects, injected
def encoder_layer(case):
    with injected(all_defects()["DRP2"]):
        return layers.encoder_layer(parameters.nest(case.parameters), case.config, **case.inputs)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert (finding.verdict, finding.explanations) == ("unstable", (("DRP2",),))


def test_an_output_that_depends_on_the_rest_of_the_batch_is_said(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    return y + 0.1 * y.sum(0, keepdims=True)
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert "a row's output depends on the other rows of its batch" in finding.text


def test_an_output_that_depends_on_the_length_of_the_padding_is_said(tmp_path: Path) -> None:
    text = """
from reference_numpy import transformer as t
def transformer(case):
    logits = t.transformer(parameters.nest(case.parameters), case.config, **case.inputs)
    return logits * (1 + 0.01 * case.inputs["source"].shape[1])
"""
    (finding,) = diagnose(_port(tmp_path, text), pairs=False).findings
    assert "the output depends on how long the padding is" in finding.text
    assert "other rows of its batch" not in finding.text


def test_half_types_are_searched_where_the_others_conform(tmp_path: Path) -> None:
    text = """
def layer_norm(case):
    x, p, one = case.inputs["x_btd"], case.parameters, case.parameters["scale"].dtype.type
    unit = {"scale": np.ones_like(p["scale"]), "offset": np.zeros_like(p["offset"])}
    return normalization.layer_norm(unit, x, case.config.epsilon) * p["scale"] + p["offset"]
"""
    (finding,) = diagnose(_port(tmp_path, text)).findings
    assert (finding.dtype, finding.explanations) == ("bfloat16", (("NRM7",),))


def test_three_defects_in_a_torch_model_are_found_through_its_taps() -> None:
    findings = diagnose(str(TESTS / "ports" / "handwritten_torch.py")).findings
    whole = findings[-1]
    assert (whole.component, whole.verdict) == ("transformer", "explained")
    assert set(whole.explanations[0]) == {"PE2", "NRM1", "MHA11"}
    assert "decoder.layers.0.cross_attention_norm" in next(finding.paths for finding in findings if finding.explanations == (("NRM1",),))
    assert "    jax: " not in whole.text  # the fix is torch's


def test_the_same_model_without_them_gets_no_finding() -> None:
    assert diagnose(str(TESTS / "ports" / "handwritten_torch_correct.py")).findings == []


def test_a_wrong_gradient_is_found_where_the_output_is_right(tmp_path: Path) -> None:
    file = tmp_path / "detached.py"
    file.write_text("""
from impl_torch.feed_forward import FeedForward
from impl_torch.port import framework, weights

class Detached(FeedForward):
    def forward(self, x_btd):
        return super().forward(x_btd.detach())

components = {"feed_forward": lambda config, dtype: Detached(config)}
""")
    diagnosis = diagnose(str(file))
    outputs, finding = diagnosis.findings
    assert (outputs.component, outputs.verdict) == ("feed_forward_vjp", "unexplained")
    assert "unexplained: the catalogue has no defect and no setting that shows here" in outputs.text
    assert (finding.component, finding.verdict) == ("feed_forward", "gradient")
    assert "feed_forward: in backward order the first component whose gradient is wrong, that of x_btd (error" in finding.text
    assert diagnosis.gradients[0].first is not None
    assert diagnose(str(file), gradients=False).findings == []


# --- the command


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rosettaformer", "diagnose", *arguments], capture_output=True, text=True, timeout=120)


def test_the_command_prints_and_writes_the_findings(tmp_path: Path) -> None:
    port, file = str(TESTS / "wrong_port.py"), tmp_path / "findings.json"
    result = _run(port, "--json", str(file))
    assert result.returncode == 1, result.stderr
    assert "explained layer_norm: your output equals the truth with epsilon=outside the root" in result.stdout
    (finding,) = json.loads(file.read_text())
    assert finding["explanations"] == [["epsilon=outside the root"]]
    assert _run(str(TESTS / "ports" / "numpy_function.py")).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one port is required"),
        (("no_such_port",), "the port no_such_port must start; got not started: ModuleNotFoundError"),
        (("torch", "--component", "attention"), "component must be one of embedding,"),
        ((str(TESTS / "wrong_port.py"), "--mode", "fast"), "the mode of this port must be one of eager; got 'fast'"),
        ((str(TESTS / "wrong_port.py"), "--json", "no_such_folder/findings.json"), "the folder no_such_folder does not exist"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    result = _run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
