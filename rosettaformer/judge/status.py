"""The kinds of answers that a port may give, and the statuses of a case in reports."""

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a port's answer; all but the first two carry a reason and become a status."""

    READY = "ready"  # its description of itself
    OUTPUTS = "outputs"
    ERROR = "error"
    DIFFERS = "differs"  # an answer that cannot be compared, such as a pair instead of an array
    NOT_COVERED = "not covered"
    NOT_SHOWN = "not shown"
    UNSUPPORTED = "unsupported"
    CRASH = "crash"
    HANG = "hang"
    SKIPPED = "skipped"
    MISSING = "missing"
    NOT_STARTED = "not started"
    NOT_GIVEN = "not given"


LEFT = (Kind.NOT_COVERED, Kind.NOT_SHOWN, Kind.UNSUPPORTED, Kind.SKIPPED)  # neither outputs nor failures


class Status(StrEnum):
    """The status of a case on a port."""

    PASS = "pass"
    DIFFERS = "differs"  # in values, shape, dtype or NaN
    ERROR = "error"  # an exception, or a change to something that must not change
    CRASH = "crash"
    HANG = "hang"
    NOT_COMPARABLE = "not comparable"  # zeros would pass, too
    EMPTY = "empty"  # outputs without elements, of the right shape and dtype
    NOT_SHOWN = "not shown"  # vacuous: it cannot fail under the port's config, or does not fit an exported file's sizes
    TOLD = "told"  # how an exported file reads an id out of range that it need not refuse
    UNSUPPORTED = "unsupported"  # the framework has no kernel
    NOT_COVERED = "not covered"
    NOT_GIVEN = "not given"  # there is no file of outputs
    TOO_LARGE = "too large"  # the case does not fit into memory
    MISSING = "missing"  # the framework is not installed, or broken
    NOT_STARTED = "not started"  # no such port, or it could not be started
    LEFT_OVER = "left over"  # processes outlived the port
    SKIPPED = "skipped"  # the port crashed too often, could not load its model, or lacks the device
    NOT_RUN = "not run"  # the run stopped at a failure
    DEVIATION = "deviation"  # fails, as declared
    STALE = "stale"  # declared, but does not fail


# reasons of SKIPPED: no case was answered, and asking again gives the same error
UNLOADED, UNSTARTED = "load(folder) failed before", "the command ended before its first answer, each time in the same way"
UNANSWERED = (Status.ERROR, Status.CRASH, Status.HANG)
FAILURES = (Status.DIFFERS, *UNANSWERED)
# reasons of NOT_COVERED
ON_ONE_DEVICE = "the port runs on one device only; `on_mesh(case)` in its file or `load(folder, mesh)` lets it run on a mesh"


def undefined(component: str) -> str:
    """Returns the reason for skipping a component that the port does not define."""
    return f"the port does not define {component}"


def without(dtype: str) -> str:
    """Returns the reason for skipping a dtype that the port does not support."""
    return f"the port does not support {dtype}"
