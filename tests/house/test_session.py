"""The session of docs/porting.md goes from red to green."""

from pathlib import Path

import pytest
from code_blocks import run
from evidence import HOUSE
from session import prepared


@pytest.mark.conformance
def test_the_session_of_porting_goes_from_red_to_green(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    codes = {"new-port": 1, "diagnose": 1, "check": 0}
    commands = prepared((HOUSE / "docs/porting.md").read_text(), tmp_path)
    assert [line.split()[1] for line in commands if line.startswith("rosettaformer")] == [*codes]
    for line in commands:
        run(line, tmp_path, codes.get(line.split()[1], 0))
