"""The machine's memory."""

import os
from pathlib import Path

# limit and usage of a container, in both versions of Linux's control groups
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
     "total_inactive_file"),
)  # fmt: skip


def physical_memory() -> int:
    """Returns the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Returns the bytes available to new processes on the machine or in the container, if less.

    If neither is known, returns the machine's memory.
    """
    free = _fields("/proc/meminfo").get("MemAvailable", physical_memory() // 1024) * 1024
    return max(0, min(free, *(_left(*group) for group in _GROUPS)))


def _left(limit: str, used: str, statistics: str, cached: str) -> int:
    """Returns the bytes that a control group may still use, counting caches of files as free."""
    try:
        return int(Path(limit).read_text()) - int(Path(used).read_text()) + _fields(statistics).get(cached, 0)
    except (OSError, ValueError):  # no such group, or no limit
        return physical_memory()


def _fields(path: str) -> dict[str, int]:
    """Parses a file with a name and a number per line; empty if there is no such file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in map(str.split, lines) if len(words) > 1 and words[1].isdigit()}
