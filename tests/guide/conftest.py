"""What the tests of the guide share: what the snippets give, measured once, and the site."""

from pathlib import Path
from unittest import mock

import pytest
from made_up_run import made_up

from rosettaformer.guide import build
from rosettaformer.guide.translation import measurement
from rosettaformer.guide.translation.measurement import Measured


@pytest.fixture(scope="session")
def measured() -> Measured:
    """Everything that the pages show, executed once: a failing snippet fails here, with its name."""
    return measurement.measure()


@pytest.fixture(scope="session")
def guide(tmp_path_factory: pytest.TempPathFactory, measured: Measured) -> Path:
    """The site with the figures of made-up results: the core cases are run by other tests."""
    out = tmp_path_factory.mktemp("guide") / "site"
    with mock.patch.object(build, "measure", lambda *rest: made_up()), mock.patch.object(measurement, "measure", lambda **rest: measured):
        build.build(out, ("float32",))
    return out
