"""Every action of users in a framework is right, or refused with a reason; docs/frameworks.md says which."""

from pathlib import Path

import pytest
from framework_actions import FRAMEWORKS, Action, actions_of
from frameworks import row
from kinds import every

ALL = [action for framework in FRAMEWORKS for action in actions_of(framework) or ()]
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


@pytest.mark.parametrize("action", every(2, [each for each in ALL if each.sample]), ids=lambda each: f"{each.framework}-{each.name}")
def test_a_sample_of_the_actions_has_the_outcome_of_the_table(action: Action) -> None:
    action.check()


@pytest.mark.conformance
@pytest.mark.parametrize("action", ALL, ids=lambda each: f"{each.framework}-{each.name}")
def test_every_action_has_the_outcome_of_the_table(action: Action) -> None:
    action.check()


def test_the_table_has_a_row_for_every_action() -> None:
    if any(actions_of(framework) is None for framework in FRAMEWORKS):
        pytest.skip("a framework is missing")
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| action |")]
    assert sorted(rows) == sorted(row(action) for action in ALL)
