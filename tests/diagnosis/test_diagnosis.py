"""Diagnosis names planted bugs, reports when it cannot, and never names others."""

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import whole_models
from expectations import suite
from in_process import InProcess
from invoke import invoke
from kinds import conformance, every
from messages import mentions

from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.diagnosis import diagnose, port_diagnosis
from rosettaformer.judge.diagnosis.asked_port import AskedPort
from rosettaformer.judge.diagnosis.findings import Deadline, TimeIsUp, Verdict
from rosettaformer.judge.expectation import components, orders, tolerance
from rosettaformer.judge.expectation.expectation_store import Store
from rosettaformer.judge.ports import session
from rosettaformer.judge.suite.asked import Suite, asked
from rosettaformer.ports import CLASSIC

TESTS = Path(__file__).parents[1]
IMPORTS = """import numpy as np
from reference_numpy import attention, normalization, parameters, softmax as s
from rosettaformer.judge.expectation.components import function_of
from rosettaformer.ports import CLASSIC as config
"""
Write = Callable[[str], str]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Returns a function that writes a port's file."""

    def write(text: str) -> str:
        file = tmp_path / "a_port.py"
        file.write_text(IMPORTS + text)
        return str(file)

    return write


@pytest.fixture
def port(written: Write, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Returns a function that writes the file of a port, which runs in this process."""
    monkeypatch.setattr(session, "open_worker", InProcess)
    return written


@pytest.mark.product
def test_a_wrong_formula_is_named_with_its_fix_and_a_correct_port_gets_no_finding() -> None:
    findings = diagnose(str(TESTS / "ports" / "numpy_wrong_norm.py")).findings
    assert [(finding.component, finding.verdict, finding.explanations) for finding in findings] == [
        ("layer_norm", "explained", (("NRM1",),))
    ]
    assert "explain NRM1" in findings[0].text  # the port has no framework
    assert diagnose(str(TESTS / "ports" / "numpy_function.py")).findings == []


def test_a_composite_follows_from_what_was_found_in_its_part(port: Write) -> None:
    text = """
def softmax(case):
    return wrong(case.inputs["logits"], case.inputs["mask"])
true = s.softmax
def wrong(logits, mask=None):
    return true(logits, None if mask is None else ~mask)
def scaled_dot_product_attention(case):
    s.softmax = wrong
    try:
        return function_of("scaled_dot_product_attention")(**case.inputs)
    finally:
        s.softmax = true
"""
    found = diagnose(port(text), pairs=False).findings
    assert [finding.component for finding in found] == ["softmax", "scaled_dot_product_attention"]
    assert found[1].verdict == "follows"


FILL = """
from unittest import mock
true, attend = s.softmax, function_of("multi_head_attention")
def filled(logits, mask=None):
    return true(logits if mask is None else np.where(mask, logits, {}))
def multi_head_attention(case):
    with mock.patch.object(s, "softmax", filled):
        rate = case.config.attention_dropout_rate
        return attend(parameters.nest(case.parameters), **case.inputs, dropout_rate=rate, config=case.config)
dtypes = ("float64",)
"""
SEARCH = """
def greedy_search(case):
    given = parameters.nest(case.inputs)
    given["strategy"] = given["strategy"] | {"min_new_tokens": 0}
    return function_of("greedy_search")(parameters.nest(case.parameters), case.config, **given)
"""

FLOAT64, BOTH = '\ndtypes = ("float64",)\n', '\ndtypes = ("float64", "float32")\n'


def norm(result: str = "y", epsilon: str = "case.config.epsilon") -> str:
    """Returns a layer norm with this epsilon and a function applied to its output."""
    return f"""
def layer_norm(case):
    x = case.inputs["x_btd"]
    y = normalization.layer_norm(case.parameters, x, {epsilon})
    return {result}
"""


def drawing(rate: str, factor: str) -> str:
    """Returns a layer that multiplies by its random draws if this rate is not 0 and no masks are passed."""
    return f"""
def encoder_layer(case):
    y = function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
    given = any(name.startswith("keep") for name in case.inputs)
    return y * {factor} if case.config.{rate} and not given else y
{FLOAT64}"""


# name -> of the only finding the verdict, the names, and words the text has and lacks; and the port
ONE_FINDING: dict[str, tuple[str, tuple[tuple[str, ...], ...], list[str], list[str], str]] = {
    "what nothing explains is unexplained": (
        "unexplained", (), ["none of"], [], norm("(y + 0.01 * np.sin(1000 * y)).astype(y.dtype)"),
    ),
    "a factor is said": (
        "described", (), ["layer_norm … times 1.01"], ["unexplained"], norm("(1.01 * y).astype(y.dtype)"),
    ),
    "a wider dtype is said at once": (
        "described", (), ["float32; got float64"], ["float32 numbers"], norm("y.astype(np.float64)"),
    ),
    "a name but for the digits of a table, at the widths that have it": (
        "imprecise", (("PE2",),), [
            "PE2 … width is 13",
            "positional_encoding/odd_width",
        ], [], """
def positional_encoding(case):
    width, position = case.config.model_width, case.inputs["position_bt"].astype(np.float32)[..., None]
    column = np.arange(width, dtype=np.float32)
    angle = position / np.power(np.float32(10000), 2 * column / np.float32(width))
    angle = angle[..., ::-1] if width % 2 else angle
    return np.where(np.arange(width) % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float64)
dtypes = ("float64",)
"""),
    "a number near another is no matter of digits": ("explained", (("mask.fill=-1e-09",),), [], ["fewer digits"], """
def softmax(case):
    logits, mask = case.inputs["logits"], case.inputs.get("mask")
    return s.softmax(logits if mask is None else np.where(mask, logits, logits.dtype.type(-1e-9)))
"""),
    "first row's mask, which hides nothing": ("described", (), [], ["it is ignored"], """
def softmax(case):
    mask = case.inputs.get("mask")
    return s.softmax(case.inputs["logits"], None if mask is None else np.broadcast_to(mask[:1], mask.shape))
dtypes = ("float64",)
"""),
    "another dtype is said": (
        "described", (), ["small_variance: must be float64; got float16"], [], norm("y.astype(np.float16)"),
    ),
    "a defect on one path is named with what the path depends on": (
        "explained", (("NRM2",),), ["NRM2 … batch is 1 … target length is 1"], [],
        norm(epsilon="1e-3 if len(x) == 1 else case.config.epsilon"),
    ),
    "a defect on a path that no property of the cases tells is partly there": (
        "partly", (("NRM2",),), ["NRM2"], [],
        norm(epsilon="1e-3 if x.ravel()[:1].sum() < 0 else case.config.epsilon"),
    ),
    "a port that fails on every case": ("error", (), ["TypeError: forward() takes 2 arguments"], [], """
def transformer(case):
    raise TypeError("forward() takes 2 arguments")
"""),
    "low precision is not equality": ("imprecise", (("PRC1",),), ["PRC1"], [], """
dtypes = ("float64", "float32")
def multi_head_attention(case):
    inputs = dict(case.inputs)
    if case.dtype == "float32":
        inputs["query_btd"] = inputs["query_btd"] * np.float32(1 + 1e-5)
    rate = case.config.attention_dropout_rate
    return function_of("multi_head_attention")(parameters.nest(case.parameters), **inputs, dropout_rate=rate, config=case.config)
"""),
    "randomness in evaluation": (
        "unstable", (), [], ["dropout"], norm("y * (np.random.default_rng().random(y.shape) > 0.1)"),
    ),
    "dropout in evaluation": ("unstable", (("DRP2",),), [], [], """
from rosettaformer.judge.catalogue import all_defects, injected
def encoder_layer(case):
    with injected(all_defects()["DRP2"]):
        return function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **case.inputs)
"""),
    "other rows": ("unexplained", (), ["other rows"], [], norm("y + 0.1 * y.sum(0, keepdims=True)")),
    "what an earlier call was given": ("described", (), ["calls before"], ["other rows"], """
kept = {}
def layer_norm(case):
    x = case.inputs["x_btd"]
    return normalization.layer_norm(case.parameters, kept.setdefault((x.shape, x.dtype), x), case.config.epsilon)
"""),
    "how much padding there is": ("unexplained", (), ["padding"], ["other rows"], """
dtypes = ("float64",)
def transformer(case):
    logits = function_of("transformer")(parameters.nest(case.parameters), case.config, **case.inputs)
    return logits * (1 + 0.01 * case.inputs["target"].shape[1])
"""),
    "half-precision dtypes where the others conform": ("explained", (("NRM7",),), [], [], """
def layer_norm(case):
    x, p, one = case.inputs["x_btd"], case.parameters, case.parameters["scale"].dtype.type
    unit = {"scale": np.ones_like(p["scale"]), "offset": np.zeros_like(p["offset"])}
    return normalization.layer_norm(unit, x, case.config.epsilon) * p["scale"] + p["offset"]
"""),
    "two crashes are not equal, though PE8 fails at odd widths": (
        "error", (), ["NotImplementedError: nor this", "ValueError: no table"], [], """
def positional_encoding(case):
    raise ValueError("no table") if case.config.model_width % 2 or case.name == "far" else NotImplementedError("nor this")
"""),
    "a defect that crashes alike": (
        "error", (("PE8",),), [], [], """
from reference_numpy import positional_encoding as p
def positional_encoding(case):
    if case.config.model_width == 13:
        raise ValueError("odd")
    return p.positional_encoding(case.inputs["position_bt"], case.config.model_width, np.dtype(case.inputs.get("dtype", "float64")))
dtypes = ("float64",)
"""),
    "NaN is not another row": (
        "unexplained", (), [], ["other rows"],
        norm("np.where(np.indices(y.shape)[:2].any(0) | (len(y) == 1), 1.01 * y, np.nan).astype(y.dtype)"),
    ),
    "rounding of large wrong numbers is not another row": (
        "described", (), [], ["other rows"], norm("1e9 * y * (1 + len(y) * np.finfo(y.dtype).eps)") + FLOAT64,
    ),
    "dropout of one sub-layer in evaluation": (
        "unstable", (), ["dropout"], ["catalogue"],
        drawing("hidden_dropout_rate", "(np.random.default_rng().random(y.shape) > 0.1)"),
    ),
    "randomness in the last bits is not dropout": (
        "unstable", (), [], ["dropout"],
        drawing("dropout_rate", "(1 + 2.0**-52 * np.random.default_rng().integers(0, 3, y.shape))"),
    ),
    "the wrong query is not explained by what draws": ("unexplained", (), [], [], """
import contextlib
from unittest import mock
attend = attention.multi_head_attention
def wrong(p, own, query, memory, *rest, **options):
    return attend(p, own, query if query is memory else np.roll(query, 1, axis=1), memory, *rest, **options)
def decoder_layer(case):
    with mock.patch.object(attention, "multi_head_attention", wrong):
        return function_of("decoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
"""),
    "a name and another constant": (
        "explained", (("NRM1", "gelu_tanh.cubic=0.04475"),), ["gelu_tanh.cubic=0.04475 … 0.044715"], [], """
from unittest import mock
from reference_numpy import feed_forward
true = feed_forward.activation
def curve(x, name):
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.04475 * x**3))) if name == "gelu_tanh" else true(x, name)
def wrong(p, x, epsilon, *options):
    y = (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + epsilon)
    return (y * p["scale"] + p["offset"]).astype(x.dtype)
def encoder_layer(case):
    with mock.patch.object(feed_forward, "activation", curve), mock.patch.object(normalization, "layer_norm", wrong):
        return function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
dtypes, config = ("float64",), {"activation": "gelu_tanh"}
"""),
    "a mistake at one place": ("explained", (("ATT3",),), ["place … cross_attention"], [], """
from unittest import mock
true = attention.scaled_dot_product_attention
def unscaled(heads, *rest, **options):
    query = heads.query_bthk
    return true(heads._replace(query_bthk=query * query.shape[-1] ** 0.5), *rest, **options)
def decoder_layer(case):
    seen = []
    def attend(*given, **options):
        seen.append(given)
        with mock.patch.object(attention, "scaled_dot_product_attention", unscaled if len(seen) == 2 else true):
            return multi_head(*given, **options)
    multi_head = attention.multi_head_attention
    with mock.patch.object(attention, "multi_head_attention", attend):
        return function_of("decoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
dtypes = ("float64",)
"""),
    "what float64 does not explain is explained in float32": (
        "explained", (("NRM2",),), ["float32 … float64"], [],
        norm("(y + 3e-10 * np.sin(1e6 * y)).astype(y.dtype)", "1e-3") + BOTH,
    ),
    "rounding loses no digits": (
        "explained", (("NRM5",),), ["float64 … 1e-13"], [], """
from rosettaformer.judge.catalogue import all_defects, injected
dtypes = ("float64", "float32")
def layer_norm(case):
    with injected(all_defects()["NRM5"]):
        y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    return y * y.dtype.type(1 + 1e-13)
"""),
    "a fill of -1e9, which one more case tells from -1e4": (
        "explained", (("ATT13",),), ["ATT12 … multi_head_attention/ … large logits"], [], FILL.format(-1e9)
    ),
    "a fill of -1e4, which one more case tells from -1e9": (
        "explained", (("ATT12",),), ["ATT13 … multi_head_attention/ … large logits"], [], FILL.format(-1e4)
    ),
    "a mistake of a search that no float64 case shows": ("explained", (("min_new_tokens ignored",),), [], [], SEARCH),
    "what no alteration gives of an update": (
        "described", (), [
            "2 of 10 cases … only where weight_decay is ", "parameters differ … first moments, second moments"
        ], [], """
from rosettaformer.judge.expectation import components

def adam(case):
    right = components.answer(case)
    return {name: value * (1 + case.inputs["weight_decay"] * name.startswith("parameters")) for name, value in right.items()}

dtypes = ("float64",)
"""),
}  # fmt: skip
LOWER_DTYPE = {
    "a wider dtype is said at once": "float32",
    "low precision is not equality": "float32",
    "half-precision dtypes where the others conform": "bfloat16",
    "what float64 does not explain is explained in float32": "float32",
    "rounding loses no digits": "float32",
    "a mistake of a search that no float64 case shows": "float32",
}
SLOW = ("how much padding there is", "the wrong query is not explained by what draws", "a mistake at one place",
        "a name and another constant", "a mistake of a search that no float64 case shows")  # fmt: skip


@pytest.mark.parametrize("name", [
    *every(6, [name for name in ONE_FINDING if name not in SLOW]), *map(conformance, SLOW),
])  # fmt: skip
def test_a_port_of_functions_has_one_finding(port: Write, name: str) -> None:
    verdict, explanations, says, says_not, text = ONE_FINDING[name]
    (finding,) = diagnose(port(text), pairs=name == "a name and another constant").findings
    assert (finding.verdict, [*map(set, finding.explanations)]) == (verdict, [*map(set, explanations)])
    assert all(mentions(finding.text, words) for words in says) and not any(words in finding.text for words in says_not), finding.text
    assert finding.dtype == LOWER_DTYPE.get(name, "float64")


def test_a_model_that_fails_in_most_cases_is_told_so_first_and_its_answers_are_searched(port: Write) -> None:
    text = """
def encoder_layer(case):
    mask_bhts = case.inputs["mask_bhts"]
    return function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs)) + 0.3
"""
    crash, rest = diagnose(port(text), pairs=False).findings
    assert (crash.verdict, crash.explanations) == ("error", ())
    assert mentions(crash.text, "encoder_layer … KeyError: 'mask_bhts' (a_port.py:7) … not where mask_bhts is given")
    assert rest.verdict == "described"
    assert "0.3" in rest.text
    assert "KeyError" not in rest.text


def test_what_fails_is_said_and_what_cannot_run_in_float64_is_searched_in_float32(port: Write) -> None:
    text = """
def layer_norm(case):
    if case.config.model_width == 4:
        raise TypeError("four is too few")
    return case.inputs["x_btd"]
"""
    crash, rest = diagnose(port(text), pairs=False).findings
    assert (crash.verdict, rest.verdict) == ("error", "described")
    assert "input" in rest.text
    assert mentions(crash.text, "TypeError: four is too few (a_port.py:8) … only where target length is 7 and model_width is 4")
    text = """
def layer_norm(case):
    if case.dtype == "float64":
        raise TypeError("float32 is required")
    return normalization.layer_norm(case.parameters, case.inputs["x_btd"], EPSILON)
"""
    crash, rest = diagnose(port(text.replace("EPSILON", "1e-3")), pairs=False).findings
    assert (crash.verdict, crash.dtype, rest.explanations, rest.dtype) == ("error", "float64", (("NRM2",),), "float32")
    (crash,) = diagnose(port(text.replace("EPSILON", "case.config.epsilon")), pairs=False).findings
    assert crash.text.endswith("float32 conforms")


def test_a_search_is_asked_first_in_the_dtype_of_its_cases(port: Write) -> None:
    cases = asked(Suite(), {"config": CLASSIC}).cases
    every = [case for case in cases if case.component == "greedy_search" and not case.excluded]
    with contextlib.closing(AskedPort(port(SEARCH), "", 60.0, (), Deadline())) as examined_port:
        assert examined_port.dtypes_of("greedy_search")[:2] == ["float32", "float64"]
        assert examined_port.dtypes_of("layer_norm")[:2] == ["float64", "float32"]
        assert [case.id for case in examined_port.cases("greedy_search", "float32")] == [case.id for case in every]
        assert (examined_port.beyond("greedy_search"), examined_port.beyond("layer_norm")) == (0, 0)
        examined_port.dtypes = ["float64"]
        assert len(examined_port.cases("greedy_search", "float64")) == 1
        assert examined_port.beyond("greedy_search") == len(every) - 1


def test_the_limit_is_of_the_searchs_own_processor_time() -> None:
    limit = Deadline(0.05)
    time.sleep(0.1)  # as if the port were computing
    limit.check()
    before = time.thread_time()
    while time.thread_time() < before + 0.06:
        pass
    with pytest.raises(TimeIsUp):
        limit.check()
    Deadline().check()


WITHOUT_CAUSAL_MASK = """
from unittest import mock
from reference_numpy import mask as masks
def answered(function, case):
    if MASKED and "self_mask_bhts" not in case.inputs:
        raise ValueError("a mask is required")
    with mock.patch.object(masks, "causal_mask", lambda *lengths: np.ones((1, 1, *lengths), bool)):
        return function(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
def decoder_layer(case):
    return answered(function_of("decoder_layer"), case)
def decoder(case):
    return answered(function_of("decoder"), case)
dtypes = ("float64",)
"""


@pytest.mark.parametrize("masked", [False, True])
def test_what_no_case_tells_apart_has_no_fix_and_stays_so_in_the_whole(port: Write, masked: bool) -> None:
    """All cases have a mask: only a case without one tells a missing causal mask from one missing when a mask is passed."""
    names = ("post_ragged", "pre_ragged", "final_norm", "pre_norm")
    declared = {(case.id, "float64") for case in suite() if case.name not in names}
    text = WITHOUT_CAUSAL_MASK.replace("MASKED", str(masked))
    part, whole = diagnose(port(text), pairs=False, gradients=False, declared=declared).findings
    if masked:
        assert (part.verdict, whole.verdict) == ("indistinguishable", "follows")
        assert {("CAU4",), ("CAU6",)} <= set(part.explanations) == set(whole.explanations)
        assert mentions(part.text, "CAU4 … CAU6")
        assert mentions(whole.text, "CAU4 or CAU6") and "fix" not in part.text
    else:
        assert (part.verdict, part.explanations, whole.explanations) == ("explained", (("CAU6",),), (("CAU6",),))
        assert mentions(part.text, "CAU4 … without a mask")


@pytest.mark.conformance
def test_what_is_known_of_a_part_does_not_hide_what_the_whole_does_besides(port: Write) -> None:
    text = """
from unittest import mock
def wrong(p, x, epsilon, *options):
    y = (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + epsilon)
    return (y * p["scale"] + p["offset"]).astype(x.dtype)
def layer_norm(case):
    return wrong(case.parameters, case.inputs["x_btd"], case.config.epsilon)
def encoder_layer(case):
    with mock.patch.object(normalization, "layer_norm", wrong):
        x = function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
dtypes = ("float64",)
"""
    _, whole = diagnose(port(text), pairs=False).findings
    assert whole.verdict == "described"
    assert mentions(whole.text, "encoder_layer … NRM1 … log-softmax")


@pytest.mark.conformance
@pytest.mark.parametrize(("scale", "verdict"), [("False", "follows"), conformance("not config.scale_embedding", "partly")])
def test_what_the_parts_come_to_is_said_of_the_whole(port: Write, scale: str, verdict: str) -> None:
    text = f"""
from impl_torch import port
from impl_torch.port import framework, weights

def build(config, dtype):
    return port.components["transformer"](config.replace(epsilon=1e-3, scale_embedding={scale}), dtype)

components = {{"transformer": build}}
"""
    findings = diagnose(port(text), pairs=False, gradients=False).findings
    assert [finding.explanations for finding in findings[:2]] == [(("EMB1",),), (("NRM2",),)]
    assert (findings[2].component, findings[2].verdict) == ("transformer", verdict)
    assert set(findings[2].explanations[0]) == {"EMB1", "NRM2"}


@pytest.mark.conformance
def test_declared_deviations_are_left_out() -> None:
    declared = {(case.id, dtype) for case in suite() for dtype in DTYPES}
    assert diagnose(str(TESTS / "support" / "wrong_port.py"), declared=declared).findings == []
    assert diagnose(str(TESTS / "support" / "wrong_port.py"), declared={("softmax/plain", "float64")}).findings != []


@pytest.mark.conformance
def test_stock_keras_attention_is_taken_apart() -> None:
    (finding,) = diagnose(str(TESTS / "ports" / "keras_multi_head_attention.py"), ["multi_head_attention"], gradients=False).findings
    assert finding.verdict == "partly"
    assert {"scale=float32", "CAU3", "ATT13"} in [set(ids) for ids in finding.explanations]
    assert "multi_head_attention/left_padding" in finding.text


@pytest.mark.conformance
def test_a_part_that_nothing_explains_is_named_by_its_place(port: Write) -> None:
    text = """
from impl_torch import port
from impl_torch.port import framework, weights

def build(config, dtype):
    model = port.components["encoder"](config, dtype)
    network = model.layers[1].feed_forward
    network.register_forward_hook(lambda module, args, output: 1.01 * output)
    return model

components = {"encoder": build}
config = {"encoder_layers": 2}
"""
    findings = diagnose(port(text), pairs=False, gradients=False).findings
    assert [finding.verdict for finding in findings] == ["described", "follows"]
    assert findings[0].paths == ("layers.1.feed_forward",)
    assert "the reference times 1.01" in findings[0].text
    assert mentions(findings[1].text, "encoder … layers.1.feed_forward")


@pytest.mark.conformance
def test_what_contains_a_part_that_nothing_explains_follows_from_it_and_from_nothing_else(port: Write) -> None:
    text = """
true = normalization.layer_norm
def wrong(p, x, epsilon, *options):
    y = true(p, x, epsilon, *options)
    return (y + 0.01 * np.sin(1000 * y)).astype(y.dtype)
def layer_norm(case):
    return wrong(case.parameters, case.inputs["x_btd"], case.config.epsilon)
def encoder_layer(case):
    normalization.layer_norm = wrong
    try:
        return FACTOR * function_of("encoder_layer")(parameters.nest(case.parameters), case.config, **parameters.nest(case.inputs))
    finally:
        normalization.layer_norm = true
dtypes = ("float64",)
"""
    first, second = diagnose(port(text.replace("FACTOR", "1")), pairs=False).findings
    assert (first.verdict, second.verdict) == ("unexplained", "follows")
    assert mentions(second.text, "encoder_layer … layer_norm")
    first, second = diagnose(port(text.replace("FACTOR", "2")), pairs=False).findings
    assert second.verdict != "follows"


@pytest.mark.conformance
def test_a_mistake_is_named_besides_rows_that_are_nan(port: Write) -> None:
    text = """
from unittest import mock
def without_guard(logits, mask=None):
    x = logits if mask is None else np.where(mask, logits, -np.inf)
    with np.errstate(all="ignore"):
        exponential = np.exp(x - x.max(-1, keepdims=True))
        return exponential / exponential.sum(-1, keepdims=True)
def decoder_layer(case):
    p = parameters.nest(case.parameters)
    with mock.patch.object(s, "softmax", without_guard):
        return function_of("decoder_layer")(p | {"cross_attention": p["self_attention"]}, case.config, **parameters.nest(case.inputs))
dtypes = ("float64",)
"""
    (finding,) = diagnose(port(text), pairs=False, gradients=False).findings
    assert finding.verdict == "explained"
    assert finding.explanations[0][0] == "empty rows=NaN"
    assert mentions(finding.text, "cross_attention … self_attention")


def _at_last(error: BaseException) -> mock.Mock:
    """Returns a function that raises the error from its 60th call on."""
    return mock.Mock(side_effect=itertools.chain(itertools.repeat(None, 59), itertools.repeat(error)))


def test_at_the_limit_the_best_so_far_is_returned(port: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, said = port(ONE_FINDING["what nothing explains is unexplained"][-1]), []
    monkeypatch.setattr(port_diagnosis.Deadline, "check", _at_last(TimeIsUp("the limit of 1 seconds had passed")))
    found = diagnose(wrong, limit=1.0, say=said.append)
    assert found.stopped == "the limit of 1 seconds had passed"
    assert found.findings[-1].verdict in (Verdict.STOPPED, Verdict.DESCRIBED)
    assert found.next_steps == ["--limit 4 searches longer"]
    assert "layer_norm/" in found.findings[-1].text
    assert mentions(said[0], "layer_norm … float64 … layer_norm/")
    monkeypatch.setattr(port_diagnosis.Deadline, "check", _at_last(KeyboardInterrupt()))
    assert diagnose(wrong).stopped == "interrupted"


@pytest.mark.product
def test_at_the_limit_a_whole_models_dependence_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = whole_models.written(tmp_path, "y = y + 0.25 * y[:, ::-1]")
    cases = [case for case in whole_models.models() if case.id == "transformer/short"]
    at_last = _at_last(TimeIsUp("the limit had passed"))
    monkeypatch.setattr(Deadline, "check", lambda deadline: at_last() if deadline._ends else None)
    found = diagnose(leaking, cases=cases, dtypes=("float32",))
    assert found.stopped == "the limit had passed"
    assert found.findings[-1].verdict == Verdict.DESCRIBED


WRONG = {
    "greedy_search": """
def greedy_search(case):
    answer = function_of("greedy_search")(parameters.nest(case.parameters), case.config, **case.inputs)
    return answer | {"token_bn": (answer["token_bn"] + 1) % case.config.target_vocabulary}
""",
    "layer_norm_vjp": """
def layer_norm_vjp(case):
    given = case.inputs | {"parameters": parameters.nest(case.parameters), "epsilon": case.config.epsilon}
    return parameters.flatten(normalization.layer_norm_vjp(**given | {"cotangent": 2 * case.inputs["cotangent"]}))
""",
}
# The most runs of the reference: for the expectation of one case, and of a search for where the port's choices lead, for where they
# may lead, and once to see that these are the same.
MOST = {
    "greedy_search": 3 * (1 + len(orders.ORDERS) + tolerance.SEARCHED) + 1,
    "layer_norm_vjp": 1 + len(orders.ORDERS | orders.GRADIENT_ORDERS) + tolerance.SHUFFLES,
}


@pytest.mark.product
@pytest.mark.parametrize("component", WRONG)
def test_the_first_sentence_waits_for_the_expectation_of_one_case(written: Write, monkeypatch: pytest.MonkeyPatch, component: str) -> None:
    runs: list[str] = []
    module, original = components.module_of(components.COMPONENTS[component].module), components.function_of(component)

    @functools.wraps(original)
    def counted(*args: Any, **options: Any) -> Any:
        runs.append(component)
        return original(*args, **options)

    def say(sentence: str) -> None:
        said.append((sentence, len(runs)))
        if len(said) == 1:
            raise KeyboardInterrupt

    said: list[tuple[str, int]] = []
    monkeypatch.setattr(port_diagnosis, "Store", Store)
    monkeypatch.setattr(module, component, counted)
    found = diagnose(written(f"{WRONG[component]}dtypes = ('float32',)"), (component,), say=say)
    assert found.stopped == "interrupted"
    sentence, before = said[0]
    assert mentions(sentence, f"{component} … float32 … {component}/")
    assert before <= MOST[component]


@pytest.mark.conformance
def test_three_defects_in_a_torch_model_are_found_through_its_modules() -> None:
    findings = diagnose(str(TESTS / "ports" / "handwritten_torch.py")).findings
    whole = findings[-1]
    assert (whole.component, whole.verdict) == ("transformer", "explained")
    assert set(whole.explanations[0]) == {"PE2", "NRM1", "MHA11"}
    assert "decoder.layers.0.cross_attention_norm" in next(finding.paths for finding in findings if finding.explanations == (("NRM1",),))
    assert "    jax: " not in whole.text  # the fix is for torch


@pytest.mark.conformance
@pytest.mark.parametrize("gradients", [False, True])
def test_the_same_model_without_them_gets_no_finding(gradients: bool) -> None:
    assert diagnose(str(TESTS / "ports" / "handwritten_torch_correct.py"), gradients=gradients).findings == []


@pytest.mark.conformance
def test_a_wrong_gradient_is_found_where_the_output_is_right(port: Write) -> None:
    text = """
from impl_torch.feed_forward import FeedForward
from impl_torch.port import framework, weights

class Detached(FeedForward):
    def forward(self, x_btd):
        return super().forward(x_btd.detach())

components = {"feed_forward": lambda config, dtype: Detached(config)}
"""
    diagnosis = diagnose(port(text))
    outputs, finding = diagnosis.findings
    assert (outputs.component, outputs.verdict) == ("feed_forward_vjp", "described")
    assert mentions(outputs.text, "feed_forward_vjp … `x_btd` … parameters")
    assert (finding.component, finding.verdict) == ("feed_forward", "gradient")
    assert mentions(finding.text, "feed_forward … x_btd")
    assert diagnosis.gradients[0].first is not None
    assert diagnose(port(text), gradients=False).findings == []


@pytest.mark.product
def test_the_command_prints_and_writes_the_findings_and_says_that_it_was_stopped(tmp_path: Path) -> None:
    found = invoke("diagnose", TESTS / "support" / "wrong_port.py", "--json", tmp_path / "findings.json")
    assert found.code == 1, found
    assert not found.err  # nothing is repeated there
    assert not found.out.splitlines()[-1].endswith("(float64)")  # the dtype does not follow the fix
    (finding,) = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert finding["explanations"] == [["epsilon=outside the root"]]
    assert invoke("diagnose", TESTS / "ports" / "numpy_function.py").code == 0
    found = invoke("diagnose", TESTS / "ports" / "numpy_wrong_norm.py", "--limit", "0.1")
    assert (found.code, found.out.count("stopped: ")) == (1, 1)


@pytest.mark.product
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--command"),
        (("no_such_port",), "no_such_port … ModuleNotFoundError"),
        ((str(TESTS / "support" / "wrong_port.py"), "-k", "no_such_case"), "-k"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    found = invoke("diagnose", *arguments)
    assert found.code == 2 and mentions(found.err, message) and "Traceback" not in found.err
