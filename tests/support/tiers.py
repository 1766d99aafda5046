"""Parameters of a test in tiers: some in the first, which `make test` runs, others in the second, the rest with every proof."""

import re
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["every", "exhaustive", "in_part", "later", "part", "second_of"]


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


def part(text: str) -> tuple[int, int]:
    """The number of a part and how many there are, as 1/3 says it. Raises ValueError on other texts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"a part must be such as 1/3; got {text!r}")
    return int(found[1]), int(found[2])


def in_part(nodeid: str, number: int, parts: int) -> bool:
    """Whether a test is in that part: all parameters of a function are in one, since they share what is made for them."""
    return zlib.crc32(nodeid.partition("[")[0].encode()) % parts == number - 1
