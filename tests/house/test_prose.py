"""The prose linter finds the fault of each of its rules once, in every kind of place."""

from pathlib import Path

import pytest
from prose import RULES, faults

FAULTY = {
    "starts-with-of": "Of the weights. Of course.",
    "starts-with-what": "What a port says. What is it?",
    "said-of": "It is said of norms.",
    "beside": "A file beside it.",
    "anew": "It is read anew.",
    "by-hand": "Written by hand.",
    "in-turn": "Each in turn.",
    "such-a-one": "There is such a one.",
    "lies-in": "The file lies in a folder.",
    "british": "The vector is normalised.",
}
PLACES = {
    "a.md": "# Title\n\n{}\n\n    Of code.\n\n```\nOf code.\n```\n",
    "b.md": "- {}\n",
    "docstring.py": 'def name() -> None:\n    """{}"""\n',
    "comment.py": "# {}\nname = 1\n",
    "message.py": 'raise ValueError(f"{}")\n',
    "text.toml": 'title = "{}"\n',
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_its_fault_once(rule: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PLACES[name].format(FAULTY[rule]))
    assert [found for found, _, _ in faults(path)] == [rule]


def test_lines_and_cells_have_a_width(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"{'x' * 101}\n\n    {'x' * 101}\n\n| {'x' * 121} | [y]({'z' * 121}) |\n[z]: {'z' * 121}\n")
    assert [(rule, line) for rule, line, _ in faults(path)] == [("wide-line", 1), ("wide-cell", 5)]
