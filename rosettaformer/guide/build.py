"""Builds the guide: takes measurements and creates the pages."""

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

# modules of this package with a function `pages(run)`, in navigation order
ROOMS = ("components", "translation", "defects", "models", "tutorials", "evidence", "glossary")
# popular pages: (title, page, text); a page from PyTorch to Flax is replaced by the reader's chosen direction
SOUGHT = (
    ("Weight layouts", "translate/pytorch-to-flax.html#layouts", "Every parameter in both frameworks, with its axes."),
    ("Masks", "translate/pytorch-to-flax-attention.html#attention-mask", "The meaning of True, fully masked rows, causal alignment."),
    ("Different defaults", "translate/pytorch-to-flax.html#defaults", "Epsilons, biases, GELU: what to pass."),
    ("BERT", "models/bert.html", "Every tensor of a checkpoint, every config field, one forward pass."),
    ("GPT-2", "models/gpt2.html", "Fused projections, tensor by tensor, and tutorials from an empty file."),
    ("Llama 3", "models/llama3.html", "RoPE, RMS norms, grouped heads: every tensor, every config field."),
    ("Port Llama 3", "tutorials/port-llama-flax.html", "To Flax, from PyTorch or from scratch, with cache, weights and generation."),
    ("Attention", "components/multi_head_attention.html", "Four implementations, statement by statement, with grouped heads."),
    ("Layer norm", "components/layer_norm.html", "Where epsilon goes, how the variance is computed, and RMS norm."),
    ("Dropout", "components/dropout.html", "Where it acts, how it scales, how masks are drawn."),
    ("Training", "translate/pytorch-to-flax-optimisers.html", "AdamW, weight decay, clipping, schedules, a complete step."),
    ("Generation", "components/sample.html", "Temperature, top-k, top-p, greedy and beam search, incremental decoding."),
)  # fmt: skip
APART = ("translation", "defects")  # modules that measure in separate processes, in parallel with the ports


@dataclass(frozen=True)
class Run:
    """The measurements behind the numbers on the pages, from a single run.

    summary: results of the core cases on our three ports. cpus: number of parallel measuring
    processes. evidence: the folder that `make evidence` writes.
    """

    summary: Summary
    cpus: int = 2
    evidence: Path | None = None


def cases() -> list[Case]:
    """Returns the core cases."""
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
    """Measures, writes the site into the folder `out`, and returns its pages.

    progress: called with every result. begin: called with the name of each module before it creates
    its pages. evidence: see `Run`. Raises ValueError as `site.write` does.
    """
    with ThreadPoolExecutor(len(APART)) as pool:
        begun = {room: pool.submit(_pages_of, room, Run(Summary([]))) for room in APART}
        run = replace(measure(dtypes, progress), evidence=evidence)
        begin(APART[0])
        apart = {room: pages.result() for room, pages in begun.items()}  # before others parse: Python 3.11 must not parse in two threads
        values = {"summary": run.summary, "ports": PORTS, "ratios": _ratios(run.summary), "sought": SOUGHT}
        made = [Page("index.html", "One Transformer in four frameworks", "home.html.jinja", values)]
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
