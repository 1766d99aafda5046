"""What the tests of the guide share: what the snippets give, measured once, and the site."""

import json
from pathlib import Path
from unittest import mock

import pytest
from made_up_run import made_up

from rosettaformer.guide import build, defects
from rosettaformer.guide.models import following
from rosettaformer.guide.translation import measurement
from rosettaformer.guide.translation.measurement import Measured


@pytest.fixture(scope="session")
def measured() -> Measured:
    """Everything that the pages show, executed once: a failing snippet fails here, with its name."""
    return measurement.measure()


@pytest.fixture(scope="session")
def guide(tmp_path_factory: pytest.TempPathFactory, measured: Measured) -> Path:
    """The site with the figures of made-up results, of forward passes in torch alone, and with the effects of two defects: the core cases
    are run by other tests, and the command in a test of kind conformance."""
    out = tmp_path_factory.mktemp("guide") / "site"
    known = {identity: defects.effects(identity) for identity in ("MHA11", "NRM1")}
    with (
        mock.patch.object(build, "measure", lambda *rest: made_up()),
        mock.patch.object(measurement, "measure", lambda **rest: measured),
        mock.patch.object(defects, "measured", lambda identities, cpus: [known.get(one, known["NRM1"]) for one in identities]),
        mock.patch.object(following, "PORTS", ("torch",)),
    ):
        build.build(out, ("float32",))
    return out


@pytest.fixture(scope="session")
def index(guide: Path) -> dict[str, set[tuple[str, str]]]:
    """What the search finds each page by: its names with their fragments."""
    text = (guide / "assets" / "index.js").read_text(encoding="utf-8").partition("\n")[0].removeprefix("window.INDEX = ").rstrip(";")
    return {path: {(name, fragment) for name, fragment in names} for _, path, _, _, names in json.loads(text)}
