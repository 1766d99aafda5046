"""What the user's code raises, in words."""

import re

from ..processes import innermost, words

__all__ = ["FAILURES", "failure"]

FAILURES = (Exception, SystemExit)  # what the user's code may raise


def failure(error: BaseException) -> str:
    """The error and its message, without the marks by which a terminal shows bold and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words(innermost(error)))
