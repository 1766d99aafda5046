"""These tests use tiny models, for which threads cost more time than they save."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limits PyTorch to one thread if an earlier test has imported it."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)
