"""A port of a whole model, `load(folder)`: its outputs are judged at real tokens; missing outputs are not covered."""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcess
from kinds import conformance, every
from messages import each_mentions, mentions, naming
from whole_models import PLAIN, SLOW, in_this_process, judged, models, quick, written

from rosettaformer.files.checkpoints import load
from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new, save
from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import UNLOADED, undefined
from rosettaformer.judge.suite.like_folders import cases_of


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def _statuses(results: Mapping[str, Result]) -> Counter[str]:
    return Counter(str(result.status) for result in results.values())


def _of(results: Mapping[str, Result], status: str) -> dict[str, str]:
    """Returns the messages of the cases with that status."""
    return {case: result.message for case, result in results.items() if result.status == status}


@pytest.mark.parametrize(("family", "dtype", "long"), [
    ("qwen3", "float32", False), *(conformance(("qwen3", dtype, True)) for dtype in DTYPES),
    ("marian", "float32", False), ("m2m_100", "float32", False),
    *(conformance(family, "float32", False) for family in FAMILIES
      if family not in ("qwen3", "marian", "m2m_100")),
])  # fmt: skip
def test_a_port_that_gives_everything_conforms(family: str, dtype: str, long: bool) -> None:
    cases = [case for case in (models(family) if long else quick(family)) if dtype in case.dtypes]
    results = judged(PLAIN, cases, dtype)
    assert {*results} == {case.id for case in cases} and _statuses(results) == {"pass": len(cases)}, results
    components = {case.component for case in cases}
    wanted = {"transformer", "transformer_vjp", "states", "decode_in_steps"}
    encoder = FAMILIES[family].fixed.get("decoder_layers") == 0
    wanted = {"masked_language_logits", "masked_language_logits_vjp", "states"} if encoder else wanted
    wanted -= {"decode_in_steps"} if FAMILIES[family].encoder_decoder else set()
    assert components == (wanted if dtype in ("float64", "float32") else wanted & {"transformer", "decode_in_steps"})


PADDED = tuple(f"transformer/{name}" for name in (
    "right_padding", "left_padding", "right_padding_columns", "left_padding_columns", "both_padding", "left_padding_alone",
))  # fmt: skip
LOGITS = [case.id for case in quick() if case.component == "transformer"]
# a bug in the logits -> the cases that show it; the others pass
PLANTED = {
    "y = 1.001 * y": LOGITS,
    "y[:, -1, 0] += 0.01": [case for case in LOGITS if case != "transformer/right_padding_columns"],
    "y[:, 3:] *= 1.01": [case for case in LOGITS if case != "transformer/one_token"],
    "y = y if mask_bt.all() else np.roll(y, 1, axis=1)": [*PADDED],
    "y = y if len(y) == 1 else y[:1].repeat(len(y), 0)": ["transformer/batch", *PADDED[:-1]],
    "y[:, 50:] *= 1.01": ["transformer/medium"],
    "y[0, 0, 0] = np.nan": [case for case in LOGITS if case not in PADDED[-3:]],
    "y = y[..., :-1]": LOGITS,
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_mistake_is_seen_where_it_is_and_nowhere_else(tmp_path: Path, fault: str) -> None:
    cases = [case for case in quick() if case.id in LOGITS]
    results = judged(written(tmp_path, fault), cases)
    assert {case for case, result in results.items() if result.status == "differs"} == {*PLANTED[fault]}
    assert {case for case, result in results.items() if result.status == "pass"} == {*LOGITS} - {*PLANTED[fault]}


@pytest.mark.parametrize(("family", "garbage"), every(5, product(("qwen3", "bert"), ("1e30", "np.nan", "np.inf", "0"))))
def test_what_stands_at_padding_is_compared_with_nothing(tmp_path: Path, garbage: str, family: str) -> None:
    """Applies to logits, hidden states and steps."""
    further = f"""
    def hidden(token_bt, mask_bt, segment_bt=None):
        y = own.hidden(token_bt, mask_bt, segment_bt).copy()
        y[:, ~mask_bt] = {garbage}
        return y

    def step(token_bt, mask_bt, cache):
        y, cache = own.step(token_bt, mask_bt, cache)
        y = y.copy()
        y[~mask_bt[:, -token_bt.shape[1]:]] = {garbage}
        return y, cache

    logits.hidden = hidden
    if logits.step:
        logits.step = step
"""
    arguments = "token_bt, mask_bt, segment_bt" if family == "bert" else "token_bt, mask_bt"
    results = judged(written(tmp_path, f"y[~mask_bt] = {garbage}", further=further, arguments=arguments), quick(family))
    assert _statuses(results) == {"pass": len(quick(family))}, _of(results, "differs")


def test_gradients_are_asked_without_the_padding_id_in_the_text() -> None:
    """Libraries compute no gradient for the padding row."""
    for case in models("gemma"):
        ids, real = case.inputs["target"], case.real_bt
        held = bool((ids[np.ones(ids.shape, bool) if real is None else real] == 0).any())
        assert held == (case.component != "transformer_vjp" and ids.shape[1] > 2), case.id


@pytest.mark.parametrize(("arguments", "given", "refused"), [
    ("token_bt", "token_bt, np.ones(token_bt.shape, bool)", PADDED),
    ("token_bt, mask_bt", "", ()),
    ("*given", "*given[:2]", ()),
    ("token_bt, mask_bt, segment_bt, *, more=3", "token_bt, mask_bt", ()),
])  # fmt: skip
def test_a_function_is_given_what_it_takes(tmp_path: Path, arguments: str, given: str, refused: Any) -> None:
    results = judged(written(tmp_path, arguments=arguments, given=given), [case for case in quick() if case.id in LOGITS])
    left = _of(results, "not covered")
    assert {*left} == {*refused} and all("mask" in message for message in left.values())
    assert _statuses(results)["pass"] == len(LOGITS) - len(refused)


def test_what_takes_no_numpy_arrays_is_told_how_it_is_called(tmp_path: Path) -> None:
    top = 'def tensors(token_bt):\n    raise TypeError("must be Tensor, not numpy.ndarray")'
    results = judged(written(tmp_path, top=top, further="return lambda token_bt: tensors(token_bt)"), quick()[:1])
    (message,) = _of(results, "error").values()
    assert message.endswith("lambda token_bt: model(torch.from_numpy(token_bt))")


MODULE = """
    class Module:  # as torch's: a call says nothing of what `forward` takes
        def __call__(self, *given, **named):
            return self.forward(*given, **named)

        def forward(self, token_bt, mask_bt):
            assert token_bt.dtype == np.int64 and mask_bt.dtype == bool
            return own(token_bt, mask_bt)

    logits = Module()
"""


def test_a_module_is_given_what_its_forward_takes(tmp_path: Path) -> None:
    cases = [case for case in quick() if case.id in LOGITS]
    assert _statuses(judged(written(tmp_path, further=MODULE), cases)) == {"pass": len(LOGITS)}


@pytest.mark.parametrize(("arguments", "given", "refused"), [
    ("token_bt", "token_bt, np.ones(token_bt.shape, bool), np.zeros_like(token_bt)",
     {"two_segments", *(name.partition("/")[2] for name in PADDED)}),
    ("token_bt, mask_bt", "token_bt, mask_bt, np.zeros_like(token_bt)", {"two_segments"}),
    ("token_bt, mask_bt, segment_bt", "", set[str]()),
])  # fmt: skip
def test_an_encoder_is_given_its_segments(tmp_path: Path, arguments: str, given: str, refused: set[str]) -> None:
    cases = [case for case in quick("bert") if case.component == "masked_language_logits"]
    results = judged(written(tmp_path, arguments=arguments, given=given), cases)
    assert {case.partition("/")[2] for case in _of(results, "not covered")} == refused
    assert _statuses(results)["pass"] == len(cases) - len(refused)


def test_a_classifier_is_judged_by_its_classes(tmp_path: Path) -> None:
    """The ReLU of DistilBERT's head matters: a port with BERT's tanh differs."""
    new.write("distilbert", tmp_path / "new")
    checkpoint = load(tmp_path / "new")
    config = checkpoint.config.replace(masked_language_head=False, pooler=True, classes=3)
    save(tmp_path / "own", config, new.weights(config, 0), foreign=checkpoint.foreign, dtype="float32")
    assert load(tmp_path / "own").config == config and config.pooler_activation == "relu"
    (tmp_path / "like").mkdir()
    cases = [case for case in cases_of(str(tmp_path / "own"), tmp_path / "like", ["float32"]) if not case.name.startswith(SLOW)]
    assert {case.component for case in cases} == {"classify", "classify_vjp", "states"}
    assert _statuses(judged(PLAIN, cases)) == {"pass": len(cases)}
    found = judged(written(tmp_path, changes="pooler_activation='tanh'"), cases)
    assert {*_of(found, "differs")} == {case.id for case in cases if case.component != "states"}
    last = judged(written(tmp_path, top="positions = 'last'"), cases)
    assert {*_of(last, "pass")} == {case.id for case in cases if case.component == "classify"}


def _not_of_the_last(case: Any) -> bool:
    """Whether a case reads more than the last position's output, or has padding after it."""
    if case.component in ("states", "transformer_vjp", "decode_in_steps"):
        return case.component != "decode_in_steps"
    return case.real_bt is not None and not case.real_bt[:, -1].all()


# a declaration -> how the logits are then returned, and the cases of the whole suite that it excludes
LIMITED = {
    "rows = 1": ("assert len(token_bt) == 1", lambda case: len(case.inputs["target"]) > 1),
    "masks = False": ("assert mask_bt.all()", lambda case: case.real_bt is not None),
    "positions = 'last'": ("y = y[:, -1]", _not_of_the_last),
    "positions = 'last' ": ("y = y[:, -1:]", _not_of_the_last),
    "positions = 'last'  ": ("pass", _not_of_the_last),
}  # fmt: skip


@pytest.mark.parametrize("line", LIMITED)
def test_what_is_declared_is_not_covered_and_the_rest_passes(tmp_path: Path, line: str) -> None:
    """Logits of the last position may be `b v` or `b 1 v`, or those of every position."""
    fault, excluded = LIMITED[line]
    results = judged(written(tmp_path, fault, top=line), quick())
    wanted = {case.id for case in quick() if excluded(case)}
    declared = line.strip().replace("'", '"')
    assert {*_of(results, "not covered")} == wanted and 0 < len(wanted) < len(quick())
    assert all(message.startswith(f"the port declares {declared}") for message in _of(results, "not covered").values())
    assert _statuses(results)["pass"] == len(quick()) - len(wanted), _of(results, "differs")


def test_a_default_that_is_declared_leaves_nothing_out(tmp_path: Path) -> None:
    port = written(tmp_path, top="rows, masks, positions = 0, True, 'all'")
    assert _statuses(judged(port, quick())) == {"pass": len(quick())}
    assert InProcess(port).greeting[1]["limits"] == {}


@pytest.mark.parametrize("fault", ["y = 1.001 * y[:, -1]", "y = y[:, -2]", "y = y[:, 0]"])
def test_a_mistake_in_the_last_position_is_seen(tmp_path: Path, fault: str) -> None:
    cases = [case for case in quick() if case.id in ("transformer/short", "transformer/batch", "transformer/left_padding")]
    assert _statuses(judged(written(tmp_path, fault, top="positions = 'last'"), cases)) == {"differs": 3}


WRONG = {
    "return y, None": ("error", "load.folder."),
    "return None": ("error", "NoneType"),
    "return y.tolist()": ("pass", ""),
    "return y.astype(object)": ("differs", "NumPy"),
    "return y.astype(int)": ("differs", "must be float32; got int64"),
    "raise RuntimeError('no such thing')": ("error", "RuntimeError: no such thing .a_whole_port.py:"),
    "token_bt[...] = 0": ("pass", ""),  # the port owns its arrays
    "mask_bt[...] = False": ("pass", ""),
    "return y.astype(np.float64)": ("pass", ""),
    "return y.astype(np.float16)": ("not covered", "float16 … float32 … `dtypes`"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_whatever_the_function_returns_is_a_row(tmp_path: Path, fault: str) -> None:
    status, message = WRONG[fault]
    (result,) = judged(written(tmp_path, fault), [case for case in quick() if case.id == "transformer/batch"]).values()
    assert re.fullmatch(status, result.status) and re.search(message.replace(" … ", ".*"), result.message), result


LOADS = {
    "raise RuntimeError('no weights')": "RuntimeError: no weights",
    "return own(np.ones((1, 2), int), np.ones((1, 2), bool))": "function … array of float32",
    "raise SystemExit('no weights')": "SystemExit: no weights",
    "load()": "TypeError: load() missing 1 required positional argument: 'folder'",
}  # fmt: skip


@pytest.mark.parametrize("further", LOADS)
def test_a_load_that_fails_is_one_row_and_is_not_tried_again_for_its_folder(tmp_path: Path, further: str) -> None:
    log = tmp_path / "log.txt"
    cases = [case for case in quick() if case.name in ("short", "batch")]
    port = written(tmp_path, further=f"open({str(log)!r}, 'a').write(f'{{folder}}\\n'); {further}")
    results = runner.run(cases, [port], ["float64", "float32"])
    assert len(log.read_text().split()) == len({*log.read_text().split()}) == 2
    first, *others = [result for result in results if result.dtype == "float32"]
    assert first.status == "error" and mentions(first.message, LOADS[further]) and "is called as" not in first.message
    assert others and {(result.status, result.message) for result in others} == {("skipped", UNLOADED)}


def test_a_load_that_says_what_is_not_covered_says_it_of_each_case(tmp_path: Path) -> None:
    further = "from rosettaformer.ports import NotCovered; open(__file__ + '.log', 'a').write('x'); raise NotCovered('no weights')"
    port = written(tmp_path, further=further)
    cases = [case for case in quick() if case.name == "short"]
    said = [(result.status, result.message) for result in judged(port, cases).values()]
    assert said == [("not covered", "no weights")] * len(cases) and len(cases) > 1
    assert Path(f"{port}.log").read_text() == "x"


def test_a_folder_is_loaded_once_and_another_dtypes_is_another(tmp_path: Path) -> None:
    """A port that takes a dtype receives it, and the folder is written in it."""
    log = tmp_path / "log.txt"
    text = f"""
def load(folder, dtype):
    with open({str(log)!r}, "a") as file:
        file.write(f"{{dtype}} {{folder}}\\n")
    return right_load(folder)
"""
    port = tmp_path / "told.py"
    port.write_text(f"import sys\nsys.path.insert(0, {str(PLAIN.parent)!r})\nfrom whole_numpy import load as right_load\n{text}")
    cases = [case for case in quick() if case.component == "transformer"]
    results = runner.run(cases, [str(port)], ["float64", "bfloat16"])
    assert {result.status for result in results} == {"pass"} and len(results) == 2 * len(cases)
    folders = dict.fromkeys(case.folder for case in cases)
    assert log.read_text().split() == [
        word for dtype in ("float64", "bfloat16") for folder in folders for word in (dtype, f"{folder}/{dtype}")
    ]


@pytest.mark.parametrize(("line", "message"), [
    ("rows = 2", "rows must be 0 or 1; got 2"), ("rows = True", "rows must be 0 or 1; got True"),
    ("masks = None", "masks must be True or False; got None"), ("positions = 'first'", "positions must be 'all' or 'last'; got 'first'"),
    ("position = 'last'", "position … positions … rows, masks, dtypes"),
    ("mask = False", "mask … masks"), ("dtype = ('float32',)", "dtype … dtypes"),
])  # fmt: skip
def test_a_declaration_that_is_none_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=naming(message)):
        InProcess(written(tmp_path, top=line))


@pytest.mark.parametrize("line", ["dtype = 'float32'", "row = 1", "position = 3", "mask = None", "dtypes_ = ('float8',)"])
def test_a_variable_of_another_meaning_is_none(tmp_path: Path, line: str) -> None:
    assert InProcess(written(tmp_path, top=line))


# the end of `load` -> the components whose cases then fail, and the message
PARTS = {
    "own_step = own.step; logits.step = lambda token_bt, mask_bt, cache: own_step(token_bt, mask_bt, None)": ("decode_in_steps", ""),
    "logits.step = lambda ids, *rest: own(ids, ids > -1)": ("decode_in_steps", "step … float32"),
    "logits.hidden = lambda token_bt, mask_bt: own.hidden(token_bt, mask_bt)[1:]": ("states", "must have shape"),
    "logits.hidden = lambda token_bt, mask_bt: own.hidden(token_bt, mask_bt)[::-1]": ("states", "allowed"),
}  # fmt: skip


@pytest.mark.parametrize("further", PARTS)
def test_a_mistake_in_steps_or_states_is_seen_there_alone(tmp_path: Path, further: str) -> None:
    component, message = PARTS[further]
    results = judged(written(tmp_path, further=further), quick())
    failed = {case: result.message for case, result in results.items() if result.status in ("differs", "error")}
    assert {*failed} == {case.id for case in quick() if case.component == component}
    assert all(mentions(said, message) for said in failed.values()), failed
    assert _statuses(results)["pass"] == len(results) - len(failed)


HEAD, TABLE, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
# the edit of gradients under the folder's names -> the status and the message
GRADIENTS = {
    "found": ("pass", ""),
    "{f'{name}': 1.01 * array for name, array in found.items()}": ("differs", "parameters."),
    f"{{key: array for key, array in found.items() if key != {NORM!r}}}": ("error", "norm.weight"),
    f"found | {{{NORM!r}: None}}": ("error", "norm.weight"),
    f"found | {{'model.norm.wieght': found[{NORM!r}]}}": ("error", "model.norm.wieght … norm.weight"),
    "{name: array.T for name, array in found.items()}": ("error", "shape"),
    f"found | {{{HEAD!r}: found[{TABLE!r}]}}": ("differs", "parameters.logits.kernel"),
    "[*found.values()]": ("error", "gradients … got list"),
    "{name.removeprefix('model.'): array for name, array in found.items()}": ("pass", ""),
}  # fmt: skip


@pytest.mark.parametrize("change", GRADIENTS)
def test_gradients_are_judged_by_the_names_in_the_folder(tmp_path: Path, change: str) -> None:
    further = f"""
    def gradients(token_bt, mask_bt, segment_bt, cotangent_btv):
        found = own.gradients(token_bt, mask_bt, segment_bt, cotangent_btv)
        return {change}

    logits.gradients = gradients
"""
    status, message = GRADIENTS[change]
    cases = [case for case in quick() if case.id == "transformer_vjp/short"]
    (result,) = judged(written(tmp_path, further=further), cases).values()
    assert (result.status, mentions(result.message, message) or mentions(result.output, message)) == (status, True), result


def test_gradients_of_tied_tensors_are_added_and_one_name_suffices(tmp_path: Path) -> None:
    cases = [case for case in quick("gemma") if case.component == "transformer_vjp"]
    assert _statuses(judged(PLAIN, cases)) == {"pass": 2}
    further = f"""
    def gradients(token_bt, mask_bt, segment_bt, cotangent_btv):
        found = own.gradients(token_bt, mask_bt, segment_bt, cotangent_btv)
        assert {HEAD!r} not in found
        return found | {{{HEAD!r}: found[{TABLE!r}] * np.float32(0.25), {TABLE!r}: found[{TABLE!r}] * np.float32(0.75)}}

    logits.gradients = gradients
"""
    assert _statuses(judged(written(tmp_path, further=further), cases)) == {"pass": 2}


def test_what_a_function_does_not_have_is_not_covered(tmp_path: Path) -> None:
    results = judged(written(tmp_path, further="del logits.step, logits.hidden, logits.gradients"), quick())
    others = {case.id for case in quick() if case.component != "transformer"}
    assert {*_of(results, "not covered")} == others and _statuses(results)["pass"] == len(quick()) - len(others)
    messages = {*_of(results, "not covered").values()}
    assert each_mentions(messages, [f"load(folder) … {name}" for name in ("step", "hidden", "gradients")])


@pytest.mark.parametrize("top", [
    "from numpy import exp as softmax", "def softmax(x, axis=-1): ...", "def rms_norm(scale, x): ...", "def embedding(token_bt): ...",
    "class transformer: ...", "transformer = print",
])  # fmt: skip
def test_a_helper_may_have_the_name_of_a_component(tmp_path: Path, top: str) -> None:
    cases = [case for case in quick() if case.id == "transformer/short"]
    assert _statuses(judged(written(tmp_path, top=top), cases)) == {"pass": 1}


def test_a_function_that_takes_a_case_makes_it_a_port_of_components(tmp_path: Path) -> None:
    cases = [case for case in quick() if case.name == "short"]
    results = judged(written(tmp_path, top="def softmax(case): ..."), cases)
    assert {result.message for result in results.values()} == {undefined(case.component) for case in cases}
