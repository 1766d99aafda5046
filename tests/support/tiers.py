"""Parameters of a test in tiers: some in the first, which `make test` runs, others in the second, the rest with every proof."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["every", "exhaustive", "later", "second_of"]


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


def second_of(values: Iterable[str], chosen: Iterable[str]) -> list[Any]:
    """The parameters of a costly test, of which those chosen are in the second tier, and `make test-all` runs the others."""
    values, chosen = [*values], {*chosen}
    if unknown := chosen - {*values}:
        raise ValueError(f"what is chosen must be of {', '.join(values)}; got {', '.join(sorted(unknown))}")
    return [later(value) if value in chosen else exhaustive(value) for value in values]
