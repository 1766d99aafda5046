"""Opens an exported model with the runtime of its format."""

import importlib
from pathlib import Path

from ...common.extras import MissingBackend, lacking
from .kinds import KINDS, kind_of
from .signature import Artefact


class Absent(MissingBackend):
    """Raised if the runtime is not installed; the message has the command that installs it."""


def open_artefact(path: Path, allow_code: bool = False) -> Artefact:
    """Opens an exported model. allow_code: permits loading a compiled library, with your rights.

    Raises ValueError, before any of its code runs, if the file is no exported model, is damaged,
    or contains more than a model needs. Raises `Absent` if the runtime is not installed.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if not (name := kind_of(path)):
        raise ValueError(f"{path} is not an exported model: it must be {', '.join(kind.title for kind in KINDS.values())}")
    kind = KINDS[name]
    if lacking(kind.needs):
        raise Absent(kind.missing)
    opened: Artefact = importlib.import_module(f"{__package__}.runtimes.{kind.runtime}").open_file(path, allow_code)
    return opened
