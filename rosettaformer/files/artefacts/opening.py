"""Opens an artefact by its runtime."""

import importlib
from pathlib import Path

from ...common.extras import MissingBackend, lacking
from .kinds import KINDS, kind_of
from .signature import Artefact


class Absent(MissingBackend):
    """The runtime is not installed; the message says what installs it."""


def open_artefact(path: Path, allow_code: bool = False) -> Artefact:
    """Returns the artefact in a file or folder. allow_code: a compiled library in it is loaded, which runs with the rights of the caller.

    Raises ValueError, before anything of the file is run, if it is no artefact, damaged, or holds what no model needs; and `Absent`.
    """
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if not (name := kind_of(path)):
        raise ValueError(f"{path} must be {', '.join(kind.title for kind in KINDS.values())}; its bytes are none of these")
    kind = KINDS[name]
    if lacking(kind.needs):
        raise Absent(kind.missing)
    opened: Artefact = importlib.import_module(f"{__package__}.runtimes.{kind.runtime}").open_file(path, allow_code)
    return opened
