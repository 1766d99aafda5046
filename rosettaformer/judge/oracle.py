"""Whether the classes of the installed transformers compute what the reference does."""

import importlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..common.atomic import write_text
from ..common.reading import read_object
from ..files.checkpoints import recognise
from ..files.checkpoints.hugging_face import new, spelling
from . import diagnosing, runner
from .selection import Selection, cases_for
from .status import FAILURES, Status
from .templates import TEMPLATES, like

RENAMED = 5  # the first version of transformers that writes today's entries of config.json
SLOW = ("long", "far", "medium_steps")  # prefixes of prompts that show little more in a class that reads its own config


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One class. status: pass, differs, missing if this version has no such class, or
    unsupported if it cannot read the checkpoint. causes: what
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
    library = importlib.import_module("transformers")
    if name not in dir(library):  # without importing its module
        return Judged(family=family, name=name, status=Status.MISSING)
    with tempfile.TemporaryDirectory() as place, cases_for((), Selection(like=family, dtypes=dtypes)) as cases:
        port = Path(place, "library_port.py")
        shutil.copyfile(TEMPLATES / f"{like(new.family_of(family).encoder_decoder)}_port.py", port)
        if int(library.__version__.partition(".")[0]) < RENAMED:
            try:
                _respell(family, {Path(case.folder, *dtypes) for case in cases})
            except ValueError as error:
                return Judged(family=family, name=name, status=Status.UNSUPPORTED, causes=(str(error),))
        quick = [case for case in cases if not case.name.startswith(SLOW)]
        if not any(result.status in FAILURES for result in runner.run(quick, [str(port)], dtypes)):
            return Judged(family=family, name=name, status=Status.PASS)
        found = diagnosing.run(str(port), cases=quick, dtypes=dtypes, limit=diagnosing.LIMIT)
        causes = tuple(finding.text for finding in found.findings)
        return Judged(family=family, name=name, status=Status.DIFFERS, causes=causes)


def _respell(family: str, folders: Iterable[Path]) -> None:
    """Gives config.json the entries that earlier versions read."""
    for folder in folders:
        entries = spelling.older(new.family_of(family), read_object(folder / recognise.CONFIG))
        write_text(folder / recognise.CONFIG, json.dumps(entries))
