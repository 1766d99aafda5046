"""Writing: all or nothing, to targets that cannot be replaced, and never over a device, a named pipe or a folder."""

import contextlib
import os
import pty
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_models import CONFIG, random_parameters
from invoke import succeeded

from rosettaformer.common.atomic import replacing, require
from rosettaformer.files.checkpoints import canonical
from rosettaformer.judge.report import files


def kind(path: Path) -> int:
    return stat.S_IFMT(path.lstat().st_mode)


def node(path: Path, minor: int) -> Path:
    """Creates a memory device in a scratch folder: 3 is null, 7 is full."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("only root makes device nodes, and not on every file system")
    return path


@contextlib.contextmanager
def read(pipe: Path) -> Iterator[int]:
    """Creates a named pipe and reads it without waiting for a writer."""
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield reader
    os.close(reader)


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_named_pipe_is_written_into(tmp_path: Path, name: str) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    link.symlink_to(pipe)
    with read(pipe) as reader:
        files.write_json(tmp_path / name, [1])
        assert os.read(reader, 100) == b"[\n 1\n]\n"
    assert kind(pipe) == stat.S_IFIFO and kind(link) == stat.S_IFLNK
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_block_that_fails_writes_nothing_into_a_named_pipe(tmp_path: Path) -> None:
    with read(tmp_path / "pipe") as reader:
        with pytest.raises(RuntimeError), replacing(tmp_path / "pipe") as temporary:
            temporary.write_text("half")
            raise RuntimeError
        assert os.read(reader, 10) == b""
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_terminal_is_written_into() -> None:
    master, slave = pty.openpty()
    path = Path(os.ttyname(slave))
    with replacing(path) as temporary:
        temporary.write_text("text")
    assert os.read(master, 10) == b"text" and kind(path) == stat.S_IFCHR


def test_a_device_stays_one(tmp_path: Path) -> None:
    null = node(tmp_path / "null", 3)
    canonical.save(tmp_path / "a.safetensors", CONFIG, random_parameters(CONFIG))
    succeeded("convert", tmp_path / "a.safetensors", null, "--from", "canonical", "--to", "canonical", "--force")
    assert kind(null) == stat.S_IFCHR and sorted(os.listdir(tmp_path)) == ["a.safetensors", "null"]


def test_a_full_device_is_an_error_and_stays(tmp_path: Path) -> None:
    full = node(tmp_path / "full", 7)
    with pytest.raises(OSError, match="No space left"), replacing(full) as temporary:
        temporary.write_text("text")
    assert kind(full) == stat.S_IFCHR


def test_the_standard_output_is_not_replaced(tmp_path: Path) -> None:
    """Replacing the file by renaming would lose the output before and after."""
    script = (
        "import sys; from pathlib import Path; from rosettaformer.judge.report import files\n"
        "print('before'); files.write_json(Path(sys.argv[1]), [1]); print('after')"
    )
    whole = b"before\n[\n 1\n]\nafter\n"
    for name in ("/dev/stdout", "out.txt"):
        with (tmp_path / "out.txt").open("wb") as out:
            subprocess.run([sys.executable, "-c", script, name], stdout=out, cwd=tmp_path, check=True)
        assert (tmp_path / "out.txt").read_bytes() == whole
    assert subprocess.run([sys.executable, "-c", script, "/dev/stdout"], capture_output=True, check=True).stdout == whole


def test_what_cannot_be_written_to_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket names must be short
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "file")
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    before = {path: kind(path) for path in tmp_path.iterdir()}
    for name, message in {
        "folder": "folder",
        "socket": "socket",
        "none/file": "the folder .*none does not exist",
        "file/file": "the folder .*file does not exist",
        "dangling": "the folder .*nowhere does not exist",
    }.items():
        for call in (require, lambda path: files.require([path]), lambda path: replacing(path).__enter__()):
            with pytest.raises(ValueError, match=message):
                call(tmp_path / name)
    assert {path: kind(path) for path in tmp_path.iterdir()} == before
    server.close()


def test_a_file_keeps_its_permissions_and_a_link_to_nothing_is_filled(tmp_path: Path) -> None:
    (tmp_path / "private").touch(0o600)
    (tmp_path / "link").symlink_to("new")
    for name in ("private", "link"):
        with replacing(tmp_path / name) as temporary:
            temporary.write_text(name)
    (tmp_path / "plain").touch()
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode  # the user's default for new files
    assert kind(tmp_path / "link") == stat.S_IFLNK and (tmp_path / "new").read_text() == "link"
