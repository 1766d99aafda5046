"""The process whose forks run commands on large and damaged files."""

from pathlib import Path

import pytest
from forked import Forks

FORKS = Forks()


@pytest.fixture(scope="session")
def command() -> Forks:
    return FORKS


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends the process after the tests of this folder, whose time includes its own."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        FORKS.close()
