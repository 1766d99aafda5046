"""`rosettaformer report`."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from reference_numpy.suggestions import known

from ..common.atomic import replacing, write_text
from ..common.atomic import require as writable
from ..common.backends import needs_of
from ..common.extras import require
from ..comparison.one_model.implementations import IMPLEMENTATIONS
from ..comparison.one_model.making import SECTIONS, Options, Report, make
from ..comparison.one_model.subject import open_subject
from ..comparison.output import figures as drawing
from ..comparison.output.data import to_dict
from ..comparison.output.page import render, verdict
from ..judge.case import DTYPES
from ..judge.report import files
from ..judge.report.matrix import duration
from .options import OUT, Grouped, Missing, ignore_option, listed, one_or_two, section, text_option


@click.command(cls=Grouped)
@section(
    "Model",
    click.option("--checkpoint", type=click.Path(path_type=Path), required=True, metavar="DIR",
                 help="A Hugging Face folder, a run of `train`, or a canonical file."),
    ignore_option,
    text_option,
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random tokens and fresh parameters."),
)  # fmt: skip
@section(
    "What is made",
    listed("only", f"Only these sections: {', '.join(SECTIONS)}."),
    listed("backend", f"Only these implementations: {', '.join(IMPLEMENTATIONS)}."),
    listed("dtype", f"Only these dtypes: {', '.join(DTYPES)}."),
    click.option("--steps", type=click.IntRange(min=0), default=8, show_default=True, help="Training steps; 0 leaves training out."),
    click.option("--quick", is_flag=True, help="float32 alone, 3 steps, 3 rounds, eager rows but of JAX."),
    click.option("--limit", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for one answer."),
)
@section(
    "Files",
    click.option("--out", type=OUT, required=True, metavar="FILE", help="The page: one HTML file."),
    click.option("--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Every figure as PNG and SVG."),
    click.option("--json", "json_file", type=OUT, metavar="FILE", help="Every number."),
)
def report(
    checkpoint: Path, texts: tuple[str, ...], seed: int, ignore: tuple[str, ...],
    onlys: tuple[str, ...], out: Path, figures: Path | None, json_file: Path | None, **choices: Any,
) -> None:  # fmt: skip
    """Write one page about one model in five implementations: NumPy, PyTorch, TensorFlow, JAX, and transformers for its folders.

    It says what the model predicts and whether any choice flips, and holds the matrix of the model's cases, the error after every layer,
    every head's attention on a text, a short training, time and memory, and the environment. A framework that is not installed is
    reported as missing, and the page is made without it.

    Exit codes: 0 conforms, 1 differs, 2 wrong usage or bad input, 3 backend missing.
    """
    options = _options(onlys, **choices) | {"seed": seed, "ignore": ignore}
    _require(out, figures, json_file, choices["backends"])
    text, pair = one_or_two(texts)
    if text is not None and checkpoint.is_dir():
        require("--text", {"inference": ("transformers",)})
    subject = open_subject(checkpoint, text, pair, seed, ignore)
    asked = Options(**options)
    saying = _Saying([*asked.parts, *(["figures"] if figures else [])])
    found = make(subject, asked, saying.say)
    page = render(found)
    _write(found, page, out, figures, json_file, saying.say)
    good, headline, lead = verdict(found)
    click.echo(f"{headline}. {lead}\n{out}: {len(page.encode()) / 1e6:.1f} MB, made in {saying.seconds:.0f} s")
    named = bool(choices["backends"]) or not found.present
    sys.exit(1 if found.present and not good else Missing.exit_code if found.missing and named else 0)


def _options(onlys: tuple[str, ...], backends: tuple[str, ...], dtypes: tuple[str, ...],
             steps: int, quick: bool, **others: Any) -> dict[str, Any]:  # fmt: skip
    """Returns the fields of `Options`. Raises ValueError on unknown words, and on what contradicts --quick."""
    known("section", onlys, SECTIONS)
    known("implementation", backends, IMPLEMENTATIONS)
    known("dtype", dtypes, DTYPES)
    if quick and dtypes:
        raise ValueError(f"--quick is of float32 alone; it takes no --dtype, got {', '.join(dtypes)}")
    sections = tuple(name for name in SECTIONS if (not onlys or name in onlys) and (name != "training" or steps))
    if not sections:
        raise ValueError("at least one section must be made; got --only training with --steps 0")
    chosen = tuple(dtype for dtype in DTYPES if dtype in (("float32",) if quick else dtypes or DTYPES))
    given = {"steps": min(steps, 3) if quick else steps, "dtypes": chosen, "quick": quick}
    implementations = tuple(name for name in IMPLEMENTATIONS if not backends or name in backends)
    return given | others | {"sections": sections, "names": implementations}


def _require(out: Path, figures: Path | None, json_file: Path | None, backends: tuple[str, ...]) -> None:
    """Raises ValueError if something could not be written, and MissingBackend if a package is not installed."""
    for path in (out, json_file):
        if path:
            writable(path)
    if figures:
        writable(figures, folder=True)
        if not drawing.is_ours(figures):
            raise ValueError(f"{figures} must be a new folder, an empty one or one of figures; it holds something else")
    require("the report", {"report": ["jinja2", "matplotlib"], **needs_of(*backends)})


def _write(found: Report, page: str, out: Path, figures: Path | None, json_file: Path | None, say: Callable[[str], None]) -> None:
    """Writes each file, and the folder of figures, whole or not at all."""
    numbers = to_dict(found) if figures or json_file else {}
    if figures:
        with replacing(figures, folder=True) as temporary:
            temporary.mkdir()
            count = drawing.write(temporary, found, say)
            files.write_json(temporary / drawing.MARK, numbers)
        say(f"figures: {count} in {figures}")
    if json_file:
        files.write_json(json_file, numbers)
    write_text(out, page)


class _Saying:
    """Reports on standard error: a line for each step it begins, with the number of its part of all parts."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._console, self._started, self._parts = Console(stderr=True, highlight=False, markup=False), time.monotonic(), parts

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        number = self._parts.index(text.partition(":")[0]) + 1
        left = self.seconds / max(1, number - 1) * (len(self._parts) - number + 1)
        rest = f"  (about {duration(left)} left)" if number > 2 else ""  # the first part is short
        self._console.print(f"{self.seconds:6.1f} s  {number}/{len(self._parts)}  {text}{rest}", soft_wrap=True)
