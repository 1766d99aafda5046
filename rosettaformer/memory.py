"""The size of the machine's memory."""

import os


def physical_memory() -> int:
    """Returns the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
