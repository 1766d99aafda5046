"""No test except this one quotes sentences of the product, so that they can improve."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
PRODUCT = ("reference_numpy", "impl_torch", "impl_tf", "impl_jax", "rosettaformer", "bench")
WORDS = 5  # this number of words in a row is a sentence


def runs(text: str) -> Iterator[str]:
    """Yields every `WORDS` lower-case words in a row separated only by spaces."""
    for row in re.findall(r"[a-z]+(?: [a-z]+)+", text):
        words = row.split()
        yield from (" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1))


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yields the lines and texts of single-line literals, except docstrings and code."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(text, str) and "\n" not in text.strip("\n"):
            yield node.lineno, text


def quoted(tests: dict[str, str], product: list[str]) -> list[str]:
    """Returns the places where a test's literal shares `WORDS` words in a row with a text of the product."""
    places: dict[str, set[str]] = {}
    for name, source in tests.items():
        for line, text in literals(source):
            for run in runs(text):
                places.setdefault(run, set()).add(f"{name}:{line}")
    return sorted({place for text in product for run in runs(text) for place in places.get(run, ())})


def test_no_test_quotes_a_sentence_of_the_product() -> None:
    files = [path for path in (HOUSE / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert len(files) > 100
    paths = [path for package in PRODUCT for path in (HOUSE / package).rglob("*")]
    sources = [path for path in paths if path.suffix in (".py", ".toml", ".txt")]
    found = quoted({path.relative_to(HOUSE).as_posix(): path.read_text() for path in files}, [path.read_text() for path in sources])
    assert not found, found


@pytest.mark.parametrize(
    ("assertion", "quotes"),
    [
        ('assert "is corrupt since its checksum differs" in text', True),
        ("with raises(ValueError, match='least 1; got 0'): pass", False),
        ('assert mentions(text, "heads … 0")', False),
        ('"""The file is corrupt:\nsince its checksum differs."""', False),
    ],
)
def test_a_quotation_is_found(assertion: str, quotes: bool) -> None:
    product = ['raise ValueError(f"{file} is corrupt since its checksum differs")', 'f"heads must be at least 1; got {heads}"']
    assert quoted({"test_one.py": assertion}, product) == ["test_one.py:1"] * quotes
