"""A port that reads something else than its prompts is named, and it is said which token it goes wrong at."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from expectations import store
from kinds import conformance
from whole_models import models

from reference_numpy import TransformerConfig
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Alteration, all_defects
from rosettaformer.judge.catalogue.alteration import on_result
from rosettaformer.judge.diagnosis import altered, words
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.first_wrong import all_first_wrong, beginning
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.diagnosis.hypotheses.readings import readings

NAMES = ("short", "batch", "right_padding", "left_padding", "two_segments")
LOGITS = ("transformer", "masked_language_logits")


def planted(
    family: str, defects: Sequence[Alteration] = (), names: Sequence[str] = NAMES, component: str = "",
    altering: Callable[[TransformerConfig], dict[str, Callable[..., Any]]] | None = None, **how: Any,
) -> Evidence:  # fmt: skip
    """Returns the float32 outputs of the altered reference as evidence. altering: returns the functions that it replaces."""
    meant = (component,) if component else LOGITS
    cases = [case.at("float32") for case in models(family) if case.component in meant and case.name in names]
    how |= {"replaces": altering(cases[0].config)} if altering else {}
    one = Alteration(id="", title="", component="transformer", fix={}, **{"replaces": {}} | how)
    answers = [{name: value.astype(np.float32) for name, value in (altered.answer((one,), case) or {}).items()} for case in cases]
    return Evidence(Hypotheses(cases, defects, store=store()), answers)


def _with(name: str, change: Callable[..., Any], *given: str) -> Callable[[Case], Case]:
    """Returns a reading with another input, a function of the given ones."""
    return lambda case: dataclasses.replace(case, inputs={**case.inputs, name: change(*(case.inputs.get(one) for one in given))})


def _ids(side: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Case]:
    return _with(side, change, side)


MASK, SEGMENT = "source_mask_bs", "segment_bs"
READ: dict[str, tuple[str, Callable[[Case], Case]]] = {
    "ids=clamped to 89": ("llama", _ids("target", lambda ids: np.minimum(ids, 89))),
    "ids=0 as 1": ("llama", _ids("target", lambda ids: np.where(ids == 0, 1, ids))),
    "ids=5 as 0": ("bert", _ids("source", lambda ids: np.where(ids == 5, 0, ids))),
    "mask=ids other than 0": ("bert", _with(MASK, lambda ids: ids != 0, "source")),
    "mask=reversed": ("llama", _with("target_mask_bt", lambda mask: None if mask is None else mask[:, ::-1], "target_mask_bt")),
    "segments=mask": (
        "bert",
        lambda case: dataclasses.replace(
            case,
            inputs={
                **case.inputs,
                MASK: np.zeros(case.inputs["source"].shape, bool) if case.inputs.get(SEGMENT) is None else case.inputs[SEGMENT] != 0,
                SEGMENT: np.ones(case.inputs["source"].shape, int) if case.inputs.get(MASK) is None else case.inputs[MASK].astype(int),
            },
        ),
    ),
}


@pytest.mark.parametrize("id_", [id_ if id_ in ("ids=clamped to 89", "mask=ids other than 0") else conformance(id_) for id_ in READ])
def test_another_reading_of_the_prompts_is_named(id_: str) -> None:
    family, reads = READ[id_]
    found = Search(planted(family, reads=reads)).explain(located=False)
    assert [[one.id for one in combination] for combination in found] == [[id_]]


def test_a_table_of_positions_that_ends_is_named_with_its_end() -> None:
    end = {"rotary.rotation": lambda original, config, kind, position_bt, dtype: original(config, kind, np.minimum(position_bt, 5), dtype)}
    found = Search(planted("llama", replaces=end)).explain(located=False)
    assert "rotation=clamped to 5" in {one.id for combination in found for one in combination}


def test_the_token_at_which_rows_go_wrong_is_said() -> None:
    last = planted("llama", reads=_ids("target", lambda ids: np.minimum(ids, 99)))
    assert beginning(last, "float32") == words.of_id(100)
    several = planted("llama", reads=_ids("target", lambda ids: np.minimum(ids, 89)))
    assert beginning(several, "float32").startswith(words.from_id(0)[:20])
    everywhere = planted("llama", replaces={"embedding.logits": on_result(lambda y: 2 * y)})
    assert beginning(everywhere, "float32") not in ("", words.of_id(0))


def test_nothing_is_read_into_a_correct_port() -> None:
    evidence = planted("llama")
    assert not evidence.failing
    assert not [one for one in readings(evidence.probes, all_first_wrong(evidence)) if one.id.startswith(("ids=", "positions="))]


def test_padding_that_leaks_refutes_only_what_is_right_without_padding() -> None:
    """A mask that is added as 0 and 1 shows the tokens under padding, whose positions are a port's own."""
    defects = [all_defects()["ATT25"]]
    added = planted("qwen3", defects, replaces=defects[0].replaces)
    other = {index for index, probe in enumerate(added.probes) if "padding" in probe.name}
    for index in other:
        added.answers[index]["output"] = added.answers[index]["output"] * np.float32(1.01)
    again = Evidence(added.hypotheses, added.answers)
    assert again.explains((defects[0],)) and not again.explains(())
    wrong = [{name: value * np.float32(1.01) for name, value in answer.items()} for answer in added.answers]
    assert not Evidence(added.hypotheses, wrong).explains((defects[0],))
