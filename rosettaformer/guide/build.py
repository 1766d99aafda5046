"""Builds the guide: measures what it needs, and makes its pages."""

import datetime
import importlib
import math
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ..common.backends import PORTS
from ..judge import runner
from ..judge.case import Case
from ..judge.suite import all_cases
from ..judge.summary import Summary
from .site import Page, write

# the modules of this package that make pages, in the order of the navigation: each has `pages(run)`
ROOMS = ("components", "translation", "defects", "models", "tutorials", "evidence", "glossary")
# what readers come for: (title, page, what it has); a page from PyTorch to Flax gives way to the direction that the reader chooses
SOUGHT = (
    ("Layouts of weights", "translate/pytorch-to-flax.html#layouts", "Every parameter in both frameworks, with its axes."),
    ("Masks", "translate/pytorch-to-flax-attention.html#attention-mask", "What True means; empty rows; causal alignment."),
    ("Different defaults", "translate/pytorch-to-flax.html#defaults", "Epsilons, biases, GELU: what to pass."),
    ("BERT", "models/bert.html", "Every tensor of a checkpoint, every choice, one forward pass."),
    ("GPT-2", "models/gpt2.html", "Fused projections, tensor by tensor; the tutorials port it from an empty file."),
    ("Llama 3", "models/llama3.html", "Rotary positions, RMS norms, grouped heads: every tensor, every choice."),
    ("Port Llama 3", "tutorials/port-llama-flax.html", "To Flax, from PyTorch or anew: cache, weights, generation; and to PyTorch."),
    ("Attention", "components/multi_head_attention.html", "Four implementations, statement by statement; grouped heads."),
    ("Layer norm", "components/layer_norm.html", "Where epsilon stands, how the variance is computed, RMS norm beside it."),
    ("Dropout", "components/dropout.html", "Where it acts, what it is divided by, how masks are drawn."),
    ("Training", "translate/pytorch-to-flax-optimisers.html", "AdamW, decay, clipping, schedules, one whole step."),
    ("Generation", "components/sample.html", "Temperature, top-k and top-p; greedy and beam search; decoding in steps."),
)  # fmt: skip
APART = ("translation", "defects")  # those that measure in processes of their own, which may run beside the ports


@dataclass(frozen=True)
class Run:
    """What the figures on the pages come from, all of it from a single run.

    summary: the core cases on our three ports. cpus: processes that may measure at once. evidence: the folder that `make evidence` writes.
    """

    summary: Summary
    cpus: int = 2
    evidence: Path | None = None


def cases() -> list[Case]:
    """Returns the core cases, which the guide measures."""
    return [case for case in all_cases(grad=True) if case.core]


def measure(dtypes: Sequence[str], progress: Callable[[runner.Result], None] = lambda result: None) -> Run:
    """Runs the core cases on our ports."""
    return Run(Summary(runner.run(cases(), tuple(PORTS), dtypes, progress=progress, quick_compile=True)))


def build(
    out: Path,
    dtypes: Sequence[str],
    progress: Callable[[runner.Result], None] = lambda result: None,
    begin: Callable[[str], None] = lambda room: None,
    evidence: Path | None = None,
) -> list[Page]:
    """Measures, writes the site into the folder `out`, and returns its pages. progress: called with every result; begin: with the name of
    every room before its pages are made; evidence: as in `Run`. Raises ValueError as `site.write` does.
    """
    with ThreadPoolExecutor(len(APART)) as pool:
        begun = {room: pool.submit(_pages_of, room, Run(Summary([]))) for room in APART}
        run = replace(measure(dtypes, progress), evidence=evidence)
        begin(APART[0])
        apart = {room: pages.result() for room, pages in begun.items()}  # before others parse: two threads must not, in Python 3.11
        values = {"summary": run.summary, "ports": PORTS, "ratios": _ratios(run.summary), "sought": SOUGHT}
        made = [Page("index.html", "One Transformer, written four times", "home.html.jinja", values)]
        for room in ROOMS:
            begin(room)
            made += apart[room] if room in apart else _pages_of(room, run)
    return write(out, made, _about())


def _pages_of(room: str, run: Run) -> list[Page]:
    return list(importlib.import_module(f"{__package__}.{room}").pages(run))


def _ratios(summary: Summary) -> dict[str, dict[str, float]]:
    """Returns the largest error ratio of each port, by dtype."""
    worst: dict[str, dict[str, float]] = {}
    for result in summary.passed:
        if not math.isnan(result.ratio):
            row = worst.setdefault(result.dtype, {})
            row[result.port] = max(row.get(result.port, 0.0), result.ratio)
    return worst


def _about() -> dict[str, str]:
    packages = ("numpy", "torch", "tensorflow-cpu", "keras", "jax", "flax")
    return {
        "rosettaformer": version("rosettaformer"),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "on": f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
    } | {name: version(name) for name in packages}
