"""What a port's answer to a question may be, and what the outcome of a case may be: every word that a report has for it."""

from enum import StrEnum


class Kind(StrEnum):
    """What a port's process, or a command, answered. All but the first two come with a reason, and become the case's status."""

    READY = "ready"  # what it says about itself
    OUTPUTS = "outputs"
    ERROR = "error"
    DIFFERS = "differs"  # its answer cannot be compared, such as a pair instead of an array
    NOT_COVERED = "not covered"
    NOT_SHOWN = "not shown"
    UNSUPPORTED = "unsupported"
    CRASH = "crash"
    HANG = "hang"
    SKIPPED = "skipped"
    MISSING = "missing"
    NOT_STARTED = "not started"
    NOT_GIVEN = "not given"


LEFT = (Kind.NOT_COVERED, Kind.NOT_SHOWN, Kind.UNSUPPORTED, Kind.SKIPPED)  # kinds of answers that are no failure


class Status(StrEnum):
    """The outcome of a case on a port."""

    PASS = "pass"
    DIFFERS = "differs"  # in values, shape, dtype or NaN
    ERROR = "error"  # an exception, or something changed that must stay unchanged
    CRASH = "crash"
    HANG = "hang"
    NOT_COMPARABLE = "not comparable"  # no output shows anything, since zeros would pass too
    EMPTY = "empty"  # outputs without elements, of the right shape and dtype
    NOT_SHOWN = "not shown"  # it passes, but the port's config hides what the case is about; or an artefact has no room for the case
    TOLD = "told"  # what becomes of an id out of range, which an artefact need not refuse
    UNSUPPORTED = "unsupported"  # the framework has no kernel
    NOT_COVERED = "not covered"
    NOT_GIVEN = "not given"  # there is no file of outputs
    TOO_LARGE = "too large"  # there is no memory for the case
    MISSING = "missing"  # the framework is not installed, or broken
    NOT_STARTED = "not started"  # the name is not that of a port, so that no case could be run on it
    LEFT_OVER = "left over"  # processes outlived the port
    SKIPPED = "skipped"  # the port had crashed too often, could not load its model, or lacks the device
    NOT_RUN = "not run"  # the run had stopped at a failure
    DEVIATION = "deviation"  # fails, as declared
    STALE = "stale"  # declared, but does not fail


# reasons of SKIPPED: nothing was answered before, and whoever asks again hears the same
UNLOADED, UNSTARTED = "load(folder) had failed", "the command had ended before its first answer, each time in the same way"
UNANSWERED = (Status.ERROR, Status.CRASH, Status.HANG)
FAILURES = (Status.DIFFERS, *UNANSWERED)
# reasons of NOT_COVERED
ON_ONE_DEVICE = "the port answers on one device; `on_mesh(case)` in its file, or `load(folder, mesh)`, answers on a mesh"


def undefined(component: str) -> str:
    """Returns why a port that does not define the component does not cover its cases."""
    return f"the port does not define {component}"


def without(dtype: str) -> str:
    """Returns why a port that does not compute in the dtype does not cover its cases."""
    return f"the port does not support {dtype}"
