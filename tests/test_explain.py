"""`rosettaformer explain`, as a user calls it."""

import json
import math

import pytest
from click.testing import CliRunner, Result

from rosettaformer import cli
from rosettaformer.commands.explain import SHOWN, explain
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.defects import all_defects
from rosettaformer.conformance.reference.components import COMPONENTS

DEFECTS = all_defects()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(explain, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)


def test_without_an_id_it_lists_every_defect() -> None:
    rows = json.loads(run("--json").output)
    assert sorted((row["id"], row["component"], row["title"]) for row in rows) == sorted(
        (defect.id, defect.component, defect.title) for defect in DEFECTS.values()
    )
    components = [row["component"] for row in rows]
    assert components == sorted(components, key=list(COMPONENTS).index)
    lines = run().output.splitlines()
    for defect in DEFECTS.values():
        assert any(defect.id in line.split() and defect.title in line for line in lines), defect.id
    assert "(unobservable)" in next(line for line in lines if "PE12" in line.split())


# Every defect's effect is measured by test_defects; a page measures it anew.
EVERY_SIXTH = [pytest.param(id_, marks=pytest.mark.exhaustive if n % 24 else ()) for n, id_ in enumerate(DEFECTS) if n % 6 == 0]


@pytest.mark.parametrize("id_", EVERY_SIXTH)
def test_the_page_says_what_it_is_how_it_shows_and_how_to_fix_it(id_: str) -> None:
    defect, page = DEFECTS[id_], run(id_).output
    for text in (defect.title, defect.what, *defect.variants, defect.shows, *defect.fix.values(), defect.evidence, defect.unobservable):
        assert text in page
    assert ("how many times the tolerance" in page) == (not defect.unobservable)


@pytest.mark.parametrize("id_", ["NRM4", "ATT10", "PE8", "CAU2"])
def test_the_error_is_measured_the_worst_case_first(id_: str) -> None:
    page = json.loads(run(id_, "--json").output)
    claiming = [case.id for case in all_cases() if id_ in case.catches]
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


def test_the_measured_size_is_that_of_the_alteration() -> None:
    (one,) = json.loads(run("DRP4", "--json").output)["effects"][:1]
    case = next(case for case in all_cases() if case.id == one["case"])
    rate, kept = case.config.dropout_rate, case.inputs["x"][case.inputs["keep"] | ~case.inputs["x"].astype(bool)]
    assert one["error"] == pytest.approx(abs(kept).max() * (1 / (1 - rate) - 1), rel=1e-5)


def test_an_id_is_found_in_any_case_of_its_letters() -> None:
    assert run("nrm4").output == run("NRM4").output


@pytest.mark.parametrize(
    ("wrong", "hint"), [("ATT99", "nearest: ATT9"), ("NMR4", "nearest: NRM4"), ("?", "rosettaformer list defects shows them")]
)
def test_an_unknown_id_is_one_message_that_names_the_nearest(wrong: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["explain", wrong])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"Error: ID must be one of the catalogue's; got {wrong!r} ({hint}")
    assert error.count("\n") == 1
