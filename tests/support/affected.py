"""Selects the tests that the changes of the last day can affect, nearest to a change first."""

import subprocess
import zlib
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from kinds import FOLDERS

_PORTS = "backends judge training artefacts inference diagnosis comparison checkpoints guide proposals commands benchmarks house"
_EVERY = " ".join(FOLDERS)
# source -> the test folders that its changes can affect, nearest first. The longest source that is a prefix of a path counts.
# tests/house/test_affected.py compares this with the imports. Code that runs in other processes or is found by name is listed manually.
AFFECTS = {
    "bench": "benchmarks commands judge backends house",
    "reference_numpy": "reference backends judge diagnosis impl_torch impl_tf impl_jax training inference checkpoints artefacts "
    "comparison proposals guide commands benchmarks house",
    "impl_torch": f"impl_torch {_PORTS}",
    "impl_tf": f"impl_tf {_PORTS}",
    "impl_jax": f"impl_jax {_PORTS}",
    "rosettaformer": f"commands judge {_EVERY}",
    "rosettaformer/commands": "commands judge diagnosis comparison inference training proposals artefacts guide benchmarks checkpoints "
    "house backends",
    "rosettaformer/common/meshes": "training inference comparison checkpoints",
    "rosettaformer/common/modules": "comparison judge artefacts proposals impl_jax impl_torch diagnosis commands inference guide "
    "checkpoints benchmarks house",
    "rosettaformer/common/pages": "guide comparison inference judge checkpoints benchmarks",
    "rosettaformer/common/processes": f"judge comparison training {_EVERY}",
    "rosettaformer/comparison": "comparison checkpoints judge commands house benchmarks diagnosis",
    "rosettaformer/comparison/one_model": "comparison inference checkpoints commands",
    "rosettaformer/comparison/timing": "comparison benchmarks inference checkpoints judge commands house diagnosis",
    "rosettaformer/files/artefacts": "artefacts inference commands comparison judge backends guide house proposals benchmarks diagnosis "
    "training checkpoints impl_jax impl_torch",
    "rosettaformer/files/checkpoints": "checkpoints inference judge comparison artefacts commands backends guide training diagnosis "
    "house proposals benchmarks impl_torch impl_tf impl_jax reference",
    "rosettaformer/guide": "guide commands diagnosis",
    "rosettaformer/judge": "judge diagnosis backends proposals guide artefacts commands comparison training inference checkpoints "
    "benchmarks house impl_torch impl_tf impl_jax reference",
    "rosettaformer/judge/proposals": "proposals judge commands guide",
    "rosettaformer/use/inference": "inference checkpoints comparison commands benchmarks diagnosis house judge artefacts backends guide "
    "proposals training",
    "rosettaformer/use/scaling": "training commands impl_torch",
    "rosettaformer/use/training": "training inference commands checkpoints backends comparison artefacts",
    "tests/backends": "backends impl_torch impl_tf impl_jax",
    "tests/compared": "comparison",
    "tests/data": "judge reference checkpoints",
    "tests/ports": "judge diagnosis proposals artefacts comparison",
    "tests/proposed": "proposals",
    "tests/support": _EVERY,
    "tools": "house diagnosis backends guide judge training",
    "constraints.txt": _EVERY,
    "pyproject.toml": _EVERY,
}


def row(path: str) -> tuple[str, ...]:
    """Returns the test folders that a change of the file can affect, nearest first."""
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if source := AFFECTS.get("/".join(parts[:end])):
            return tuple(source.split())
    if parts[0] != "tests":
        return ()
    return (parts[1],) if parts[1] in FOLDERS else tuple(FOLDERS)


def changed(root: Path) -> tuple[str, set[str]]:
    """Returns the day of the last commit and the files changed in the day before it; every source if there is no history."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        last = datetime.fromisoformat(git("log", "-1", "--format=%cI"))
    except (OSError, subprocess.CalledProcessError):
        return "", {*AFFECTS}
    files = git("log", f"--since={(last - timedelta(days=1)).isoformat()}", "--name-only", "--format=")
    return last.date().isoformat(), {*files.splitlines()} - {""}


def affected(items: list[pytest.Item], day: str, files: Collection[str]) -> list[pytest.Item]:
    """Returns the tests that changes of the files can affect. Test files that are equally near are shuffled every day."""
    ranks: dict[str, int] = {}
    for path in files:
        for rank, folder in enumerate(row(path)):
            ranks[folder] = min(rank, ranks.get(folder, rank))

    def order(item: pytest.Item) -> tuple[bool, int, int]:
        file = item.nodeid.partition("::")[0]
        return file not in files, ranks[file.split("/")[1]], zlib.crc32(f"{day} {file}".encode())

    return sorted((item for item in items if item.nodeid.split("/")[1] in ranks), key=order)
