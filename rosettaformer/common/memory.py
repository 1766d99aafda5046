"""The size of the machine's memory."""

import os
from pathlib import Path

# what limits a container and what it uses, in the two versions of Linux's control groups
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
     "total_inactive_file"),
)  # fmt: skip


def physical_memory() -> int:
    """Returns the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Returns the bytes of memory that new processes can have: of the machine, or of the container
    if that has less; where neither says it, the machine's memory.
    """
    free = _fields("/proc/meminfo").get("MemAvailable", physical_memory() // 1024) * 1024
    return max(0, min(free, *(_left(*group) for group in _GROUPS)))


def _left(limit: str, used: str, statistics: str, cached: str) -> int:
    """Returns the bytes that a control group may still use, with those that hold what files hold
    too.
    """
    try:
        return int(Path(limit).read_text()) - int(Path(used).read_text()) + _fields(statistics).get(cached, 0)
    except (OSError, ValueError):  # there is none, or it has no limit
        return physical_memory()


def _fields(path: str) -> dict[str, int]:
    """Returns the numbers of a file with a name and a number in each line; empty if there is no
    such file.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in map(str.split, lines) if len(words) > 1 and words[1].isdigit()}
