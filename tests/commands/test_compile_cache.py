"""The cache of compiled programs: the commands' settings, precedence of user settings, and cleanup."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rosettaformer.common import compile_cache

NAMES = tuple(compile_cache.variables(Path("x")))


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(compile_cache.PLACE, str(tmp_path))
    return tmp_path


def test_the_settings_hold_while_a_command_runs(place: Path) -> None:
    before = dict(os.environ)
    with compile_cache.kept():
        assert {os.environ[name] for name in NAMES} >= {str(compile_cache.folder() / "torch"), str(compile_cache.folder() / "jax")}
        assert all(place in Path(os.environ[name]).parents for name in NAMES if name.endswith("_DIR"))
    assert dict(os.environ) == before


def test_a_users_own_setting_stands_and_off_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JAX_COMPILATION_CACHE_DIR", "mine"), (compile_cache.PLACE, "off")):
        monkeypatch.setenv(name, value)
        before = dict(os.environ)
        with compile_cache.kept():
            assert os.environ[name] == value and (value == "mine" or dict(os.environ) == before)


def test_the_default_is_the_users_folder_for_caches() -> None:
    found = compile_cache.folder({"XDG_CACHE_HOME": "/caches"})
    assert found is not None
    if sys.platform.startswith("linux"):
        assert found.parent == Path("/caches/rosettaformer")


def test_what_was_used_longest_ago_is_removed_first_and_what_is_in_use_never(place: Path) -> None:
    now = time.time()
    for name, age in (("old", 9e5), ("older", 1e6), ("new", 10)):
        (place / name).write_bytes(bytes(100))
        os.utime(place / name, (now - age, now - age))
    compile_cache.trim(place, 250)
    assert {path.name for path in place.iterdir()} == {"old", "new"}
    compile_cache.trim(place, 0)
    assert {path.name for path in place.iterdir()} == {"new"}


def test_files_are_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    place, looks = compile_cache.folder(), list[Path]()
    assert place is not None
    monkeypatch.setattr(compile_cache, "trim", looks.append)
    for exist, age, seen in ((False, 0, 0), (True, 0, 1), (True, 0, 1), (True, 2 * compile_cache.IN_USE, 2)):
        if exist:
            place.mkdir(exist_ok=True)
        if age:
            os.utime(place / compile_cache.LOOKED, (time.time() - age,) * 2)
        with compile_cache.kept():
            assert looks == [place] * seen


JAX = """
import jax
jax.jit(lambda x: jax.numpy.sin(x) @ x)(jax.numpy.ones((3, 3)))
"""


def test_a_program_of_a_command_is_on_the_disk(place: Path) -> None:
    pytest.importorskip("jax")
    with compile_cache.kept():
        subprocess.run([sys.executable, "-c", JAX], check=True)
    assert any((compile_cache.folder() / "jax").iterdir())
