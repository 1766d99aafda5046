"""Where the error of a whole model begins, and its settings and constants: a planted bug is reported, and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id, store
from kinds import conformance, every
from messages import mentions
from whole_models import models

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.catalogue.alteration import on_arguments
from rosettaformer.judge.catalogue.settings import all_settings, readings
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.first_wrong import beginning, shapes
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses, candidates
from rosettaformer.judge.diagnosis.symptoms import only_at
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.patching import patched
from rosettaformer.judge.suite.like_folders import cases_of

Change = Callable[[Case, np.ndarray], np.ndarray]
NAMES = ("short", "one_token", "batch", "medium", "right_padding", "left_padding", "left_padding_alone")


def _cases(family: str, component: str = "transformer", names: Sequence[str] = NAMES, dtype: str = "float32") -> list[Case]:
    component = "masked_language_logits" if family == "bert" and component == "transformer" else component
    return [case.at(dtype) for case in models(family) if case.component == component and case.name in names and dtype in case.dtypes]


def _evidence(cases: Sequence[Case], change: Change) -> Evidence:
    answers = []
    for case in cases:
        ((name, right),) = components.answer(case).items()
        answers.append(case.part({name: change(case, right.copy())}))
    return Evidence(Hypotheses(cases, [], [], store=store()), answers)


def _scaled(where: Callable[[Case, np.ndarray], Any]) -> Change:
    """Doubles the values at these positions `b t`."""
    return lambda case, y: np.where(np.broadcast_to(where(case, _positions(case)), y.shape[-3:-1])[..., None], 2 * y, y)


def _positions(case: Case) -> np.ndarray:
    """Returns the position of each token, counted from the first real one."""
    token_bt = next(case.inputs[side] for side in ("target", "source") if case.inputs.get(side) is not None)
    mask_bt = np.ones(token_bt.shape, bool) if case.real_bt is None else case.real_bt
    return np.maximum(np.cumsum(mask_bt, axis=1) - 1, 0)


def _padded(case: Case) -> bool:
    return case.real_bt is not None


def _left(case: Case) -> bool:
    return case.real_bt is not None and not case.real_bt[:, 0].all()


# a bug in words -> the change of the logits
BEGIN: dict[str, Change] = {
    "": lambda case, y: y,
    "from position 0": _scaled(lambda case, position: True),
    "equal at position 0": _scaled(lambda case, position: position > 0),
    "up to position 2": _scaled(lambda case, position: position >= 3),
    "up to position 49": _scaled(lambda case, position: position >= 50),
    "padding on the left … from position 0": _scaled(lambda case, position: _left(case)),
    "padding on the left … equal at position 0": _scaled(lambda case, position: (position > 0) & _left(case)),
    "padding on the right … from position 0": _scaled(lambda case, position: _padded(case) and not _left(case)),
    "only with padding … from position 0": _scaled(lambda case, position: _padded(case)),
    "only in a batch … up to position 3": _scaled(lambda case, position: (position > 3) & (len(position) > 1)),
}


@pytest.mark.parametrize("words", BEGIN)
@pytest.mark.parametrize("family", ["qwen3", conformance("bert")])
def test_it_is_said_where_an_error_begins(words: str, family: str) -> None:
    found = beginning(_evidence(_cases(family), BEGIN[words]), "float32")
    assert mentions(found, words) and bool(found) == bool(words)


SHAPES: dict[str, Change] = {
    "t b v … b t v": lambda case, y: y.swapaxes(0, 1),
    "b v t … b t v": lambda case, y: y.swapaxes(1, 2),
    'positions = "last"': lambda case, y: y[:, -1] if y.shape[1] > 1 else y,
    "batch": lambda case, y: y[0] if len(y) == 1 else y,
    "100 … 101": lambda case, y: y[..., :-1],
    "(1, 7, 101) … (1, 3, 101)": lambda case, y: y[:, :3],
    "": lambda case, y: y[..., ::-1],
}


@pytest.mark.parametrize("sentence", SHAPES)
def test_of_logits_of_another_shape_that_is_said(sentence: str) -> None:
    found = shapes(_evidence(_cases("qwen3"), SHAPES[sentence]))
    assert mentions(found, sentence) and bool(found) == bool(sentence)


def test_positions_are_counted_from_the_first_real_token() -> None:
    words = "up to position 2"
    evidence = _evidence(_cases("qwen3", names=["left_padding_alone"]), BEGIN[words])
    assert words in beginning(evidence, "float32")
    assert only_at(evidence.probes, evidence.answers, evidence.clean) == "every position but the first 3"


def test_the_dtypes_that_conform_are_named() -> None:
    evidence = _evidence(_cases("qwen3", dtype="bfloat16"), BEGIN["equal at position 0"])
    for right in (["float32"], ["float64", "float32"]):
        assert mentions(beginning(evidence, "bfloat16", right), " … ".join(["bfloat16", *right, "equal at position 0"]))


@pytest.mark.parametrize("component", ["states", "decode_in_steps"])
def test_states_and_steps_have_positions_too(component: str) -> None:
    cases = _cases("qwen3", component, (*NAMES, "steps"))
    assert len(cases) == {"states": 2, "decode_in_steps": 1}[component]
    words = "up to position 2"
    assert words in beginning(_evidence(cases, BEGIN[words]), "float32")


def test_nothing_is_said_of_the_cases_of_components_and_of_an_output_that_has_no_positions() -> None:
    cases = [all_by_id()[f"transformer/{name}"].at("float32") for name in ("llama", "left_padding")]
    assert beginning(_evidence(cases, lambda case, y: 2 * y), "float32") == ""
    evidence = _evidence(_cases("qwen3", names=("short", "left_padding")), lambda case, y: y[:, :, :-1])
    assert beginning(evidence, "float32") == ""


def _named(family: str, replaces: Mapping[str, Any], *names: str, constants: bool = False, dtype: str = "float64") -> set[str]:
    """Returns the ids, or those of constants, that explain the outputs of the reference with these functions replaced."""
    cases = _cases(family, names=names, dtype=dtype)
    with patched(replaces), np.errstate(all="ignore"):
        answers = [components.answer(case) for case in cases]
    defects = [one for one in all_defects().values() if not one.unobservable]
    kinds = [[], []] if constants else [candidates(cases, some) for some in (defects, all_settings().values())]
    evidence = Evidence(Hypotheses(cases, *kinds, store=store()), answers)
    assert evidence.failing
    found = Search(evidence).constants() if constants else Search(evidence).explain(located=False)
    return {one.id for combination in found for one in combination}


READINGS = {one.id: one for one in readings()}
# a setting -> the family and the prompt that reveal it
SHOWN = {
    "rms_norm.epsilon": ("qwen3", "short"), "rms_norm.scale": ("qwen3", "short"), "norm.scale": ("gemma", "short"),
    "rotary_fraction": ("smollm3", "short"), "score_scale": ("gemma2", "short"), "window": ("mistral", "medium"),
    "fused": ("phi3", "short"),
}  # fmt: skip
FIRST = ("rms_norm.epsilon=0.001",)
SAME = {"fused=query value key": {"MHA6"}}  # these also have another name


def test_every_reading_has_a_family_that_shows_it() -> None:
    assert SHOWN.keys() == {id_.partition("=")[0] for id_ in READINGS} and {*FIRST, *SAME} < {*READINGS}


@pytest.mark.parametrize("id_", [id_ if id_ in FIRST else conformance(id_) for id_ in READINGS])
def test_another_reading_of_a_folder_is_found(id_: str) -> None:
    family, name = SHOWN[id_.partition("=")[0]]
    assert _named(family, READINGS[id_].replaces, name) == SAME.get(id_, {id_})


# a constant, with its value -> the family that has it, and the functions it replaces
CONSTANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "rms_norm.epsilon=0.0007": ("qwen3", {"normalization.rms_norm": on_arguments(epsilon=7e-4)}),
    "rotary.base=123000": ("qwen3", {"rotary.rotary_frequencies": on_arguments(base=123e3)}),
    "rotary.base=5000": ("qwen3", {"rotary.rotary_frequencies": on_arguments(base=5e3)}),
    "rotary.factor=0.9": ("qwen3", {"rotary.rotation": on_arguments(position_bt=lambda position: 0.9 * position)}),
    "score_cap=3.5": ("gemma2", {"attention.scaled_dot_product_attention": on_arguments(cap=3.5)}),
    "logit_cap=21": ("gemma2", {"embedding.logits": on_arguments(cap=21.0)}),
    "attention.scale=0.7": (
        "qwen3", {"attention.scaled_dot_product_attention": on_arguments(query_bthk=lambda query: (0.7 * query).astype(query.dtype))}
    ),
}  # fmt: skip


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("id_", CONSTANTS)
def test_another_constant_of_a_model_is_found_with_its_value(id_: str, dtype: str) -> None:
    """In float32 the value has the digits on which the outputs for several prompts agree."""
    family, replaces = CONSTANTS[id_]
    assert id_ in _named(family, replaces, "short", "batch", constants=True, dtype=dtype)


# the variants of ROT1, with the sizes of a Llama that tell each from the others
ROTATIONS = {
    one.title: (one, {"head_dim": 12, "num_attention_heads": 8 if "a group" in one.title else 4})
    for one in all_defects()["ROT1"].hypotheses
}


@pytest.mark.parametrize("title", every(9, ROTATIONS))
def test_kernels_that_are_permuted_wrongly_are_found(tmp_path: Path, title: str) -> None:
    one, sizes = ROTATIONS[title]
    new.write("llama", tmp_path / "model", dtype="float64", settings=sizes)
    (tmp_path / "dtypes").mkdir()
    cases = [case for case in cases_of(str(tmp_path / "model"), tmp_path / "dtypes", ["float64"]) if case.id == "transformer/short"]
    with patched(one.replaces):
        answers = [components.answer(case) for case in cases]
    defects = candidates(cases, [each for each in all_defects().values() if not each.unobservable])
    evidence = Evidence(Hypotheses(cases, defects, store=store()), answers)
    assert evidence.failing
    assert {(each.id, each.title) for combination in Search(evidence).explain(located=False) for each in combination} == {("ROT1", title)}
