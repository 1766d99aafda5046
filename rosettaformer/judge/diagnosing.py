"""Diagnoses ports like the command `diagnose`, and returns the findings as data."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reference_numpy.sharding import Mesh

from . import diagnosis
from .case import Case
from .deviations import Deviation
from .diagnosis import Diagnosis, mesh_diagnosis, words
from .diagnosis.findings import Verdict
from .selection import Selection, artefacts_in, cases_for, refuse_without_artefacts
from .suite.fitting import count, fits, within

LIMIT = 60.0  # seconds for the diagnosis of a whole model
LARGE, FIRST = 10_000_000, ("short", "left_padding")  # models with this many parameters are diagnosed with these cases first


def diagnose(
    port: str,
    like: str | Path = "",
    checkpoint: str | Path | None = None,
    components: Sequence[str] = (),
    expression: str | None = None,
    dtypes: Sequence[str] = (),
    meshes: Sequence[str] = (),
    mode: str = "",
    pairs: bool = True,
    gradients: bool = True,
    seed: int = 0,
    memory: float | None = None,
    limit: float | None = None,
    answer_limit: float = 60.0,
) -> Diagnosis:
    """Explains what is wrong with a port.

    Returns a `Diagnosis`, which has no `findings` if everything that was asked conforms.

    port: as on the command line. like, checkpoint, components, expression, dtypes, meshes, seed,
    memory: which cases run, see `rosettaformer.check`. mode: eager or compiled; by default the
    port's own. pairs: also look for two bugs at once. gradients: also check the gradients of
    components with correct outputs. limit: processor seconds of the search; by default 60 for a
    whole model. answer_limit: seconds for one answer of the port.

    Raises ValueError on bad input and if the port does not start, and MissingBackend if its
    framework is not installed.
    """
    selection = Selection(
        components=components, like=str(like), seed=seed, memory=memory, checkpoint=None if checkpoint is None else Path(checkpoint),
        meshes=[Mesh.parse(mesh) for mesh in meshes], expression=expression, dtypes=dtypes,
    )  # fmt: skip
    options: dict[str, Any] = {"mode": mode, "pairs": pairs, "gradients": gradients, "answer_limit": answer_limit, "dtypes": dtypes}
    if not is_of_model(port, selection):
        refuse_without_artefacts(checkpoint=checkpoint)
        return run(port, components, expression=expression, limit=limit, **options)
    with cases_for([port], selection) as cases:
        return run(port, components, cases=cases, limit=limit or limit_of(port, selection), **options)


def is_of_model(port: str, selection: Selection) -> bool:
    """Whether the port runs the cases of a model or of meshes instead of the suite's."""
    return bool(selection.like or selection.meshes or artefacts_in([port]))


def limit_of(port: str, selection: Selection) -> float | None:
    """Returns the default limit of the search in seconds; None for no limit."""
    return LIMIT if selection.like or artefacts_in([port]) else None


def run(
    port: str,
    components: Sequence[str] = (),
    entries: Sequence[Deviation] = (),
    progress: Callable[[str, float], None] = lambda what, share: None,
    say: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> Diagnosis:
    """Diagnoses a port without its expected failures. options: see `diagnosis.diagnose`."""
    declared = {pair for entry in entries if entry.port == port for pair in entry.covers}
    told: dict[str, Any] = {"declared": declared, "progress": progress, "say": say}
    if any(case.mesh for case in options.get("cases") or ()):
        given: dict[str, Any] = {name: options[name] for name in ("mode", "limit", "answer_limit") if name in options}
        given["cases"] = [dataclasses.replace(case, dtypes=within(case.dtypes, options.get("dtypes", ()))) for case in options["cases"]]
        return mesh_diagnosis.diagnose(port, components=components, **told, **given)
    told["entries"] = [entry for entry in entries if entry.port == port]
    *first, last = stages(options.pop("cases", None))
    started, limit = time.thread_time(), options.pop("limit", None)
    for cases in first:
        found = diagnosis.diagnose(port, components, **told, **options, cases=cases, limit=limit)
        if found.stopped:
            return found
        if any(finding.verdict != Verdict.NOT_COMPARED for finding in found.findings):
            return dataclasses.replace(found, next_steps=[*found.next_steps, words.CHECK_AGAIN.format("longer prompts")])
        say(f"{', '.join(case.id for case in cases or ())} conform; running longer prompts")
    left = limit and max(0.1, round(limit - (time.thread_time() - started), 1))
    return diagnosis.diagnose(port, components, **told, **options, cases=last, limit=left)


def stages(cases: Sequence[Case] | None) -> list[Sequence[Case] | None]:
    """Splits the cases into stages; a large model runs short prompts first."""
    asked = [case for case in cases or () if fits(case)]
    if not asked or count(asked[0]) < LARGE:
        return [cases]
    return [[case for case in asked if case.name in FIRST], [case for case in asked if case.name not in FIRST]]
