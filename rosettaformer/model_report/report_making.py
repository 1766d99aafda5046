"""Makes everything that a report says."""

import datetime
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..benchmarks.benchmark_report import environment
from ..conformance import runner
from ..conformance.cases.checkpoint import checkpoint_cases
from ..conformance.report.summary import Summary
from ..conformance.result import Result
from ..processes import cores
from . import training
from .layer_errors import LARGE, Layers, evaluate
from .reported_model import Subject
from .speed import Speed, measure
from .training_worker import MODES
from .workers import IMPLEMENTATIONS, NAMES, opened, trainees

SECTIONS = {
    "matrix": "The model's cases on every implementation, by dtype.",
    "layers": "The error after every layer, by dtype, and of every component.",
    "attention": "The attention of every head, and its difference from the reference.",
    "training": "A few training steps.",
    "speed": "Time and memory.",
}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is made. shown: the dtype of the attention weights. limit: seconds for one answer."""

    names: Sequence[str] = tuple(IMPLEMENTATIONS)
    sections: Sequence[str] = tuple(SECTIONS)
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16", "float16")
    shown: str = "float32"
    steps: int = 8
    rounds: int = 5
    seed: int = 0
    leave_out: Sequence[str] = ()
    ignore: Sequence[str] = ()
    limit: float = 600.0


@dataclass
class Report:
    """missing: implementations whose framework is not available, with the reason. A section that was not requested is None."""

    subject: Subject
    options: Options
    missing: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    described: dict[str, dict[str, object]] = field(default_factory=dict)
    summary: Summary | None = None
    layers: Layers | None = None
    curves: training.Curves | None = None
    speed: Speed | None = None
    stamp: dict[str, str] = field(default_factory=dict)

    @property
    def present(self) -> list[str]:
        """The implementations that could be asked."""
        return [name for name in self.options.names if name not in self.missing]

    @property
    def conforms(self) -> bool:
        """Whether everything that was compared agrees, and everything that was asked was answered."""
        return (self.summary is None or self.summary.conforms) and not self.problems


def make(
    subject: Subject, options: Options, progress: Progress = lambda text: None, result: Callable[[Result], None] = lambda result: None
) -> Report:
    """Runs what the options ask for. progress is told what is being done, result is called with every finished case of the matrix."""
    report = Report(subject, options)
    _evaluate(report, progress)
    if "matrix" in options.sections and report.present:
        progress("matrix: the model's cases")
        report.summary = _matrix(report, result)
    if {"training", "speed"} & {*options.sections} and report.present:
        _train(report, progress)
    report.stamp = _stamp(report)
    return report


def _evaluate(report: Report, progress: Progress) -> None:
    """Finds the available implementations; and compares each layer's output."""
    options = report.options
    progress(f"starting {', '.join(options.names)}")
    with opened(options.names, options.limit) as workers:
        for name, worker in workers.items():
            kind, about = worker.greeting
            if kind == "ready":
                report.described[name] = about
            else:
                report.missing[name] = about if kind == "missing" else f"{kind}: {about}"
        ready = {name: worker for name, worker in workers.items() if name in report.described}
        if ready and {"layers", "attention"} & {*options.sections}:
            dtypes, tree = (options.dtypes, True) if "layers" in options.sections else ((), False)
            report.layers = evaluate(report.subject, ready, dtypes, options.shown, options.limit, progress, tree)
            _problems(report, report.layers.problems)


def _matrix(report: Report, result: Callable[[Result], None]) -> Summary:
    cases = checkpoint_cases(report.subject.file, report.options.leave_out, report.options.ignore)
    names = {IMPLEMENTATIONS[name]: name for name in report.present}
    quick = report.subject.count < LARGE  # small models take longer to compile than to run
    rows = runner.run(cases, [*names], report.options.dtypes, limit=report.options.limit, progress=result, quick_compile=quick)
    return Summary([_renamed(row, names[row.port]) for row in rows])


def _renamed(row: Result, name: str) -> Result:
    return row if row.port == name else Result(**{**vars(row), "port": name})


def _train(report: Report, progress: Progress) -> None:
    """Trains for the curves, and then times: in the same processes, which hold the model."""
    options, subject = report.options, report.subject
    steps = options.steps if "training" in options.sections else 0
    plan = training.plan(subject, max(1, steps), options.seed)
    if steps:
        report.curves = training.reference(plan, progress)
        modes = ", ".join(f"{NAMES[name]} {MODES[name][0]}" for name in report.present if name != "numpy")
        report.curves.notes = [*plan.notes, *([modes] if modes else [])]
    with trainees(report.present, cores(), options.limit) as asks:
        measured = Speed(options.rounds, cores(), "")
        for name, ask in asks.items():
            if steps:
                progress(f"training: {steps} steps of {name}")
                kind, answer = ask("curve", plan.config.to_dict(), dict(plan.values), plan.recipe.to_dict(), [*plan.batches])
                if kind == "answer" and report.curves:
                    report.curves.found[name] = [tuple(pair) for pair in answer]
                else:
                    _problems(report, {name: [f"training: {kind}, {answer}"]})
        if "speed" in options.sections:
            report.speed = measured
            measure(measured, asks, subject, plan, progress)
            _problems(report, measured.problems)


def _problems(report: Report, found: dict[str, list[str]]) -> None:
    for name, problems in found.items():
        report.problems.setdefault(name, []).extend(problems)


def _stamp(report: Report) -> dict[str, str]:
    """Returns the lines on the environment, by their subjects."""
    where = environment(cores(), {})
    options = report.options
    return {
        "command": shlex.join(["rosettaformer", *sys.argv[1:]]),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        **where,
        "load": _load(),
        **{name: _about(about) for name, about in report.described.items() if name != "numpy"},
        **{f"SHA-256 of {file}": digest for file, digest in report.subject.digests.items()},
        "seed": str(options.seed),
    }


def _load() -> str:
    """Returns how busy the machine is, which affects times."""
    try:
        return f"{os.getloadavg()[1]:.1f} processes wanted to run, on average over five minutes"
    except OSError:
        return "the system does not say"


def _about(about: dict[str, object]) -> str:
    versions, devices = about.get("version"), about.get("devices")
    parts = [", ".join(f"{name} {number}" for name, number in versions.items()) if isinstance(versions, dict) else ""]
    parts.append(f"on {', '.join(devices)}" if isinstance(devices, (list, tuple)) else "")
    parts.append(f"matmul precision {about['precision']}" if about.get("precision") else "")
    return "; ".join(filter(None, parts)) or "ready"
