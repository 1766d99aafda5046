"""The resident memory of this process, as the system counts it."""

import ctypes
import math
import time
from pathlib import Path

from .rows import Call

TRIM_THRESHOLD = -1  # as malloc.h numbers it
SETTLED = 0.1  # seconds for threads to free what a call has left them


def resident(call: Call) -> float:
    """Measures the process's resident memory. glibc would keep freed memory, and a call would live on what another left: it is given back
    first.

    Returns the MiB at the peak of the call, beyond what was held before it. Raises OSError if the system does not tell.
    """
    system = ctypes.CDLL(None)
    if hasattr(system, "mallopt"):
        system.mallopt(TRIM_THRESHOLD, 0)
        call()  # at its end threads trim their own heaps
        time.sleep(SETTLED)
        system.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    call()
    return max(0.0, status("VmHWM") - before)


def status(name: str) -> float:
    """Returns the MiB that the system counts under that name, such as VmRSS; NaN if it does not."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return math.nan
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
