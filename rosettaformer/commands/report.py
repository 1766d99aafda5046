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
from . import words
from .options import OUT, Grouped, Missing, examples, ignore_option, listed, one_or_two, seconds, section, seed_of, text_option


@click.command(
    cls=Grouped,
    epilog=examples("report --checkpoint llama/ --out report.html", "report --checkpoint bert/ --text 'the cat' --quick --out report.html"),
)
@section(
    "Model",
    click.option(
        "--checkpoint",
        type=click.Path(path_type=Path),
        required=True,
        metavar="DIR",
        help="Hugging Face checkpoint, run of `train`, or canonical file.",
    ),
    text_option,
    ignore_option,
    seed_of("Seed for random tokens and parameters."),
)
@section(
    "Contents",
    listed("only", f"Sections to write: {', '.join(SECTIONS)}. [default: all]"),
    listed("backend", f"Implementations: {', '.join(IMPLEMENTATIONS)}. [default: all]"),
    listed("dtype", f"Dtypes: {', '.join(DTYPES)}. [default: all]"),
    click.option(
        "--steps", type=click.IntRange(min=0), default=8, show_default=True, metavar="N", help="Number of training steps; 0 for none."
    ),
    click.option("--quick", is_flag=True, help="Run only float32, 3 steps and 3 timing rounds, and compile only for JAX."),
    seconds("--limit", 600.0, "Time limit for one request.", least=1),
)
@section(
    "Files",
    click.option("--out", type=OUT, required=True, metavar="FILE", help="Output file: one HTML page."),
    click.option(
        "--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Folder for all figures, as PNG and SVG."
    ),
    click.option("--json", "json_file", type=OUT, metavar="FILE", help="JSON file for every number."),
)
def report(
    checkpoint: Path, texts: tuple[str, ...], seed: int, ignore: tuple[str, ...],
    onlys: tuple[str, ...], out: Path, figures: Path | None, json_file: Path | None, **choices: Any,
) -> None:  # fmt: skip
    """Write an HTML report on one model in several implementations.

    Compares NumPy, PyTorch, TensorFlow, JAX and, for Hugging Face checkpoints, transformers. The
    page has predictions, results of all cases, errors after every layer, attention weights, a short
    training run, time and memory, and the environment. Frameworks that are not installed are listed
    as missing.

    Exit codes: 0 conforms, 1 differs, 2 invalid usage or input, 3 backend missing.
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
    click.echo(words.report(headline, lead, out, len(page.encode()), saying.seconds))
    named = bool(choices["backends"]) or not found.present
    sys.exit(1 if found.present and not good else Missing.exit_code if found.missing and named else 0)


def _options(onlys: tuple[str, ...], backends: tuple[str, ...], dtypes: tuple[str, ...],
             steps: int, quick: bool, **others: Any) -> dict[str, Any]:  # fmt: skip
    """Returns the fields of `Options`.

    Raises ValueError on unknown names and on --quick with --dtype.
    """
    known("section", onlys, SECTIONS)
    known("implementation", backends, IMPLEMENTATIONS)
    known("dtype", dtypes, DTYPES)
    if quick and dtypes:
        raise ValueError(f"--quick runs float32 only; remove --dtype {','.join(dtypes)} or --quick")
    sections = tuple(name for name in SECTIONS if (not onlys or name in onlys) and (name != "training" or steps))
    if not sections:
        raise ValueError("nothing to write: --only training needs --steps of at least 1; got 0")
    chosen = tuple(dtype for dtype in DTYPES if dtype in (("float32",) if quick else dtypes or DTYPES))
    given = {"steps": min(steps, 3) if quick else steps, "dtypes": chosen, "quick": quick}
    implementations = tuple(name for name in IMPLEMENTATIONS if not backends or name in backends)
    return given | others | {"sections": sections, "names": implementations}


def _require(out: Path, figures: Path | None, json_file: Path | None, backends: tuple[str, ...]) -> None:
    """Raises ValueError if an output cannot be written, and MissingBackend if a package is missing."""
    for path in (out, json_file):
        if path:
            writable(path)
    if figures:
        writable(figures, folder=True)
        if not drawing.is_ours(figures):
            raise ValueError(f"{figures} contains other files; choose a new or empty folder for the figures")
    require("the report", {"report": ["jinja2", "matplotlib"], **needs_of(*backends)})


def _write(found: Report, page: str, out: Path, figures: Path | None, json_file: Path | None, say: Callable[[str], None]) -> None:
    """Writes each file, and the folder of figures, atomically."""
    numbers = to_dict(found) if figures or json_file else {}
    if figures:
        with replacing(figures, folder=True) as temporary:
            temporary.mkdir()
            count = drawing.write(temporary, found, say)
            files.write_json(temporary / drawing.MARK, numbers)
        say(words.figures(count, figures))
    if json_file:
        files.write_json(json_file, numbers)
    write_text(out, page)


class _Saying:
    """Prints a line on standard error for each step, with the number of its part and the time left."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._console, self._started, self._parts = Console(stderr=True, highlight=False, markup=False), time.monotonic(), parts

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        number = self._parts.index(text.partition(":")[0]) + 1
        left = self.seconds / max(1, number - 1) * (len(self._parts) - number + 1)
        rest = duration(left) if number > 2 else ""  # the first part is short
        self._console.print(words.step(self.seconds, number, len(self._parts), text, rest), soft_wrap=True)
