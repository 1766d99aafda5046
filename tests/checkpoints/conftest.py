"""The process in whose forks commands run on large and damaged files."""

from pathlib import Path

import pytest
from forked import Forks

FORKS = Forks()


@pytest.fixture(scope="session")
def command() -> Forks:
    return FORKS


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """The process ends with the tests of this folder, whose seconds its own are."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        FORKS.close()
