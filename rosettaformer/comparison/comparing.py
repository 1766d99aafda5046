"""Compares two models by their names, as the command `compare` does, and returns the report as data."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.backends import needs_of
from ..common.extras import require
from ..files.artefacts.kinds import KINDS
from . import run
from .matching import rename_table
from .report import comparison_text
from .running import declared_inputs, libraries, sides
from .running.side_process import MODES

TIMES: dict[str, tuple[str, ...]] = {"none": (), **{mode: (mode,) for mode in MODES}, "all": MODES}


def compare(
    left: str,
    right: str,
    component: str = "",
    settings: Mapping[str, Any] | None = None,
    weights: str = "",
    rename: str = "",
    inputs: Sequence[str] = (),
    gradients: bool = True,
    step: bool = True,
    dtype: str = "float64",
    seed: int = 0,
    limit: float = 300.0,
) -> dict[str, Any]:
    """Compares two models on the same weights and inputs and returns the report that `compare --json` writes.

    `verdict` is a word or two, `sentences` say what differs; `outputs`, `layers` and `variables` have the numbers. left, right:
    "FILE.py:NAME", "MODULE:NAME", "CHECKPOINT@BACKEND", "transformers:DIR", "keras-hub:DIR", an ONNX file, or a port with component.
    settings: arguments of both classes. weights: random, left, right, own, or a file. rename: a table of the names of both. inputs: such
    as "tokens: b=2 t=7 int64 <100". limit: seconds for one answer. Raises ValueError on bad input, MissingBackend.
    """
    named = sides_of(left, right, settings or {}, component)
    if named[0].kind == "report":
        raise ValueError(f"two models can be compared; got the reports {left} and {right}, which `rosettaformer compare` reads")
    return between(
        named, weights, rename, inputs, gradients=gradients, step=step, dtype=dtype, seed=seed, limit=limit,
    )  # fmt: skip


def sides_of(left: str, right: str, settings: Mapping[str, Any], component: str) -> list[sides.Side]:
    """Returns the sides of these names. Raises ValueError if one names nothing, or is a report and the other is not."""
    named = sides.paired([sides.parse(text, settings, component) for text in (left, right)])
    reports = [side for side in named if side.kind == "report"]
    if len(reports) == 1:
        raise ValueError(f"two reports can be compared, and two models; {reports[0].text} is a report and the other is not")
    return named


def between(
    named: Sequence[sides.Side],
    weights: str | None = None,
    rename: str = "",
    inputs: Sequence[str] = (),
    file: Path | None = None,
    axes: Sequence[Sequence[str]] = ((), ()),
    time: str = "none",
    progress: Callable[[str], None] = lambda what: None,
    gradients: bool = True,
    step: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Returns the report of two sides. file: inputs as .npz. axes: the orders of the axes of inputs on either side. options: see
    `run.Options`.

    Raises as `run.compare`; MissingBackend if what runs a side is not installed.
    """
    _require(named)
    kinds = {side.kind for side in named}
    own = "artefact" in kinds or ("loaded" in kinds and "built" not in kinds)
    chosen = weights or ("random" if kinds == {"built"} else "own" if own else "left")
    if "artefact" in kinds and chosen != "own":
        raise ValueError(f"an ONNX file keeps its own weights: --weights must be own; got {chosen!r}")
    if chosen not in ("random", "left", "right", "own") and not Path(chosen).exists():
        raise ValueError(f"--weights must be random, left, right, own or a file; got {chosen!r}")
    order = [dict(map(declared_inputs.axes_of, texts)) for texts in axes]
    declared = [declared_inputs.declaration(text) for text in inputs]
    for which, names in zip(("left", "right"), order, strict=True):
        if unknown := names.keys() - {one.name for one in declared if one.axes}:
            raise ValueError(f"--{which}-axes names {', '.join(sorted(unknown))}, whose axes no --input declares")
    found = run.compare(
        named[0],
        named[1],
        run.Options(
            inputs=declared,
            file=file,
            axes=order,
            weights=chosen,
            rename=rename_table.read(rename),
            time=TIMES[time],
            progress=progress,
            gradients=gradients and "artefact" not in kinds,
            step=step and "artefact" not in kinds,
            **options,
        ),
    )
    return {"verdict": comparison_text.verdict(found), "sentences": comparison_text.sentences(found)} | found


def _require(named: Sequence[sides.Side]) -> None:
    """Raises MissingBackend if what runs a side is not installed; code that builds a model says only there what it imports."""
    for side in named:
        if side.kind == "artefact":
            require(side.text, {KINDS["onnx"].extra: KINDS["onnx"].needs})
        elif side.kind == "loaded":
            libraries.require(side.name)
        elif side.kind in ("checkpoint", "component"):
            require(side.text, needs_of(side.name or side.path))
