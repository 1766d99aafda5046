"""`rosettaformer explain` as a user runs it."""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from expectations import suite
from kinds import every
from messages import mentions

from rosettaformer import cli
from rosettaformer.commands.explain import SHOWN, explain
from rosettaformer.guide.planted import planted
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Defect, all_defects, injected
from rosettaformer.judge.catalogue.alteration import CONFIGURED, bound
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis import words
from rosettaformer.judge.diagnosis.altered import FAILURES
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.components import COMPONENTS, FORWARD
from rosettaformer.judge.expectation.patching import patched

DEFECTS = all_defects()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(explain, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)


def test_without_an_id_it_lists_every_defect() -> None:
    rows = json.loads(run("--json").output)["defects"]
    assert sorted((row["id"], row["component"], row["title"]) for row in rows) == sorted(
        (defect.id, defect.component, defect.title) for defect in DEFECTS.values()
    )
    components = [row["component"] for row in rows]
    assert components == sorted(components, key=list(COMPONENTS).index)
    lines = run().output.splitlines()
    for defect in DEFECTS.values():
        assert any(defect.id in line.split() and defect.title in line for line in lines), defect.id
    assert "(unobservable)" in next(line for line in lines if "PE12" in line.split())


# test_defects measures the effect of every known bug; a page measures it again.
EVERY_SIXTH = [pytest.param(id_, marks=pytest.mark.conformance if n % 72 else ()) for n, id_ in enumerate(DEFECTS) if n % 6 == 0]


@pytest.mark.parametrize("id_", EVERY_SIXTH)
def test_the_page_says_what_it_is_how_it_shows_and_how_to_fix_it(id_: str) -> None:
    defect, page = DEFECTS[id_], run(id_).output
    texts = (defect.title, defect.what, *defect.variants, defect.shows, *defect.fix.values(), defect.elsewhere, defect.evidence)
    for text in (*texts, defect.unobservable):
        assert mentions(page, text)
    assert ("divided by the tolerance" in page) == (not defect.unobservable)
    lines = [line for edit in planted().get(id_, ()) for line in (edit.wrong + edit.right).splitlines()]
    assert {*lines} <= {line[4:] for line in page.splitlines()}


@pytest.mark.parametrize("id_", every(4, ["NRM4", "ATT10", "PE8", "CAU2"]))
def test_the_error_is_measured_the_worst_case_first(id_: str) -> None:
    page = json.loads(run(id_, "--json").output)
    claiming = [case.id for case in suite() if id_ in case.catches]
    assert page["claimed"] == len(claiming) * len(DEFECTS[id_].dtypes)
    assert 1 <= len(page["effects"]) == min(SHOWN, page["claimed"])
    times = [math.inf if one["times"] is None else one["times"] for one in page["effects"]]
    assert times == sorted(times, reverse=True)
    assert min(times) >= 10
    for one in page["effects"]:
        assert one["case"] in claiming
        assert one["dtype"] in DEFECTS[id_].dtypes
        assert bool(one["message"]) == (one["times"] is None)
        assert one["times"] is None or one["error"] > one["allowed"]


def test_the_measured_size_is_that_of_the_alteration_in_any_case_of_an_id_s_letters() -> None:
    (one,) = json.loads(run("DRP4", "--json").output)["effects"][:1]
    case = next(case for case in suite() if case.id == one["case"])
    rate, kept = case.config.dropout_rate, case.inputs["x"][case.inputs["keep"] | ~case.inputs["x"].astype(bool)]
    assert one["error"] == pytest.approx(abs(kept).max() * (1 / (1 - rate) - 1), rel=1e-5)
    assert run("pe12").output == run("PE12").output


@pytest.mark.parametrize(("wrong", "hint"), [("ATT99", "nearest: ATT9"), ("NMR4", "nearest: NRM4"), ("?", "rosettaformer list defects")])
def test_an_unknown_id_is_one_message_that_names_the_nearest(wrong: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["explain", wrong])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert mentions(error, f"Error: ID … {wrong!r} … {hint}")
    assert error.count("\n") == 1


def _seen(one: Defect, case: Case) -> set[str]:
    """Returns what an alteration changes in the functions it replaces: argument names and `result`."""
    outside: list[tuple[dict[str, Any], Any]] = []
    inside: list[tuple[dict[str, Any], Any]] = []

    def recorded(calls: list[tuple[dict[str, Any], Any]], original: Callable, *args: Any, **options: Any) -> Any:
        given, result = bound(original, *args, **options), original(*args, **options)
        calls.append((given, result))
        return result

    with contextlib.ExitStack() as stack, np.errstate(all="ignore"):
        for calls, middle in ((inside, injected(one)), (outside, contextlib.nullcontext())):
            stack.enter_context(patched(dict.fromkeys(one.replaces, functools.partial(recorded, calls))))
            stack.enter_context(middle)
        components.answer(case)
    if len(outside) != len(inside):
        return {"calls"}
    changed = {
        name for (given, _), (taken, _) in zip(outside, inside, strict=True) for name in given if not _equal(given[name], taken[name])
    }
    return changed | ({"result"} if not all(_equal(one[1], other[1]) for one, other in zip(outside, inside, strict=True)) else set())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one is other or one == other


def test_what_only_reads_parameters_otherwise_says_that_they_may_be_loaded_so() -> None:
    """The weights may be loaded that way; if the code is correct, changing it is no fix."""
    smallest: dict[str, list[Case]] = {}
    forward = (case for case in suite() if case.component in FORWARD and case.parameters)
    for case in sorted(forward, key=lambda case: sum(np.size(value) for value in case.parameters.values())):
        smallest.setdefault(case.component, []).append(case.at("float64"))
    silent = []
    every = [each for one in (*DEFECTS.values(), *all_settings().values()) for each in one.hypotheses]
    for one in every:
        if one.elsewhere or "load" in one.fix["torch"]:
            continue
        changed = set()
        for case in smallest.get(one.component, [])[:2]:
            with contextlib.suppress(*FAILURES):
                changed |= _seen(one, case)
        silent += [one.name] if changed == {"parameters"} else []
    assert silent == []


def test_where_else_a_mistake_may_be_is_said_below_its_fix_and_on_its_page() -> None:
    (text,), page = words.fixes((DEFECTS["SEG2"],), "torch"), run("SEG2", "--json").output
    assert DEFECTS["SEG2"].elsewhere in text
    assert json.loads(page)["elsewhere"] == DEFECTS["SEG2"].elsewhere
    (text,) = words.fixes((DEFECTS["ATT3"],), "torch")
    assert DEFECTS["ATT3"].elsewhere == "" and len(text.splitlines()) == 1


@pytest.mark.parametrize("field", ["epsilon", "activation"])
def test_a_choice_of_the_config_may_be_declared_otherwise(field: str) -> None:
    """If the code is correct and `config` is not, the code needs no change."""
    settings = [one for id_, one in all_settings().items() if id_.startswith(f"{field}=") and "root" not in id_ and "float32" not in id_]
    assert settings
    assert {one.elsewhere for one in settings} == {CONFIGURED}
