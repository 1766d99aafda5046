"""The sentences of the reports: what `check` prints, and texts of its JUnit file."""

import shlex
from collections.abc import Sequence

from ..case import SUITE_RELEASE
from ..expectation.routing import ROUTED
from ..expectation.tolerance import MAX_FACTOR
from ..ports.command import PREFIX
from ..status import Status
from ..summary import ACCEPTED, Summary, counted

LEGEND = (
    "noise: NumPy's own rounding error in the dtype, measured against float64.\n"
    "Each number is the port's largest error divided by the noise.\n"
    f"1.00 is as accurate as NumPy; up to {MAX_FACTOR:g} passes."
)
PARTLY = "\n(n/m): n of m cases were compared; the others are listed below."
FIRST = "the first divergence"
OTHER_INPUTS = "its inputs differ"
ENOUGH = "enough was compared"  # the name of the JUnit case that fails if too little was


def headline(summary: Summary) -> str:
    """The verdict, the counts, and the number of skipped comparisons, in one line."""
    if summary.conforms:
        text = f"PASSED: {counted(summary.compared, 'comparison')}"
    else:
        failed, verb = len(summary.failed) - len(summary.stale), "failed" if summary.without_answers else "differ"
        differing = f"{failed:,} of {counted(summary.compared, 'comparison')} {verb}" if failed else ""
        stale = f"{counted(len(summary.stale), 'expected failure')} passed" if summary.stale else ""
        text = f"FAILED: {'; '.join(filter(None, (differing, stale, summary.shortage)))}"
    others = summary.counted(*ACCEPTED)
    if summary.incomparable_parts:
        others.append(f"{counted(summary.incomparable_parts, 'single output')} not comparable")
    others += [routing(summary)] if any(result.decisions for result in summary.results) else []
    skipped = f" ({len(summary.left):,} skipped: reasons below)" if summary.left else ""
    return ", ".join([text, *others]) + skipped


def routing(summary: Summary) -> str:
    """The decisions of routers: wrong ones if the port returns them, undecided ones, and tokens left out for them."""
    returned = [result for result in summary.results if result.component == ROUTED and result.decisions]
    asked = returned or [result for result in summary.results if result.decisions]
    decisions, undecided, wrong = (sum(getattr(result, name) for result in asked) for name in ("decisions", "undecided", "wrong"))
    text = f"{wrong:,} of {counted(decisions, 'routing decision')} wrong" if returned else f"{counted(decisions, 'routing decision')}"
    text += " (by wide margins: the values before them may be wrong)" * bool(returned and not wrong and not summary.conforms)
    open_ = sum(result.open for result in summary.results)
    return f"{text}, {undecided:,} undecided" + f", {counted(open_, 'token')} not compared" * (open_ > 0)


def how_run(seconds: float | None) -> str:
    """The suite release and the time that a run took."""
    return f" (suite release {SUITE_RELEASE})" + (f" in {duration(seconds)}" if seconds is not None else "")


def duration(seconds: float) -> str:
    """A time in words: 12 s, 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"


def several(port: str, count: int) -> str:
    """Where cases failed with the same message. port: empty if there is only one."""
    return f"in {count} cases" + (f" of {port}" if port else "")


def more_failures(count: int) -> str:
    """How many failures are not printed."""
    return f"... and {count} more; --json writes all of them"


def lower(message: str) -> str:
    """The largest error of a port with a lower precision."""
    return f"at most {message}"


def skipped(port: str, status: Status, text: str, count: int) -> tuple[str, str]:
    """The status and number of skipped comparisons, and why. port: empty if there is one."""
    return f"{f'{port} ' * bool(port)}{status} ({count:,})", f"no kernel for {text}" if status == Status.UNSUPPORTED else text


def remedy(text: str) -> str:
    """The code to write in the port so that skipped comparisons run."""
    return f"to compare them, {text}"


def within_reach(gained: int, others: int) -> str:
    """How many skipped comparisons need only code in the port."""
    text = f"{counted(gained, 'skipped comparison')} need{'s' * (gained == 1)} only code in the port"
    return f"{text}; the other {others:,} cannot be compared" if others else text


def next_command(port: str, options: Sequence[str]) -> str:
    """The command that finds the cause of a failure. options: those that `diagnose` shares."""
    named = f"--command {shlex.quote(port.removeprefix(PREFIX))}" if port.startswith(PREFIX) else shlex.quote(port)
    return f"next: rosettaformer diagnose {' '.join([named, *map(shlex.quote, options)])}"


def tree_title(port: str, case: str, dtype: str, which: str) -> str:
    """The title of a tree of components. which: the errors that it shows."""
    return f"{port} {case} {dtype}: {which} divided by the tolerance"


def untraced(components: Sequence[str]) -> tuple[str, str]:
    """The components for which the port has no module."""
    return "no module found for", ", ".join(components)
