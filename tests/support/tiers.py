"""Parameters of a test in two tiers: some in the first, which `make test` runs, the others in the second."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["every", "exhaustive", "later"]


def later(value: Any) -> Any:
    """The parameter, whose test the second tier runs."""
    if not hasattr(value, "marks"):
        value = pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
    return value._replace(marks=(*value.marks, pytest.mark.second))


def exhaustive(*values: Any) -> Any:
    """The parameters of a test that `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def every(nth: int, values: Iterable[Any]) -> list[Any]:
    """The parameters, of which every nth is in the first tier."""
    return [later(value) if index % nth else value for index, value in enumerate(values)]
