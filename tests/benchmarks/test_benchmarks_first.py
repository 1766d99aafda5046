"""First answers: what is run in which process, and how it is told."""

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from bench import benchmark_report, first, peer_process
from bench.__main__ import bench
from bench.workloads import WORKLOADS, tiny

ROWS = [
    {"name": "impl eager", "compiles": False, "peer": False, "ceiling": False},
    {"name": "impl compiled", "compiles": True, "peer": False, "ceiling": False},
    {"name": "peer compiled", "compiles": True, "peer": True, "ceiling": False},
    {"name": "products", "compiles": True, "peer": False, "ceiling": True},
]


class FakeProcess:
    """Its first answer takes 8 s, and 2 s where a process before it had the same folder for programs."""

    failed, framework = None, "torch"

    def __init__(self, folders: list[str], environment: Mapping[str, str]) -> None:
        self.folders, self.place = folders, environment.get("TORCHINDUCTOR_CACHE_DIR", "")

    def ask(self, method: str, *arguments: Any) -> tuple[str, Any]:
        if method == "rows":
            return "answer", ROWS
        if arguments == (2,):
            return "error", "no such peer"
        warm = self.place in self.folders
        self.folders.append(self.place)
        return "answer", 2.0 if warm else 8.0

    def close(self) -> None:
        """There is no process to end."""


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def process(framework: str, module: str, options: Any, environment: Mapping[str, str] | None = None) -> FakeProcess:
        return FakeProcess(found, environment or {})

    monkeypatch.setattr(first, "PeerProcess", process)
    return found


def test_rows_that_compile_are_asked_twice_with_one_folder(folders: list[str]) -> None:
    task = tiny(WORKLOADS["W1"][0])
    ours, peer = first.run(task, peer_process.Options(("torch",)))
    assert (ours.name, ours.seconds, ours.message) == ("impl compiled", (8.0, 2.0), "")
    assert (peer.name, peer.peer, peer.message) == ("peer compiled", True, "no such peer")
    assert len(folders) == 2
    assert len(set(folders)) == 1
    (section,) = first.markdown([(task, [ours, peer])], "python -m bench --first", {"cores": "2"})
    assert "| impl compiled | 8.0 | 2.0 | 0.25 | " in section
    assert section in benchmark_report.merged("# Performance\n\n## W1: Forward pass\n\nAs it was\n", [section])


@pytest.mark.usefixtures("folders")
def test_the_command_fails_where_a_row_of_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--first", "--workload", "W1", "--framework", "torch", "--size", "tiny", "--json", "-"]
    found = CliRunner().invoke(bench, [*arguments, "--row", "impl compiled"])
    assert (found.exit_code, found.output.count('"seconds": [')) == (0, 1)  # one share of padding
    assert CliRunner().invoke(bench, [*arguments, "--row", "peer"]).exit_code == 0
    monkeypatch.setitem(ROWS[2], "peer", False)
    assert CliRunner().invoke(bench, [*arguments, "--row", "peer"]).exit_code == 1
