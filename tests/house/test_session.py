"""The sessions of docs/porting.md and docs/like.md: what they print is what their commands print. `python tools/session.py` records them
anew."""

from pathlib import Path

import pytest
from session import CONSOLE, LIKE, LONGER, PAGE, masked, replayed, steps


@pytest.mark.conformance
def test_the_session_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = PAGE.read_text()
    commands = [line.split()[:2] for block in CONSOLE.findall(page) for line, _ in steps(block)]
    assert [words[1] for words in commands if words[0] == "rosettaformer"] == ["new-port", "diagnose", "check"]
    assert masked(replayed(page, tmp_path)) == masked(page)


@pytest.mark.conformance
def test_what_is_said_of_mistakes_of_the_field_is_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    page = LIKE.read_text()
    assert masked(replayed(page, tmp_path, LONGER)) == masked(page)


def test_the_session_goes_from_red_to_green() -> None:
    first, *_, last = [shown for block in CONSOLE.findall(PAGE.read_text()) for _, shown in steps(block)]
    assert "FAILED" in first
    assert "PASSED" in last and "FAIL" not in last
