"""Fixtures of the guide's tests: the results of snippets, measured once, and the site."""

import json
from pathlib import Path
from unittest import mock

import pytest
from in_process import InProcess
from made_up_run import made_up, made_up_values

from rosettaformer.guide import build, defects
from rosettaformer.guide.models import following
from rosettaformer.guide.translation import measurement
from rosettaformer.guide.translation.measurement import Measured
from rosettaformer.guide.translation.snippet_process import Server
from rosettaformer.guide.translation.table import FRAMEWORKS

EXECUTED = [
    "layer-norm", "adam", "gelu", "rms-norm", "attention-window", "attention-mask", "module-mask", "dropout-compiled", "repeated-ids",
    "schedule-decay", "loss-scaling", "integers", "softmax", "top-k", "clip",
]  # fmt: skip


@pytest.fixture(scope="session")
def measured() -> Measured:
    """Returns the results of a few rows' snippets, executed in this process, and made-up values for the other rows: a test of kind
    conformance executes all.
    """
    values, servers = made_up_values(), {framework: Server(framework) for framework in FRAMEWORKS}
    for framework, server in servers.items():
        for row, parts in server.values(EXECUTED).items():
            values[row][framework] = {part: found["value"] for part, found in parts.items()}
    losses = {framework: {"losses": [*range(20)]} for framework in FRAMEWORKS}
    return Measured(values, losses, {framework: server.layout() for framework, server in servers.items()})


@pytest.fixture(scope="session")
def guide(tmp_path_factory: pytest.TempPathFactory, measured: Measured) -> Path:
    """Builds the site with made-up results, forward passes in torch only, and the effects of two known bugs: other tests run
    the core cases, and a test of kind conformance runs the command."""
    out = tmp_path_factory.mktemp("guide") / "site"
    known = {identity: defects.effects(identity) for identity in ("MHA11", "NRM1")}
    with (
        mock.patch.object(build, "measure", lambda *rest: made_up()),
        mock.patch.object(measurement, "measure", lambda **rest: measured),
        mock.patch.object(defects, "measured", lambda identities, cpus: [known.get(one, known["NRM1"]) for one in identities]),
        mock.patch.object(following, "PORTS", ("torch",)),
        mock.patch.object(following, "open_worker", InProcess),
    ):
        build.build(out, ("float32",))
    return out


@pytest.fixture(scope="session")
def index(guide: Path) -> dict[str, set[tuple[str, str]]]:
    """Returns the search's names of each page, with fragments."""
    text = (guide / "assets" / "index.js").read_text(encoding="utf-8").partition("\n")[0].removeprefix("window.INDEX = ").rstrip(";")
    return {path: {(name, fragment) for name, fragment in names} for _, path, _, _, names in json.loads(text)}
