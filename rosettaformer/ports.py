"""The public API for port files. These names stay here when the judge's own modules move.

    from rosettaformer.ports import NotCovered

| name | since | what it is for |
|---|---|---|
| `NotCovered` | 1 | raise it where the port cannot answer a case; the message is the reason, and the case is "not covered" |
| `Unsupported` | 1 | raise it where a framework has no kernel for an operation in a dtype; the message is the operation's name |
| `Case` | 1 | what a function of a NumPy port is given: `inputs`, `parameters`, `config`, `dtype` |
| `CLASSIC` | 1 | a `config` without rotary positions, RMS norms, gates, windows, caps and query-key norms |
| `Names` | 1 | reads a port's table `weights`: each parameter's own name and axes, as `diagnose` finds them |

`since` counts in `VERSION`, which grows when a name is added; none is taken away. The pytest plug-in is `rosettaformer.pytest_plugin`, and
canonical files are read and written by `rosettaformer.files.checkpoints`. Importing this module loads no framework.
"""

from .files.checkpoints.paper import CLASSIC
from .judge.case import Case
from .judge.ports.names import Names
from .judge.ports.port import NotCovered, Unsupported

__all__ = ["CLASSIC", "VERSION", "Case", "Names", "NotCovered", "Unsupported"]

VERSION = 1
