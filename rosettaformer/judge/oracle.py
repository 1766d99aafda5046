"""Whether the classes of the installed transformers compute what the reference does."""

import importlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..files.checkpoints.hugging_face import new
from . import diagnosing, runner
from .selection import Selection, cases_for
from .status import FAILURES, Status
from .templates import TEMPLATES, like

SLOW = ("long", "far", "medium_steps")  # prefixes of prompts that show little more in a class that reads its own config


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One class. status: pass, differs, or missing if this version has no such class. causes: what
    differs, as `diagnose` says it.
    """

    family: str
    name: str
    status: Status
    causes: tuple[str, ...] = ()


def judged(family: str) -> Judged:
    """Compares the class of a family, in float32 and with random weights, with the reference.

    Raises MissingBackend if transformers or torch is not installed.
    """
    name, dtypes = new.architecture(family), ("float32",)
    if name not in dir(importlib.import_module("transformers")):  # without importing its module
        return Judged(family=family, name=name, status=Status.MISSING)
    with tempfile.TemporaryDirectory() as place, cases_for((), Selection(like=family, dtypes=dtypes)) as cases:
        port = Path(place, "library_port.py")
        shutil.copyfile(TEMPLATES / f"{like(new.family_of(family).encoder_decoder)}_port.py", port)
        quick = [case for case in cases if not case.name.startswith(SLOW)]
        if not any(result.status in FAILURES for result in runner.run(quick, [str(port)], dtypes)):
            return Judged(family=family, name=name, status=Status.PASS)
        found = diagnosing.run(str(port), cases=quick, dtypes=dtypes, limit=diagnosing.LIMIT)
        causes = tuple(finding.text for finding in found.findings)
        return Judged(family=family, name=name, status=Status.DIFFERS, causes=causes)
