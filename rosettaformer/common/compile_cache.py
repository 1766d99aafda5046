"""Keeps the frameworks' compiled programs across processes: a repeated call compiles nothing.

Each framework has its own environment variable, read at start-up, and its own key for programs.
"""

import contextlib
import hashlib
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PLACE = "ROSETTAFORMER_CACHE"  # environment variable: the cache folder, or "off"
LARGEST = 4 << 30  # bytes above which the least recently used files are removed
IN_USE = 3600.0  # seconds that a file stays after its last use; also the time between two checks of the size
LOOKED = "looked"  # file whose time is that of the last check


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Caches the programs that this process and its children compile, unless the user set it up."""
    place = folder()
    if place is None:
        yield
        return
    with _restored():
        os.environ.update({name: value for name, value in variables(place).items() if name not in os.environ})
        with contextlib.suppress(OSError):
            if _due(place):
                trim(place)
        yield


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the cache folder, by default in the user's cache; None if caching is off.

    Machine code is specific to a kind of processor, which the last part of the path identifies.
    """
    place = environment.get(PLACE, "")
    if place.lower() == "off":
        return None
    return (Path(place) if place else _caches(environment) / "rosettaformer") / _processor()


def variables(place: Path) -> dict[str, str]:
    """Returns the frameworks' settings for a folder. Default: temporary for torch, none for XLA."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(place / "torch"),
        "JAX_COMPILATION_CACHE_DIR": str(place / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={place / 'tf'}",
    }


def trim(place: Path, largest: int = LARGEST) -> None:
    """Removes the least recently used files until the rest has at most `largest` bytes."""
    found = [(about.st_mtime if about.st_mtime > about.st_atime else about.st_atime, about.st_size, path) for path, about in _files(place)]
    size, now = sum(size for _, size, _ in found), time.time()
    for used, taken, path in sorted(found):
        if size <= largest or now - used < IN_USE:
            return
        path.unlink(missing_ok=True)
        size -= taken


def _due(place: Path) -> bool:
    """Whether the size has not been checked for a while; if so, records the time."""
    mark = place / LOOKED
    if not place.exists() or (mark.exists() and time.time() - mark.stat().st_mtime < IN_USE):
        return False
    mark.touch()
    return True


def _files(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(place):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):  # another process's temporary file
                yield path, path.stat()


def _caches(environment: Mapping[str, str]) -> Path:
    """Returns the system's cache folder; on Linux that of XDG."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and "LOCALAPPDATA" in environment:
        return Path(environment["LOCALAPPDATA"])
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """Identifies the kind of processor by the features that Linux lists."""
    about, lines = Path("/proc/cpuinfo"), [platform.machine(), platform.processor()]
    if about.exists():
        lines += sorted({line for line in about.read_text().splitlines() if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
