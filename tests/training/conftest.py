"""The run that tests change."""

import shutil
from pathlib import Path

import pytest
from training_runs import fields, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "--steps", 4, *fields("--loop", save_every=2, sample=1))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Returns a copy of a run of four steps."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
