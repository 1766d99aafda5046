"""Resident memory of this process."""

import ctypes
import math
import time
from pathlib import Path

from .rows import Call

TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of malloc.h
SETTLED = 0.1  # seconds for threads to free the memory of a call


def resident(call: Call) -> float:
    """Returns the peak MiB of a call above the memory before it.

    Returns glibc's free memory to the system first, so that the call cannot reuse it. Raises
    OSError if the system does not report memory.
    """
    system = ctypes.CDLL(None)
    if hasattr(system, "mallopt"):
        system.mallopt(TRIM_THRESHOLD, 0)
        call()  # at its end, threads trim their heaps
        time.sleep(SETTLED)
        system.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    call()
    return max(0.0, status("VmHWM") - before)


def status(name: str) -> float:
    """Returns an entry of /proc/self/status in MiB, such as VmRSS; NaN if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return math.nan
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
