"""The public API for port files. These names stay here when the judge's own modules move.

    from rosettaformer.ports import NotCovered

| name | since | purpose |
|---|---|---|
| `NotCovered` | 1 | raise it for an unsupported case ("not covered"), with the reason |
| `Unsupported` | 1 | raise it if a kernel for the dtype is missing, with its name |
| `Case` | 1 | argument of a NumPy port: `inputs`, `parameters`, `config`, `dtype` |
| `CLASSIC` | 1 | a `config` without RoPE, RMS and query-key norms, gates, windows, caps |
| `Names` | 1 | looks up each parameter's own name and axes in a port's `weights` |

`since` is the value of `VERSION` that introduced the name. `VERSION` increases when a name is
added; names are never removed. The pytest plug-in is `rosettaformer.pytest_plugin`;
`rosettaformer.files.checkpoints` reads and writes canonical files. Importing this module loads no
framework.
"""

from .files.checkpoints.paper import CLASSIC
from .judge.case import Case
from .judge.ports.names import Names
from .judge.ports.port import NotCovered, Unsupported

__all__ = ["CLASSIC", "VERSION", "Case", "Names", "NotCovered", "Unsupported"]

VERSION = 1
