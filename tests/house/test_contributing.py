"""The places that CONTRIBUTING names exist."""

import re
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
TEXT = (HOUSE / "CONTRIBUTING.md").read_text()


def test_every_place_that_it_names_exists() -> None:
    places = {name for name in re.findall(r"`([\w/]+(?:/|\.py))`", TEXT) if "/" in name.rstrip("/") or name.startswith("reference_numpy")}
    assert len(places) > 5
    assert [place for place in places if not (HOUSE / place).exists()] == []
