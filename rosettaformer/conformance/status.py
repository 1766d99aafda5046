"""What a port's answer to a question may be, and what may become of a case: every word that a report has for it."""

from enum import StrEnum

__all__ = ["FAILURES", "Kind", "Status"]


class Kind(StrEnum):
    """What a port's process, or a command, answered. All but the first two come with a reason, and are the status of the case."""

    READY = "ready"  # what it says of itself
    OUTPUTS = "outputs"
    ERROR = "error"
    DIFFERS = "differs"  # what it gives cannot be compared, such as a pair instead of an array
    NOT_COVERED = "not covered"
    UNSUPPORTED = "unsupported"
    CRASH = "crash"
    HANG = "hang"
    SKIPPED = "skipped"
    MISSING = "missing"
    NOT_STARTED = "not started"
    NOT_GIVEN = "not given"


class Status(StrEnum):
    """What became of a case with a port."""

    PASS = "pass"
    DIFFERS = "differs"  # values, shape, dtype or NaN
    ERROR = "error"  # an exception, or something changed that must stay as it was
    CRASH = "crash"
    HANG = "hang"
    NOT_COMPARABLE = "not comparable"  # no output shows anything, since zeros would pass too
    EMPTY = "empty"  # outputs without elements, of the right shape and dtype
    NOT_SHOWN = "not shown"  # it passes, but the port's config hides what the case is about
    UNSUPPORTED = "unsupported"  # the framework has no kernel
    NOT_COVERED = "not covered"
    NOT_GIVEN = "not given"  # there is no file of outputs
    MISSING = "missing"  # the framework is not installed, or broken
    NOT_STARTED = "not started"  # what is named is no port, so that no case could be run on it
    LEFT_OVER = "left over"  # processes outlived the port
    SKIPPED = "skipped"  # the port had crashed too often, or has no such device
    NOT_RUN = "not run"  # the run had been stopped at a failure
    DEVIATION = "deviation"  # fails as declared
    STALE = "stale"  # declared, but fails no longer
    NEW = "new"  # fails, but is newer than what was asked for


FAILURES = (Status.DIFFERS, Status.ERROR, Status.CRASH, Status.HANG)
